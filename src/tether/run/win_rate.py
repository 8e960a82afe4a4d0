"""Win rates: how often the answer of one policy beats that of another to the same prompt. A tie is one half.

Axes: P prompts, G answers per prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tether.errors import RewardError
from tether.stats import bootstrap_mean, permutation_p_value
from tether.types import Prompt, RolloutGroup

__all__ = ["Judge", "WinRate", "shares_by_judge", "shares_by_scores", "win_rate"]

Judge = Callable[[Prompt, str, str], float | None]
"""(prompt, first answer, second answer) -> 1 the first is better, 0 the second, 0.5 a tie; None: no verdict."""

_MAX_FAILURE_SHARE = 0.1


@dataclass(frozen=True)
class WinRate:
    """Share of wins of ``after`` over ``before``, ties one half, with its bootstrap interval over prompts. ``p_value``: of "0.5"."""

    before: str
    after: str
    by: str
    rate: float
    low: float
    high: float
    confidence: float
    num_prompts: int
    num_unjudged: int
    p_value: float


def shares_by_scores(before_PG: Sequence[Sequence[float]], after_PG: Sequence[Sequence[float]]) -> list[float]:
    """Per prompt: the share of all pairs (one answer of each policy) in which ``after`` scores higher, ties one half; NaN without a pair.

    Example: before [[1, 2]], after [[2, 3]] -> [(1 + 1/2 + 1 + 1) / 4] = [0.875].
    """
    return [_share(before_G, after_G) for before_G, after_G in zip(before_PG, after_PG, strict=True)]


def _share(before_G: Sequence[float], after_G: Sequence[float]) -> float:
    old = np.array([score for score in before_G if not math.isnan(score)])
    new = np.array([score for score in after_G if not math.isnan(score)])
    if not len(old) or not len(new):
        return math.nan
    return float(((new[:, None] > old) + 0.5 * (new[:, None] == old)).mean())


def shares_by_judge(before: Sequence[RolloutGroup], after: Sequence[RolloutGroup], judge: Judge) -> tuple[list[float], int]:
    """Per prompt: the mean verdict for ``after`` over its samples, sample j against sample j, each pair in both orders, so that a liking
    for a place cancels. Identical texts are a tie and are not asked. Also the number of pairs without a verdict.

    A judge that raises gives no verdict; above a tenth of the pairs RewardError names the first reason.
    """
    shares, unjudged, asked, reason = [], 0, 0, ""
    for old, new in zip(before, after, strict=True):
        verdicts = []
        for one, two in zip(old.rollouts, new.rollouts, strict=False):
            asked += 1
            try:
                verdicts.append(_both_orders(judge, one.prompt, one.text, two.text))
            except Exception as error:  # the boundary of a stranger's function: no verdict is data
                unjudged, reason = unjudged + 1, reason or f"{one.prompt.place}: {error}"
        shares.append(float(np.mean(verdicts)) if verdicts else math.nan)
    if unjudged > _MAX_FAILURE_SHARE * asked:
        raise RewardError(f"the judge gave no verdict on {unjudged} of {asked} pairs; the first, of {reason}")
    return shares, unjudged


def _both_orders(judge: Judge, prompt: Prompt, before: str, after: str) -> float:
    if before == after:
        return 0.5
    return (_verdict(judge(prompt, after, before)) + 1.0 - _verdict(judge(prompt, before, after))) / 2


def _verdict(value: float | None) -> float:
    if value is None or not 0 <= value <= 1:
        raise ValueError(f"the judge said {value!r}; expected a number from 0 (the second answer) to 1 (the first)")
    return float(value)


def win_rate(
    before: str, after: str, by: str, shares: Sequence[float], *, confidence: float, seed: int, num_unjudged: int = 0
) -> WinRate:
    """Of per-prompt shares; prompts without one are left out."""
    known = np.array([share for share in shares if not math.isnan(share)])
    interval = bootstrap_mean(known, confidence=confidence, seed=seed)
    p_value = permutation_p_value(np.full(len(known), 0.5), known, seed=seed)
    rate, low, high = interval.estimate, interval.low, interval.high
    return WinRate(before, after, by, rate, low, high, confidence, len(known), num_unjudged, p_value)
