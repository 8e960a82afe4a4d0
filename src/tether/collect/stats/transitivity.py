"""Do the preferences among the answers to one prompt contradict each other? Cycles of three: a over b, b over c, c over a."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tether.collect.stats.ceiling import Ceiling
from tether.collect.stats.votes import Votes
from tether.stats import Interval, bootstrap_sums, wilson

__all__ = ["CHANCE", "Transitivity", "transitivity"]

Floats = NDArray[np.float64]

CHANCE = 0.25  # of 8 equally likely directions of three pairs, 2 are cycles (Kendall and Babington Smith 1940)
_NUM_DRAWS = 4000  # of three qualities, for the expected share


@dataclass(frozen=True, slots=True)
class Transitivity:
    """``cyclic``: share of triples that are cycles, interval over prompts. ``expected``: the share that noise alone makes, for answers
    with one quality each and the noise that the ceiling measured; None where that is not known. ``chance``: of coin tosses, 1/4.
    """

    cyclic: Interval
    num_triples: int
    num_cycles: int
    expected: float | None
    chance: float = CHANCE


def transitivity(votes: Votes, noise: Ceiling | None, *, seed: int, confidence: float = 0.95) -> Transitivity | None:
    """Of all triples of answers to one prompt whose three pairs have a majority each (a pair with as many votes for as against has none).

    Pairs of one ranking agree with each other by construction, so they are left out. None where no such triple exists.
    """
    keep = votes.first_votes() & ~votes.ranked & (votes.outcome != 0)
    net = np.bincount(votes.unit[keep], weights=votes.outcome[keep], minlength=votes.num_units)
    count = np.bincount(votes.unit[keep], minlength=votes.num_units)
    usable = np.flatnonzero(net)
    usable = usable[np.bincount(votes.unit_prompt[usable], minlength=len(votes.prompts))[votes.unit_prompt[usable]] >= 3]
    order = usable[np.argsort(votes.unit_prompt[usable], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(votes.unit_prompt[order]) != 0]) if len(order) else []
    per_prompt, counts = [], []
    for units in np.split(order, starts[1:]) if len(order) else []:
        cycles, triple_counts = _triples([votes.unit_answers[u] for u in units.tolist()], np.sign(net[units]), count[units])
        if len(triple_counts):
            per_prompt.append((cycles, len(triple_counts)))
            counts.append(triple_counts)
    if not per_prompt:
        return None
    sums = np.array(per_prompt, dtype=np.float64)
    num_cycles, num_triples = int(sums[:, 0].sum()), int(sums[:, 1].sum())
    share = bootstrap_sums(sums, lambda s: s[:, :1] / s[:, 1:], seed=seed, confidence=confidence)[0]
    if num_cycles in {0, num_triples}:  # resamples show no spread
        share = wilson(num_cycles, num_triples, confidence=confidence)
    return Transitivity(share, num_triples, num_cycles, _expected(np.concatenate(counts), noise, seed))


def _triples(pairs: list[tuple[str, str]], signs: Floats, counts: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """(number of cycles, votes on the three pairs of each complete triple, shape (triples, 3), sorted) of one prompt."""
    names = {name: i for i, name in enumerate(sorted({name for pair in pairs for name in pair}))}
    sign, count = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)), dtype=np.int64)
    for (first, second), s, c in zip(pairs, signs.tolist(), counts.tolist(), strict=True):
        i, j = names[first], names[second]
        sign[i, j], sign[j, i], count[i, j], count[j, i] = s, -s, c, c
    triples = np.array(list(combinations(range(len(names)), 3)), dtype=np.int64).reshape(-1, 3)
    i, j, k = triples.T
    around = np.stack([sign[i, j], sign[j, k], sign[k, i]], axis=1)
    whole = around.all(axis=1)
    cycles = int((np.abs(around[whole].sum(axis=1)) == 3).sum())
    return cycles, np.sort(np.stack([count[i, j], count[j, k], count[k, i]], axis=1)[whole], axis=1)


def _expected(counts_T3: NDArray[np.int64], noise: Ceiling | None, seed: int) -> float | None:
    """Mean over triples of P(cycle) when qualities are Normal and each pair's majority is of so many noisy votes, given that it is no
    draw.
    """
    if noise is None:
        return None
    rng = np.random.default_rng(seed)
    quality = rng.normal(0, noise.tau / np.sqrt(2), (_NUM_DRAWS, 3))
    gaps = quality - np.roll(quality, -1, axis=1)  # a - b, b - c, c - a
    first, second = 1 / (1 + np.exp(noise.tie_threshold - gaps)), 1 / (1 + np.exp(noise.tie_threshold + gaps))
    share = first / (first + second)
    kinds, number = np.unique(counts_T3, axis=0, return_counts=True)
    won = {n: _majority(share, n) for n in np.unique(kinds).tolist()}
    cyclic = []
    for kind in kinds.tolist():
        p = np.stack([won[n][:, column] for column, n in enumerate(kind)], axis=1)
        cyclic.append(float(np.mean(p.prod(axis=1) + (1 - p).prod(axis=1))))
    return float(np.average(cyclic, weights=number))


def _majority(share: Floats, num_votes: int) -> Floats:
    """P(more votes for than against | not as many) of ``num_votes`` independent votes."""
    chance = np.zeros((num_votes + 1, *share.shape))
    chance[0] = 1.0
    for _ in range(num_votes):
        lost = chance * (1 - share)
        lost[1:] += chance[:-1] * share
        chance = lost
    ahead = chance[num_votes // 2 + 1 :].sum(axis=0)
    behind = chance[: (num_votes + 1) // 2].sum(axis=0)
    return ahead / np.maximum(ahead + behind, 1e-300)
