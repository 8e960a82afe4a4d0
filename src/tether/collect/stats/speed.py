"""How long judgements take: pauses within a person's own pace, and judgements that are too quick to have read the texts.

A pause is harmless (a telephone, a coffee) and is counted, nothing more. Haste is held against a person, so it has a stated bound: what
nobody can read, and a third of the time that the others take for texts of that length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tether.collect.judgement import Choice
from tether.collect.stats.votes import Votes
from tether.stats import Interval, wilson

__all__ = ["FASTEST", "HASTY_PART", "PAUSE_ALARM", "Hasty", "Pace", "Pause", "Speed", "speed"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FASTEST = 200.0  # characters a second; eight times the 238 words a minute of silent reading (Brysbaert 2019)
HASTY_PART = 1 / 3  # of the others' median for texts of that length
PAUSE_ALARM = 0.0005  # false alarms per judgement, where a person's log seconds are normal
_LEAST_OWN, _LEAST_PEOPLE, _LEAST_OTHERS = 20, 3, 10
_PER_BIN, _MOST_BINS = 50, 8
_MAD = 1.482602218505602  # 1 / (3/4 quantile of the normal): makes the median absolute deviation a standard deviation


@dataclass(frozen=True, slots=True)
class Pause:
    """A judgement much slower than its own person's others. ``z``: robust standard deviations of log seconds above that median."""

    judgement_id: str
    annotator: str
    seconds: float
    z: float


@dataclass(frozen=True, slots=True)
class Hasty:
    """A judgement below its bound: ``seconds`` against the ``bound`` in seconds."""

    judgement_id: str
    annotator: str
    seconds: float
    bound: float


@dataclass(frozen=True, slots=True)
class Pace:
    """One person. ``median``: seconds; ``others``: median of what the others take for texts as long as this person's (None where that
    is not known); ``hasty``: share of judgements below their bound, Wilson's interval; ``num_hasty`` of ``hasty.num_units``.
    """

    annotator: str
    median: float
    others: float | None
    hasty: Interval
    num_hasty: int


@dataclass(frozen=True, slots=True)
class Speed:
    """``median``: seconds of a judgement. ``hasty``: the most hasty first; ``pauses``: the longest first. ``num_timed``: judgements with a
    time, without skips; ``num_read``: those of them that can be hasty (no repeats).
    """

    median: float
    people: tuple[Pace, ...]
    hasty: tuple[Hasty, ...]
    pauses: tuple[Pause, ...]
    num_timed: int
    num_read: int
    num_not_positive: int


def speed(votes: Votes, *, confidence: float = 0.95) -> Speed | None:
    """None where no judgement has a time above 0. Skips are left out: they need no reading, or a reason to be typed.

    Hasty is more than FASTEST characters a second over all answers, or below HASTY_PART of the median of other people's judgements of
    texts of that length (bins of equal count; from three people on, and ten judgements of others in the bin). Repeats are quick for a good
    reason and are left out. A pause is held against its own person's median, with that person's scale (1.4826 times the median absolute
    deviation; of all together where that person has fewer than 20 judgements).
    """
    measured = np.isfinite(votes.seconds) & (votes.choice != list(Choice).index(Choice.SKIP))
    timed = measured & (votes.seconds > 0)
    not_positive = int((measured & ~timed).sum())
    if not timed.any():
        return None
    rows = np.flatnonzero(timed)
    again = np.zeros(len(votes.ids), dtype=np.bool_)
    again[votes.judgement[votes.occasion > 0]] = True
    read = rows[~again[rows]]
    others, bounds = _bounds(votes, read)
    below = votes.seconds[read] < bounds
    hasty = [
        Hasty(votes.ids[row], votes.annotators[votes.by[row]], float(votes.seconds[row]), float(bound))
        for row, bound in zip(read[below], bounds[below], strict=True)
    ]
    hasty.sort(key=lambda one: one.seconds / one.bound)
    people = tuple(_paces(votes, read, others, below, confidence))
    return Speed(float(np.median(votes.seconds[rows])), people, tuple(hasty), _pauses(votes, rows), len(rows), len(read), not_positive)


def _bounds(votes: Votes, rows: Ints) -> tuple[Floats, Floats]:
    """(others' median seconds for texts of that length, NaN where not known; the bound below which a judgement is hasty) of each row."""
    seconds, who, characters = votes.seconds[rows], votes.by[rows], votes.characters[rows]
    others = np.full(len(rows), np.nan)
    if len(np.unique(who)) >= _LEAST_PEOPLE:
        order = np.argsort(characters, kind="stable")  # those without a length are last, NaN
        known = int(np.isfinite(characters).sum())
        num_bins = max(1, min(_MOST_BINS, known // _PER_BIN))
        for part in [*np.array_split(order[:known], num_bins), order[known:]]:
            others[part] = _medians_of_others(seconds[part], who[part])
    least = np.where(np.isfinite(characters), characters / FASTEST, 0.0)
    return others, np.fmax(least, HASTY_PART * others)


def _medians_of_others(seconds: Floats, who: Ints) -> Floats:
    """Of each value the median of all values of other people; NaN where those are fewer than ten."""
    order = np.argsort(seconds, kind="stable")
    sorted_s, found = seconds[order], np.full(len(seconds), np.nan)
    for person in np.unique(who):
        own = np.flatnonzero(who[order] == person)
        left = len(seconds) - len(own)
        if left < _LEAST_OTHERS:
            continue
        before = own - np.arange(len(own))  # how many of the others come before each of this person's
        middle = np.array([(left - 1) // 2, left // 2])
        at = middle + np.searchsorted(before, middle, side="right")
        found[order[own]] = sorted_s[at].mean()
    return found


def _paces(votes: Votes, rows: Ints, others: Floats, below: NDArray[np.bool_], confidence: float) -> Iterator[Pace]:
    who = votes.by[rows]
    for person in np.unique(who):
        mine = who == person
        known = others[mine][np.isfinite(others[mine])]
        count = int(below[mine].sum())
        yield Pace(
            votes.annotators[person], float(np.median(votes.seconds[rows][mine])), float(np.median(known)) if len(known) else None,
            wilson(count, int(mine.sum()), confidence=confidence), count,
        )  # fmt: skip


def _pauses(votes: Votes, rows: Ints) -> tuple[Pause, ...]:
    log_s, who = np.log(votes.seconds[rows]), votes.by[rows]
    groups = _groups(who)
    centred = np.empty_like(log_s)
    for group in groups:
        centred[group] = log_s[group] - np.median(log_s[group])
    pooled = _scale(centred)
    found = []
    for group in groups:
        alone = len(group) >= _LEAST_OWN
        own = _scale(centred[group]) if alone else pooled
        bound = _bound(len(group) if alone else len(log_s)) * own
        for at in group[centred[group] > bound] if own > 0 else ():
            row = rows[at]
            found.append(Pause(votes.ids[row], votes.annotators[who[at]], float(votes.seconds[row]), float(centred[at] / own)))
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _groups(who: Ints) -> list[Ints]:
    order = np.argsort(who, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(who[order])) + 1)


def _bound(n: int) -> float:
    """z that a normal value exceeds with chance PAUSE_ALARM when middle and scale come from the same n values.

    The widening over the normal quantile was fitted to simulated samples of 8 to 1000 values (docs/collect-stats.md).
    """
    return NormalDist().inv_cdf(1 - PAUSE_ALARM) * (1 + 7 / n + 40 / n**2)


def _scale(away: Floats) -> float:
    return float(_MAD * np.median(np.abs(away - np.median(away))))
