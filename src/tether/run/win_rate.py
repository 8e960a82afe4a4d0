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

__all__ = ["Judge", "Judged", "WinRate", "shares_by_judge", "shares_by_scores", "try_judge", "win_rate"]

Judge = Callable[[Prompt, str, str], float | None]
"""(prompt, first answer, second answer) -> 1 the first is better, 0 the second, 0.5 a tie; None: no verdict."""

_MAX_FAILURE_SHARE = 0.1
_TRIAL = ("Yes.", "No, I do not think so.")  # unlike in every way that a simple judge may look at


@dataclass(frozen=True)
class WinRate:
    """Share of wins of ``after`` over ``before``, ties one half, with its bootstrap interval over prompts. ``p_value``: of "0.5".

    ``num_pairs`` is what a judge was to judge, 0 where scores decide. Without any verdict all numbers are NaN.
    """

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
    num_pairs: int = 0


@dataclass(frozen=True)
class Judged:
    """Per prompt the share of wins, NaN without a verdict; ``num_unjudged`` of ``num_pairs`` pairs have none (None, or an error)."""

    shares: tuple[float, ...]
    num_unjudged: int
    num_pairs: int


class _BrokenJudge(Exception):
    """A judge that raised or returned no verdict: what it did, in words."""


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


def try_judge(judge: Judge, prompt: Prompt, name: str = "") -> None:
    """Ask the judge once about two trivial answers, before anything is generated. Raises RewardError that says what it did."""
    try:
        _verdict(judge, prompt, *_TRIAL, name)
    except _BrokenJudge as error:
        raise RewardError(
            f"{error}, asked about {_TRIAL[0]!r} and {_TRIAL[1]!r} on {prompt.place} before anything was generated. "
            "Expected a function (prompt, first, second) -> a number from 0 to 1 or None"
        ) from error.__cause__


def shares_by_judge(before: Sequence[RolloutGroup], after: Sequence[RolloutGroup], judge: Judge, name: str = "") -> Judged:
    """Per prompt: the mean verdict for ``after`` over its samples, sample j against sample j, each pair in both orders, so that a liking
    for a place cancels. Identical texts are a tie and are not asked. ``name`` is what messages call the judge.

    None in either order is no verdict on the pair, and so is an error; above a tenth of errors RewardError names the first.
    """
    shares, unjudged, asked, failures = [], 0, 0, []
    for old, new in zip(before, after, strict=True):
        verdicts = []
        for one, two in zip(old.rollouts, new.rollouts, strict=False):
            asked += 1
            try:
                verdict = _both_orders(judge, one.prompt, one.text, two.text, name)
            except _BrokenJudge as error:  # no verdict is data
                failures.append(f"{error}, on {one.prompt.place}")
                verdict = None
            if verdict is None:
                unjudged += 1
            else:
                verdicts.append(verdict)
        shares.append(float(np.mean(verdicts)) if verdicts else math.nan)
    if len(failures) > _MAX_FAILURE_SHARE * asked:
        raise RewardError(
            f"the judge failed on {len(failures)} of {asked} pairs, the first time so: {failures[0]}. Mend the judge and ask again"
        )
    return Judged(tuple(shares), unjudged, asked)


def _both_orders(judge: Judge, prompt: Prompt, before: str, after: str, name: str) -> float | None:
    if before == after:
        return 0.5
    first, second = _verdict(judge, prompt, after, before, name), _verdict(judge, prompt, before, after, name)
    return None if first is None or second is None else (first + 1.0 - second) / 2


def _verdict(judge: Judge, prompt: Prompt, first: str, second: str, name: str) -> float | None:
    called = f"the judge {name}".rstrip()
    try:
        value = judge(prompt, first, second)
    except Exception as error:  # the boundary of a stranger's function
        raise _BrokenJudge(f"{called} raised {type(error).__name__}: {error}") from error
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise _BrokenJudge(
            f"{called} returned {value!r:.200}; expected a number from 0 to 1 or None (1: the first answer is better, 0: the second)"
        )
    return number


def win_rate(
    before: str, after: str, by: str, shares: Sequence[float], *, confidence: float, seed: int, num_unjudged: int = 0, num_pairs: int = 0
) -> WinRate:
    """Of per-prompt shares; prompts without one are left out."""
    known = np.array([share for share in shares if not math.isnan(share)])
    if not len(known):
        return WinRate(before, after, by, math.nan, math.nan, math.nan, confidence, 0, num_unjudged, math.nan, num_pairs)
    interval = bootstrap_mean(known, confidence=confidence, seed=seed)
    p_value = permutation_p_value(np.full(len(known), 0.5), known, seed=seed)
    rate, low, high = interval.estimate, interval.low, interval.high
    return WinRate(before, after, by, rate, low, high, confidence, len(known), num_unjudged, p_value, num_pairs)
