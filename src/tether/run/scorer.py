"""Reward models by the name that a person gives them, and as a run asks them: on its device, their matrix products in its precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from tether.backends.compute import Compute
from tether.errors import ModelError
from tether.models.reward import RewardModel, ScoredText
from tether.rewards.learned import TextScorer
from tether.text.chat import Text

__all__ = ["RunScorer", "load_reward_model", "reward_folder", "scorer_loader"]


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


def reward_folder(name: str) -> str:
    """Of the folder of a run its reward model, any other name as it is. Raises ModelError for a run that has none."""
    folder = Path(name).expanduser()
    if not (folder / "events.jsonl").is_file():
        return name
    if not (folder / "reward_model").is_dir():
        raise ModelError(f"{name} is the folder of a run, and it has trained no reward model (no {folder / 'reward_model'})")
    return str(folder / "reward_model")


def load_reward_model(name: str) -> RewardModel:
    """To ask, not to train: a folder, a run that stands for its own, or a hub id in the cache."""
    return RewardModel.load(reward_folder(name)).requires_grad_(False)


def scorer_loader(compute: Compute) -> Callable[[str | Path], TextScorer]:
    """What reads a saved reward model for a run."""
    return lambda path: RunScorer(RewardModel.load(path).requires_grad_(False), compute)
