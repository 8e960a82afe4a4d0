"""Agreement and rates of a collection, all from one bootstrap over prompts: answers to one prompt are not independent of each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tether.agreement import Level, alpha_from_coincidences, coincidences, fleiss_kappa_from_sums, raw_agreement_from_coincidences
from tether.collect.stats.reliability import MIRRORED, NUM_CATEGORIES, categories, pairs_within
from tether.collect.stats.votes import Votes
from tether.stats import Interval, bootstrap_sums, wilson

__all__ = ["Agreement", "agreement"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs of judgements of one unit by two people. ``raw``, ``alpha_nominal``: over first, tie, second, both bad. ``alpha_ordinal``:
    over first < tie < second, both bad as a tie. Which answer of a unit is called first is arbitrary, so chance agreement (alpha, kappa) is
    that of the units and their mirror images together: first and second are as common as each other by construction. ``fleiss``: of the
    units with ``fleiss_annotators`` people, the most common number.
    ``decided``: same preference, of pairs that both decided; ``decided_much``, ``decided_slight``: of those whose first one said so.
    Rates are of judgements of two answers. None where nothing can be said.
    """

    raw: Interval | None
    decided: Interval | None
    decided_much: Interval | None
    decided_slight: Interval | None
    alpha_nominal: Interval | None
    alpha_ordinal: Interval | None
    fleiss: Interval | None
    fleiss_annotators: int
    fleiss_units: int
    num_shared_units: int
    tie_share: Interval | None
    both_bad_share: Interval | None
    much_share: Interval | None


def agreement(votes: Votes, *, seed: int, confidence: float = 0.95, num_resamples: int = 1000) -> Agreement:
    """Test questions and items that a strategy chose are left out; of an annotator's repeats only the first judgement counts. Rates are
    over all ordinary items.
    """
    keep = votes.first_votes() & votes.random
    order = np.flatnonzero(keep)[np.argsort(votes.unit[keep], kind="stable")]
    category = categories(votes)
    per_unit, fleiss_annotators, num_shared = _unit_columns(votes, order, category)
    per_prompt = _add(votes.unit_prompt, per_unit, len(votes.prompts))
    sums = np.column_stack([per_prompt, _pair_columns(votes, order), _rate_columns(votes)])
    sums = sums[sums.any(axis=1)]
    if len(sums) == 0:
        return Agreement(None, None, None, None, None, None, None, 0, 0, 0, None, None, None)
    found = bootstrap_sums(sums, _statistics, seed=seed, confidence=confidence, num_resamples=num_resamples)
    kept = [None if np.isnan(one.estimate) else one for one in found]
    totals = sums.sum(axis=0)
    nominal_sums = totals[_NOMINAL].reshape(NUM_CATEGORIES, NUM_CATEGORIES)
    shares = {0: (nominal_sums.trace(), nominal_sums.sum())} | {place: (totals[a], totals[b]) for place, (a, b) in _SHARES.items()}
    for place, (hits, trials) in shares.items():
        if hits in {0, trials} and trials > 0:  # resamples show no spread
            events = max(1, round(trials / 2 if place in _OF_PAIRS else trials))
            kept[place] = wilson(events if hits else 0, events, confidence=confidence)
    raw, nominal, ordinal, fleiss, decided, much, slight, tie, bad, much_share = kept
    fleiss_units = round(float(totals[_FLEISS][:-1].sum()))
    by_fleiss = (fleiss, fleiss_annotators, fleiss_units)
    return Agreement(raw, decided, much, slight, nominal, ordinal, *by_fleiss, num_shared, tie, bad, much_share)


# Columns of the sums: nominal coincidences, ordinal coincidences, Fleiss, then (hits, trials) of shares.
_NOMINAL = slice(0, NUM_CATEGORIES**2)
_ORDINAL = slice(_NOMINAL.stop, _NOMINAL.stop + 9)
_FLEISS = slice(_ORDINAL.stop, _ORDINAL.stop + NUM_CATEGORIES + 1)
_AT = _FLEISS.stop
# Place of the statistic -> columns of its hits and trials.
_COLUMNS = {4: (0, 1), 5: (2, 3), 6: (4, 5), 7: (6, 8), 8: (7, 8), 9: (9, 10)}
_OF_PAIRS = {0, 4, 5, 6}
"""Of two people's judgements: n people on a unit count n in the sums, and are at least n / 2 pairs that say something of their own."""
_SHARES = {place: (_AT + hits, _AT + trials) for place, (hits, trials) in _COLUMNS.items()}


def _statistics(sums: Floats) -> Floats:
    nominal = _both_ways(sums[:, _NOMINAL].reshape(-1, NUM_CATEGORIES, NUM_CATEGORIES), MIRRORED)
    ordinal = _both_ways(sums[:, _ORDINAL].reshape(-1, 3, 3), MIRRORED[:3])
    fleiss = sums[:, _FLEISS]
    fleiss = np.column_stack([(fleiss[:, :-1] + fleiss[:, MIRRORED]) / 2, fleiss[:, -1]])  # the agreement within a unit has no direction
    columns = [
        raw_agreement_from_coincidences(nominal),
        alpha_from_coincidences(nominal, Level.NOMINAL),
        alpha_from_coincidences(ordinal, Level.ORDINAL),
        fleiss_kappa_from_sums(fleiss),
    ]
    return np.stack([*columns, *(sums[:, hits] / sums[:, trials] for hits, trials in _SHARES.values())], axis=1)


def _both_ways(coincidences_RKK: Floats, mirrored: Ints) -> Floats:
    """Those of the units and of their mirror images."""
    return coincidences_RKK + coincidences_RKK[:, mirrored][:, :, mirrored]


def _unit_columns(votes: Votes, order: Ints, category: Ints) -> tuple[Floats, int, int]:
    """(coincidences and Fleiss' sums of each unit, the most common number of people, units that several people judged)."""
    if len(order) == 0:
        return np.zeros((votes.num_units, _AT)), 0, 0
    units = np.r_[votes.unit[order], votes.num_units]  # one more unit, dropped again, so that every unit has a row
    nominal = coincidences(units, np.r_[category[order], 0], NUM_CATEGORIES)[:-1].reshape(votes.num_units, -1)
    ordinal = coincidences(units, np.r_[1 - votes.outcome[order], 0], 3)[:-1].reshape(votes.num_units, -1)
    cells = np.bincount(votes.unit[order] * NUM_CATEGORIES + category[order], minlength=votes.num_units * NUM_CATEGORIES)
    counts = cells.reshape(votes.num_units, NUM_CATEGORIES).astype(np.float64)
    people = counts.sum(axis=1).astype(np.int64)
    shared = people[people >= 2]
    usual = int(np.bincount(shared).argmax()) if len(shared) else 0
    fleiss = np.column_stack([counts / max(usual, 1), (counts * (counts - 1)).sum(axis=1) / max(usual * (usual - 1), 1)])
    fleiss[people != usual] = 0
    return np.column_stack([nominal, ordinal, fleiss]), usual, len(shared)


def _pair_columns(votes: Votes, order: Ints) -> Floats:
    """Per prompt: (same preference, pairs) of ordered pairs that both decided; then of those whose first says "much", "slight"."""
    left, right = pairs_within(np.unique(votes.unit[order], return_inverse=True)[1])
    left, right = order[left], order[right]
    weight = 1.0 / (np.bincount(votes.unit[order], minlength=votes.num_units)[votes.unit[left]] - 1)
    both = (votes.outcome[left] != 0) & (votes.outcome[right] != 0)
    same = both & (votes.outcome[left] == votes.outcome[right])
    much, slight = votes.strength[left] == 1, votes.strength[left] == 0
    columns = [same, both, same & much, both & much, same & slight, both & slight]
    return _add(votes.prompt[left], np.stack(columns, axis=1) * weight[:, None], len(votes.prompts))


def _rate_columns(votes: Votes) -> Floats:
    """Per prompt: ties, both bad, judgements of two answers; much, judgements with a strength."""
    judged = ~votes.ranked & ~votes.gold
    tie, bad = judged & (votes.outcome == 0) & ~votes.both_bad, judged & votes.both_bad
    asked = judged & (votes.strength >= 0)
    columns = [tie, bad, judged, asked & (votes.strength == 1), asked]
    return _add(votes.prompt, np.stack(columns, axis=1).astype(np.float64), len(votes.prompts))


def _add(groups: Ints, rows: Floats, num_groups: int) -> Floats:
    return np.stack([np.bincount(groups, weights=column, minlength=num_groups) for column in rows.T], axis=1).astype(np.float64)
