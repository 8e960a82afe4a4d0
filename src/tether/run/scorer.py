"""Reward models as a run asks them: on its device, their matrix products in its precision, wherever they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from tether.backends.compute import Compute
from tether.models.reward import RewardModel, ScoredText
from tether.rewards.learned import TextScorer
from tether.text.chat import Text

__all__ = ["RunScorer", "scorer_loader"]


@final
class RunScorer:
    """``model`` on the device of ``compute``, scoring in its precision, that in which a run trains the model and judges its held-out pairs.
    The score itself is a float32 product of the last hidden state and the head."""

    def __init__(self, model: RewardModel, compute: Compute) -> None:
        self._model, self._compute = model.to(compute.device), compute
        self.score_offset = model.score_offset

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]:
        """Raw scores."""
        with self._compute.autocast():
            return self._model.score_texts(prompts, completions, token_budget=token_budget)

    def score_texts_with_std(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[ScoredText]:
        """Raw scores with their standard deviation over heads."""
        with self._compute.autocast():
            return self._model.score_texts_with_std(prompts, completions, token_budget=token_budget)


def scorer_loader(compute: Compute) -> Callable[[str | Path], TextScorer]:
    """What reads a saved reward model for a run."""
    return lambda path: RunScorer(RewardModel.load(path).requires_grad_(False), compute)
