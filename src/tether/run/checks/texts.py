"""What a set of answers looks like. An answer is a sequence of anything hashable: token ids, or words. No torch here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["correlation", "distinctness", "pooled_share", "repeat_share"]

Answer = Sequence[Hashable]


def repeat_share(answer: Answer, n: int = 3) -> float:
    """1 - unique / total n-grams of one answer; 0 when it is shorter than n. Example: "a b a b a b" by words -> 0.5."""
    grams = _grams(answer, n)
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def pooled_share(answers: Sequence[Answer], n: int = 3) -> float:
    """Share of the commonest n-gram among all n-grams of all answers; 0 without n-grams. It does not see mode collapse: 100 times the
    same answer of 50 different words gives 1 / 48."""
    pooled = Counter(gram for answer in answers for gram in _grams(answer, n))
    return max(pooled.values()) / pooled.total() if pooled else 0.0


def distinctness(answers: Sequence[Answer]) -> list[float]:
    """1 / (how often the answer occurs) for every answer: its mean is distinct answers / answers, 1 / n under complete collapse."""
    found = Counter(tuple(answer) for answer in answers)
    return [1.0 / found[tuple(answer)] for answer in answers]


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's r over the pairs that are finite; NaN with fewer than three, or where one side never varies."""
    pairs = np.array([(a, b) for a, b in zip(one, other, strict=True) if math.isfinite(a) and math.isfinite(b)])
    if len(pairs) < 3 or np.ptp(pairs, axis=0).min() == 0:
        return math.nan
    return float(np.corrcoef(pairs.T)[0, 1])


def _grams(answer: Answer, n: int) -> list[tuple[Hashable, ...]]:
    return [tuple(answer[i : i + n]) for i in range(len(answer) - n + 1)]
