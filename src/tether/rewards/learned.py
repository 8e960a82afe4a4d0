"""A reward model as a reward part: batched scores, less the model's stored offset.

The reward model renders prompt and answer by the template it was trained with and reads every answer as a
closed turn, which is how the comparisons were read. Value = raw score - ``score_offset``; a score that is not
finite is a Failure of that rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tether.types import Failure, Message, Rollout, Score

__all__ = ["LearnedPart", "TextScorer", "batches_by_length", "load_learned"]

_CHARS_PER_TOKEN = 3  # a careful guess for English; only the size of batches depends on it


class TextScorer(Protocol):
    """What this part asks of a reward model (``tether.models.reward.RewardModel`` has it)."""

    @property
    def score_offset(self) -> float: ...

    def score_texts(
        self, prompts: Sequence[str | tuple[Message, ...]], completions: Sequence[str]
    ) -> Sequence[float]: ...


class LearnedPart:
    """Scores rollouts in batches of about ``token_budget`` padded tokens, longest together."""

    def __init__(self, model: TextScorer, token_budget: int = 8192, name: str = "learned") -> None:
        if token_budget < 1:
            raise ValueError(f"token_budget must be at least 1, got {token_budget}")
        self.model, self.token_budget, self.name = model, token_budget, name

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        lengths = [len(r.prompt_ids) + len(r.text) // _CHARS_PER_TOKEN + 1 for r in rollouts]
        raw: list[float] = [math.nan] * len(rollouts)
        for rows in batches_by_length(lengths, self.token_budget):
            scores = self.model.score_texts(
                [rollouts[i].prompt.text for i in rows], [rollouts[i].text for i in rows]
            )
            for i, score in zip(rows, scores, strict=True):
                raw[i] = float(score)
        return [self._result(score) for score in raw]

    def _result(self, raw: float) -> Score | Failure:
        if not math.isfinite(raw):
            return Failure(self.name, f"the reward model gave {raw}")
        return Score(raw - self.model.score_offset, {"raw": raw})


def batches_by_length(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices in batches with rows * longest <= token_budget, shortest first; a row longer than the budget
    stands alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def load_learned(path: str) -> TextScorer:
    """Read a reward model from a folder; torch is imported here and not before."""
    from tether.models.reward import RewardModel

    return RewardModel.load(path)
