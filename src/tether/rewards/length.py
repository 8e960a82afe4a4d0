"""Lengths: a band that is wanted, and DAPO's penalty of overlong answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tether.rewards.words import count_words, split_words
from tether.types import Rollout, Score

__all__ = ["LengthPart", "OverlongPart", "band_score", "overlong_penalty"]


@dataclass(frozen=True, slots=True)
class LengthPart:
    """1 for a length in [low, high], falling in a straight line to 0 at length 0 and at high + falloff.

    ``unit``: "words" of the text, or "tokens" that the policy drew, its end token included.
    """

    low: int
    high: int
    falloff: int
    unit: Literal["words", "tokens"] = "words"
    name: str = "length"

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"expected 1 <= low <= high, got low = {self.low}, high = {self.high}")
        if self.falloff < 1:
            raise ValueError(f"falloff must be at least 1 {self.unit}, got {self.falloff}")
        if self.unit not in ("words", "tokens"):
            raise ValueError(f"unit must be 'words' or 'tokens', got {self.unit!r}")

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        lengths = [self._length(rollout) for rollout in rollouts]
        return [
            Score(band_score(n, self.low, self.high, self.falloff), {self.unit: float(n)}) for n in lengths
        ]

    def _length(self, rollout: Rollout) -> int:
        if self.unit == "words":
            return count_words(split_words(rollout.text))
        return len(rollout.completion.token_ids)


@dataclass(frozen=True, slots=True)
class OverlongPart:
    """The soft penalty of overlong answers, -1 to 0 (DAPO, 2503.14476 eq. 13), over the tokens that the
    policy drew.
    """

    max_length: int
    cache: int
    name: str = "overlong"

    def __post_init__(self) -> None:
        if not 1 <= self.cache <= self.max_length:
            raise ValueError(
                f"expected 1 <= cache <= max_length, got cache = {self.cache}, max_length = {self.max_length}"
            )

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
        return [
            Score(overlong_penalty(n, self.max_length, self.cache), {"tokens": float(n)}) for n in lengths
        ]


def band_score(length: float, low: float, high: float, falloff: float) -> float:
    """length/low below the band, 1 in it, 1 - (length - high)/falloff above it, never below 0. Example: (45,
    8, 30, 30) -> 0.5.
    """
    if length < low:
        return max(0.0, length / low)
    return 1.0 if length <= high else max(0.0, 1.0 - (length - high) / falloff)


def overlong_penalty(length: int, max_length: int, cache: int) -> float:
    """0 if L <= Lmax - c; ((Lmax - c) - L)/c if L <= Lmax; -1 beyond. Example: L = 91, Lmax = 100, c = 20 ->
    -0.55.
    """
    if length <= max_length - cache:
        return 0.0
    return ((max_length - cache) - length) / cache if length <= max_length else -1.0
