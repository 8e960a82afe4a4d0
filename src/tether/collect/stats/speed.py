"""Judgements and people that are much faster or slower than the rest, on log seconds, with robust scale."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tether.collect.stats.votes import Votes

__all__ = ["JUDGEMENT_ALARM", "PERSON_ALARM", "Speed", "SpeedFlag", "speed"]

JUDGEMENT_ALARM = 0.001  # false alarms per judgement, where a person's log seconds are normal
PERSON_ALARM = 0.01  # false alarms per person, where people's log medians are normal
_WIDENING = {JUDGEMENT_ALARM: (7, 40), PERSON_ALARM: (5, 10)}
_LEAST_OWN, _LEAST_PEOPLE = 20, 8
_MAD = 1.482602218505602  # 1 / (3/4 quantile of the normal): makes the median absolute deviation a standard deviation


@dataclass(frozen=True, slots=True)
class SpeedFlag:
    """``name``: a judgement id or an annotator; ``z``: robust standard deviations from the middle, below 0 is fast."""

    name: str
    seconds: float
    z: float

    @property
    def fast(self) -> bool:
        """Too fast, not too slow."""
        return self.z < 0


@dataclass(frozen=True, slots=True)
class Speed:
    """``median``: seconds of a judgement; ``people``: median seconds of each; the flags; ``num_timed``: judgements with a time."""

    median: float
    people: tuple[tuple[str, float], ...]
    judgements: tuple[SpeedFlag, ...]
    annotators: tuple[SpeedFlag, ...]
    num_timed: int
    num_not_positive: int


def speed(votes: Votes) -> Speed | None:
    """None where no judgement has a time above 0.

    A judgement is held against its own annotator's median, with the annotator's scale (1.4826 times the median absolute deviation; of all
    annotators together where that person has fewer than 20 judgements). A person's median is held against the other people's medians, where
    there are at least 8. Quantiles of the normal are widened for the noise of the scale, so that the stated rates of false alarms hold.
    """
    timed = np.isfinite(votes.seconds) & (votes.seconds > 0)
    not_positive = int((np.isfinite(votes.seconds) & ~timed).sum())
    if not timed.any():
        return None
    rows = np.flatnonzero(timed)
    log_s, who = np.log(votes.seconds[rows]), votes.by[rows]
    order = np.argsort(who, kind="stable")
    people, starts, counts = np.unique(who[order], return_index=True, return_counts=True)
    groups = [order[start : start + count] for start, count in zip(starts, counts, strict=True)]
    middles = np.array([np.median(log_s[group]) for group in groups])
    centred = np.empty_like(log_s)
    for group, middle in zip(groups, middles, strict=True):
        centred[group] = log_s[group] - middle
    pooled = _scale(centred)
    z, bounds = np.empty_like(log_s), np.empty_like(log_s)
    for group in groups:
        alone = len(group) >= _LEAST_OWN
        own = _scale(centred[group]) if alone else pooled
        bounds[group] = _bound(JUDGEMENT_ALARM, len(group) if alone else len(log_s))
        z[group] = centred[group] / own if own > 0 else 0.0
    flagged = np.flatnonzero(np.abs(z) > bounds)
    flags = tuple(SpeedFlag(votes.ids[rows[i]], float(votes.seconds[rows[i]]), float(z[i])) for i in flagged[np.argsort(z[flagged])])
    names = [votes.annotators[p] for p in people]
    medians = tuple((name, float(np.exp(m))) for name, m in zip(names, middles, strict=True))
    return Speed(float(np.exp(np.median(log_s))), medians, flags, _people(names, middles), len(rows), not_positive)


def _people(names: list[str], middles: NDArray[np.float64]) -> tuple[SpeedFlag, ...]:
    n = len(middles)
    if n < _LEAST_PEOPLE:
        return ()
    away = middles - np.median(middles)
    scale = _scale(away)
    if scale == 0:
        return ()
    z, bound = away / scale, _bound(PERSON_ALARM, n)
    return tuple(SpeedFlag(names[i], float(np.exp(middles[i])), float(z[i])) for i in np.argsort(z) if abs(z[i]) > bound)


def _bound(alarm: float, n: int) -> float:
    """|z| that a normal value exceeds with chance ``alarm`` when middle and scale come from the same n values.

    The widening over the normal quantile was fitted to simulated samples of 8 to 1000 values (docs/collect-stats.md).
    """
    by_n, by_square = _WIDENING[alarm]
    return NormalDist().inv_cdf(1 - alarm / 2) * (1 + by_n / n + by_square / n**2)


def _scale(away: NDArray[np.float64]) -> float:
    return float(_MAD * np.median(np.abs(away - np.median(away))))
