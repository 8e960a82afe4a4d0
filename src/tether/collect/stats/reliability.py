"""Whom to trust: agreement with the rest, with test questions and with oneself, and a latent-class estimate of each person's competence.

The model is Dawid and Skene's (1979) with one parameter a person ("one coin"): each unit has an unknown better answer, and annotator a
prefers it with probability (1 + v_a) / 2, independently of others. Only products v_a v_b can be seen: with outcomes y = +1, 0, -1, two
people agree on average by E[y_a y_b] = v_a v_b. The v are fitted to these products by least squares, weighted by shared units (the
rank-one method of Dalvi et al. 2013, "Aggregating crowdsourced binary ratings"), and shrunk towards their mean in proportion to their
noise (empirical Bayes with a normal prior). Where units differ in difficulty, v_a stays what it says, the correlation of a's choices with
the direction the others go, and ratios v_a / v_b stay those of attention: a person who answers a share c at random has (1 - c) times the
v of one who does not.

Shares have Wilson's interval over prompts (``tether.clusters``): judgements of one prompt are not independent and count for less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tether.agreement import cohen_kappa
from tether.clusters import wilson_clusters
from tether.collect.stats.votes import Votes
from tether.stats import Interval

__all__ = [
    "Attention", "Competence", "PairAgreement", "agreement_with_rest", "attention", "categories", "competence", "gold_accuracy",
    "pair_agreements", "pairs_within", "self_consistency",
]  # fmt: skip

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_CATEGORIES = 4  # first, tie, second, both bad: the first three in order
MIRRORED = np.array([2, 1, 0, 3])  # the category where the unit's answers are called the other way round
MIN_SHARED = 10  # units that a person must share with others before anything is said of that person
LOW_RELIABILITY = 0.5  # of the typical person's; an interval wholly below is flagged


def categories(votes: Votes) -> Ints:
    """0 first, 1 tie, 2 second, 3 both bad, for each vote."""
    return np.where(votes.both_bad, 3, 1 - votes.outcome)


@dataclass(frozen=True, slots=True)
class Competence:
    """``loading``: v_a as measured, with a normal interval; ``relative``: v_a over the typical v (the median of all but the careless);
    ``shrunk``: ``relative``, shrunk.

    Relative to others, 1 is a typical person, 0 someone whose clicks are coin tosses, below 0 someone who has the buttons turned round. The
    interval is that of the measurement alone (shrinking pulls the careless few towards the many); use ``shrunk`` to rank and to weight.
    """

    annotator: str
    num_units: int
    loading: Interval
    relative: Interval
    shrunk: float

    @property
    def unreliable(self) -> bool:
        """The whole interval of ``relative`` lies below one half."""
        return self.relative.high < LOW_RELIABILITY


def competence(votes: Votes, *, confidence: float = 0.95) -> tuple[Competence, ...]:
    """One entry per annotator who shares at least 10 units with others; empty where fewer than three people do, as v is not determined
    then.
    """
    unit, who, outcome = _shared(votes)
    num_people = len(votes.annotators)
    left, right = pairs_within(unit)
    if len(np.unique(who)) < 3 or len(left) == 0:
        return ()
    a, b, product = who[left], who[right], outcome[left] * outcome[right]
    per_unit = 1.0 / (np.bincount(unit)[unit[left]] - 1)  # a person's weight in a unit is 1, however many others judged it
    loading = _rank_one(a, b, product, per_unit, num_people)
    se = _standard_errors(unit[left], who[left], who[right], outcome[left], outcome[right], per_unit, loading)
    known = np.flatnonzero(np.isfinite(se))
    if len(known) < 3:
        return ()
    typical, typical_se = _typical(loading[known], se[known])
    if typical <= 0:
        return ()
    shrunk = _shrink(loading[known], se[known]) / typical
    z, units = NormalDist().inv_cdf((1 + confidence) / 2), np.bincount(who, minlength=num_people)

    def around(middle: float, error: float, p: int) -> Interval:
        return Interval(float(middle), float(middle - z * error), float(middle + z * error), confidence, int(units[p]))

    def one(p: int, share: float) -> Competence:
        relative = loading[p] / typical
        error = float(np.hypot(se[p], relative * typical_se)) / typical
        return Competence(votes.annotators[p], int(units[p]), around(loading[p], se[p], p), around(relative, error, p), float(share))

    return tuple(one(p, share) for p, share in zip(known.tolist(), shrunk, strict=True))


def _typical(v: Floats, se: Floats) -> tuple[float, float]:
    """The median of those who are not far below the median (the careless should not lower the mark), and its standard error."""
    kept = v > LOW_RELIABILITY * np.median(v)
    if not kept.any():
        return 0.0, 0.0
    return float(np.median(v[kept])), float(np.sqrt(np.pi / 2 * np.mean(se[kept] ** 2) / kept.sum()))


@dataclass(frozen=True, slots=True)
class Attention:
    """How much weaker judgements are than a typical person's: ``single`` the mean of everybody's relative v, weighted by judgements;
    ``pair`` the mean of the product of two different people's. Both are 1 where nobody is careless.
    """

    single: float = 1.0
    pair: float = 1.0


def attention(people: Sequence[Competence]) -> Attention:
    """Whoever is not flagged as unreliable counts as 1, the others with their ``relative``, cut to [0, 1]."""
    if len(people) < 2:
        return Attention()
    weight = np.array([p.num_units for p in people], dtype=np.float64)
    weight /= weight.sum()
    share = np.array([min(1.0, max(0.0, p.relative.estimate)) if p.unreliable else 1.0 for p in people])
    single = float(weight @ share)
    pair = float((single**2 - weight**2 @ share**2) / (1 - weight @ weight))
    return Attention(min(1.0, single), min(1.0, pair))  # rounding may leave a little more than 1


def _shared(votes: Votes) -> tuple[Ints, Ints, Floats]:
    """(unit from 0, annotator, outcome) of first votes on units that two or more people judged, sorted by unit."""
    keep = votes.first_votes()
    unit = votes.unit[keep]
    many = np.bincount(unit, minlength=votes.num_units)[unit] >= 2
    unit, who, outcome = unit[many], votes.annotator[keep][many], votes.outcome[keep][many].astype(np.float64)
    order = np.argsort(unit, kind="stable")
    return np.unique(unit[order], return_inverse=True)[1], who[order], outcome[order]


def pairs_within(sorted_units: Ints) -> tuple[Ints, Ints]:
    """Row numbers of all ordered pairs of rows of one unit."""
    n = np.bincount(sorted_units) if len(sorted_units) else np.zeros(0, dtype=np.int64)
    start = np.repeat(np.cumsum(n) - n, n)
    size = np.repeat(n, n)
    left = np.repeat(np.arange(len(sorted_units)), size)
    right = np.repeat(start, size) + np.arange(len(left)) - np.repeat(np.cumsum(size) - size, size)
    keep = left != right
    return left[keep], right[keep]


def _rank_one(a: Ints, b: Ints, product: Floats, weight: Floats, num_people: int) -> Floats:
    """v that minimises sum of weight (product - v_a v_b)^2 over pairs, one coordinate after the other is exact, all at once is damped."""
    key, inverse = np.unique(a * num_people + b, return_inverse=True)
    total = np.bincount(inverse, weights=weight * product)
    count = np.bincount(inverse, weights=weight)
    rows, columns = key // num_people, key % num_people
    v = np.full(num_people, np.sqrt(max(float(total.sum() / count.sum()), 0.01)))
    for _ in range(500):
        above = np.bincount(rows, weights=total * v[columns], minlength=num_people)
        below = np.bincount(rows, weights=count * v[columns] ** 2, minlength=num_people)
        new = np.where(below > 0, above / np.maximum(below, 1e-12), 0.0)
        moved, v = np.abs(new - v).max(), (v + np.clip(new, -1.5, 1.5)) / 2
        if moved < 1e-9:
            break
    return v


def _standard_errors(unit: Ints, a: Ints, b: Ints, y_a: Floats, y_b: Floats, weight: Floats, v: Floats) -> Floats:
    """Of each v_a with the others' held fixed: a ratio of sums over units, linearised. NaN below 10 shared units; at
    least 1 / n, as n units without a contradiction are no proof.
    """
    num_people = len(v)
    key, inverse = np.unique(unit * num_people + a, return_inverse=True)
    who = key % num_people
    share = np.bincount(inverse, weights=weight * v[b] ** 2)
    residual = np.bincount(inverse, weights=weight * y_a * y_b * v[b]) - v[who] * share
    below = np.bincount(who, weights=share, minlength=num_people)
    n = np.bincount(who, minlength=num_people)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.bincount(who, weights=residual**2, minlength=num_people) / below**2 * n / (n - 1)
    return np.where((n >= MIN_SHARED) & (below > 1e-6), np.maximum(np.sqrt(variance), 1 / np.maximum(n, 1)), np.nan)


def _shrink(v: Floats, se: Floats) -> Floats:
    """Empirical Bayes with the between-person variance of DerSimonian and Laird (1986): posterior means."""
    w = 1 / se**2
    middle = np.sum(w * v) / np.sum(w)
    excess = np.sum(w * (v - middle) ** 2) - (len(v) - 1)
    between = max(0.0, float(excess / (np.sum(w) - np.sum(w**2) / np.sum(w))))
    total = between + se**2
    middle = np.sum(v / total) / np.sum(1 / total)
    return middle + between / total * (v - middle)


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Two people on the units both judged: raw agreement and Cohen's kappa, over first, tie, second, both bad. kappa is that of
    the units and their mirror images together, since which answer is called first is arbitrary.
    """

    first: str
    second: str
    num_units: int
    raw: Interval
    kappa: Interval


def pair_agreements(votes: Votes, *, seed: int, least: int = 10, most: int = 30, confidence: float = 0.95) -> tuple[PairAgreement, ...]:
    """The pairs of people with the most shared units, at least ``least``, at most ``most`` pairs."""
    keep = votes.first_votes()
    order = np.argsort(votes.unit[keep], kind="stable")
    unit, who, category = (column[keep][order] for column in (votes.unit, votes.annotator, categories(votes)))
    left, right = pairs_within(np.unique(unit, return_inverse=True)[1])
    ahead = who[left] < who[right]
    left, right = left[ahead], right[ahead]
    pair = who[left] * len(votes.annotators) + who[right]
    keys, inverse, counts = np.unique(pair, return_inverse=True, return_counts=True)
    found = []
    for index in np.argsort(-counts, kind="stable")[:most]:
        if counts[index] < least:
            break
        rows = inverse == index
        one, other = category[left[rows]], category[right[rows]]
        both_ways = np.r_[one, MIRRORED[one]], np.r_[other, MIRRORED[other]]
        prompts = votes.unit_prompt[unit[left[rows]]]
        kappa = cohen_kappa(*both_ways, NUM_CATEGORIES, clusters=np.tile(prompts, 2), seed=seed, confidence=confidence)
        names = (votes.annotators[keys[index] // len(votes.annotators)], votes.annotators[keys[index] % len(votes.annotators)])
        found.append(PairAgreement(*names, int(counts[index]), wilson_clusters(one == other, prompts, confidence=confidence), kappa))
    return tuple(found)


def agreement_with_rest(votes: Votes, *, confidence: float = 0.95) -> dict[str, Interval]:
    """Of each annotator who shares units: the share of the others' judgements of the same units that are the same category, mean over
    units.
    """
    keep = votes.first_votes()
    unit, prompt, who, category = votes.unit[keep], votes.prompt[keep], votes.annotator[keep], categories(votes)[keep]
    cell = np.bincount(unit * NUM_CATEGORIES + category, minlength=votes.num_units * NUM_CATEGORIES)
    n = np.bincount(unit, minlength=votes.num_units)[unit]
    others = (cell[unit * NUM_CATEGORIES + category] - 1) / np.maximum(n - 1, 1)
    return {
        votes.annotators[p]: wilson_clusters(others[rows], prompt[rows], confidence=confidence)
        for p in range(len(votes.annotators))
        if (rows := (who == p) & (n >= 2)).any()
    }


def gold_accuracy(votes: Votes, *, confidence: float = 0.95) -> tuple[Interval | None, dict[str, Interval]]:
    """(everybody's, by annotator): share of judged test questions answered as known; skipped ones are left out."""
    known = np.isfinite(votes.gold_hit)
    hit, who, prompt = votes.gold_hit[known], votes.by[known], votes.on_prompt[known]
    by_person = {
        votes.annotators[p]: wilson_clusters(hit[who == p], prompt[who == p], confidence=confidence) for p in np.unique(who)
    }
    return (wilson_clusters(hit, prompt, confidence=confidence) if len(hit) else None), by_person


def self_consistency(votes: Votes, *, confidence: float = 0.95) -> tuple[Interval | None, Interval | None, dict[str, Interval]]:
    """(all repeats, those shown with the sides swapped, by annotator): share of first repeats in the same category as the first
    judgement.
    """
    order = np.lexsort((votes.occasion, votes.annotator, votes.unit))
    order = order[~votes.gold[order] & (votes.occasion[order] <= 1)]
    first, again = order[:-1], order[1:]
    pair = (votes.unit[first] == votes.unit[again]) & (votes.annotator[first] == votes.annotator[again])
    first, again = first[pair], again[pair]
    if len(first) == 0:
        return None, None, {}
    category = categories(votes)
    same, who, prompt = category[first] == category[again], votes.annotator[first], votes.prompt[first]
    swapped = votes.side[first] != votes.side[again]

    def share(rows: NDArray[np.bool_]) -> Interval:
        return wilson_clusters(same[rows], prompt[rows], confidence=confidence)

    people = {votes.annotators[p]: share(who == p) for p in np.unique(who)}
    return share(np.ones(len(same), dtype=np.bool_)), share(swapped) if swapped.any() else None, people
