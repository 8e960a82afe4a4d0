"""A reward model as a reward part: batched scores plus the model's stored offset.

The reward model renders prompt and answer by the template it was trained with and reads every answer as a
closed turn, cut or not, which is how the comparisons were read. Value = raw score + ``score_offset``; a score
that is not finite is a Failure of that rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tether.records.texts import Text, answer_like
from tether.types import Failure, Rollout, Score

__all__ = ["LearnedPart", "SpreadScorer", "TextScorer", "load_learned"]


class TextScorer(Protocol):
    """What this part asks of a reward model; ``tether.models.reward.RewardModel`` has it."""

    score_offset: float

    def score_texts(
        self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int
    ) -> list[float]: ...


@runtime_checkable
class SpreadScorer(TextScorer, Protocol):
    """A scorer that may have several heads: each score with the standard deviation over them, NaN where there is one head."""

    def score_texts_with_std(
        self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int
    ) -> Sequence[MeanAndStd]: ...


class MeanAndStd(Protocol):
    """``tether.models.reward.ScoredText`` has these."""

    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...


class LearnedPart:
    """Scores rollouts by a reward model, in batches of at most ``token_budget`` padded tokens. A model with several heads has the standard
    deviation over them among the components, as ``head_std``.
    """

    def __init__(self, model: TextScorer, token_budget: int = 16_384, name: str = "learned") -> None:
        if not isinstance(token_budget, int) or token_budget < 1:
            raise ValueError(f"token_budget must be a whole number of at least 1, got {token_budget!r}")
        self.model, self.token_budget, self.name = model, token_budget, name

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        texts = [rollout.prompt.text for rollout in rollouts], [answer_like(r.prompt.text, r.text) for r in rollouts]
        if isinstance(self.model, SpreadScorer):
            scored = self.model.score_texts_with_std(*texts, token_budget=self.token_budget)
            return [self._result(one.mean, one.std) for one in scored]
        return [self._result(float(score)) for score in self.model.score_texts(*texts, token_budget=self.token_budget)]

    def _result(self, raw: float, std: float = math.nan) -> Score | Failure:
        if not math.isfinite(raw):
            return Failure(self.name, f"the reward model gave {raw}")
        spread = {} if math.isnan(std) else {"head_std": std}
        return Score(raw + self.model.score_offset, {"raw": raw, **spread})


def load_learned(path: str) -> TextScorer:
    """Read a reward model from a folder; torch is imported here and not before."""
    from tether.models.reward import RewardModel

    return RewardModel.load(path)
