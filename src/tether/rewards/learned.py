"""A reward model as a reward part: batched scores plus the model's stored offset.

The reward model renders prompt and answer by the template it was trained with and reads every answer as a
closed turn, cut or not, which is how the comparisons were read. Value = raw score + ``score_offset``; a score
that is not finite is a Failure of that rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tether.types import Failure, Message, Rollout, Score

__all__ = ["LearnedPart", "TextScorer", "load_learned"]

Text = str | tuple[Message, ...]


class TextScorer(Protocol):
    """What this part asks of a reward model; ``tether.models.reward.RewardModel`` has it."""

    score_offset: float

    def score_texts(
        self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int
    ) -> list[float]: ...


class LearnedPart:
    """Scores rollouts by a reward model, in batches of at most ``token_budget`` padded tokens."""

    def __init__(self, model: TextScorer, token_budget: int = 16_384, name: str = "learned") -> None:
        if not isinstance(token_budget, int) or token_budget < 1:
            raise ValueError(f"token_budget must be a whole number of at least 1, got {token_budget!r}")
        self.model, self.token_budget, self.name = model, token_budget, name

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        prompts = [rollout.prompt.text for rollout in rollouts]
        scores = self.model.score_texts(prompts, [_turn(r) for r in rollouts], token_budget=self.token_budget)
        return [self._result(float(score)) for score in scores]

    def _result(self, raw: float) -> Score | Failure:
        if not math.isfinite(raw):
            return Failure(self.name, f"the reward model gave {raw}")
        return Score(raw + self.model.score_offset, {"raw": raw})


def load_learned(path: str) -> TextScorer:
    """Read a reward model from a folder; torch is imported here and not before."""
    from tether.models.reward import RewardModel

    return RewardModel.load(path)


def _turn(rollout: Rollout) -> Text:
    """The answer in the form of its prompt: a turn after a conversation, plain text after plain text."""
    return rollout.text if isinstance(rollout.prompt.text, str) else (Message("assistant", rollout.text),)
