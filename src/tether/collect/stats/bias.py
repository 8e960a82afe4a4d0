"""Where choices follow the page or the length instead of the answers: position and length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tether.clusters import cluster_covariance
from tether.collect.stats.votes import Votes
from tether.stats import Interval, binomial_p_value, clopper_pearson, holm, wilson

__all__ = ["ChoiceModel", "LengthLean", "PositionBias", "choice_model", "length_curve", "length_leans", "logistic", "position_bias"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PositionBias:
    """``left_share``: of decided judgements of two answers, the share whose left (or upper) answer won, with the exact interval;
    ``p_value`` of the exact binomial test against one half. ``by_annotator``: (name, share with Wilson's interval, p adjusted by Holm
    over annotators).
    """

    left_share: Interval
    p_value: float
    by_annotator: tuple[tuple[str, Interval, float], ...]


def position_bias(votes: Votes, *, confidence: float = 0.95) -> PositionBias | None:
    """None where nothing was decided. Rankings are left out: their pairs are not independent tosses.

    The test is exact because sides are drawn anew for each judgement: without a bias, "left won" is a fair coin however good the answers
    are.
    """
    keep = (votes.outcome != 0) & ~votes.ranked & ~votes.gold
    if not keep.any():
        return None
    left = (votes.outcome == votes.side)[keep]
    who = votes.annotator[keep]
    total = np.bincount(who, minlength=len(votes.annotators))
    wins = np.bincount(who, weights=left, minlength=len(votes.annotators)).astype(np.int64)
    seen = np.flatnonzero(total)
    adjusted = holm([binomial_p_value(int(wins[a]), int(total[a])) for a in seen])
    people = tuple(
        (votes.annotators[a], wilson(int(wins[a]), int(total[a]), confidence=confidence), p) for a, p in zip(seen, adjusted, strict=True)
    )
    hits, n = int(left.sum()), int(keep.sum())
    return PositionBias(clopper_pearson(hits, n, confidence=confidence), binomial_p_value(hits, n), people)


@dataclass(frozen=True, slots=True)
class LengthLean:
    """One person: how often the longer of two answers won, how often it did for the others, and p of "the same", adjusted by Holm."""

    annotator: str
    longer: Interval
    others: float
    p_value: float


def length_leans(votes: Votes, *, confidence: float = 0.95) -> tuple[LengthLean, ...]:
    """People against the rest, since longer answers may be the better ones. Two-sided test of two shares with a pooled variance, for who
    has ten decided judgements of answers of different lengths where the others have ten; rankings and test questions are left out.
    """
    keep = (votes.outcome != 0) & ~votes.ranked & ~votes.gold & np.isfinite(votes.length_ratio) & (votes.length_ratio != 0)
    longer, who = (np.sign(votes.length_ratio) == votes.outcome)[keep], votes.annotator[keep]
    n = np.bincount(who, minlength=len(votes.annotators))
    hits = np.bincount(who, weights=longer, minlength=len(votes.annotators))
    seen = np.flatnonzero((n >= 10) & (n.sum() - n >= 10))
    pooled = hits.sum() / max(n.sum(), 1)
    if len(seen) == 0 or not 0 < pooled < 1:
        return ()
    others = (hits.sum() - hits[seen]) / (n.sum() - n[seen])
    z = (hits[seen] / n[seen] - others) / np.sqrt(pooled * (1 - pooled) * (1 / n[seen] + 1 / (n.sum() - n[seen])))
    adjusted = holm([2 * NormalDist().cdf(-abs(float(value))) for value in z])
    return tuple(
        LengthLean(votes.annotators[a], wilson(int(hits[a]), int(n[a]), confidence=confidence), float(rest), p)
        for a, rest, p in zip(seen, others, adjusted, strict=True)
    )


@dataclass(frozen=True, slots=True)
class ChoiceModel:
    """Logistic regression of decided judgements, without an intercept: log-odds of the first answer = length * log(length ratio) + left *
    side.

    ``length``: per unit of log length ratio; ``left``: what standing on the left adds. Intervals are cluster-robust over prompts.
    """

    length: Interval
    left: Interval
    num_judgements: int

    @property
    def longer_wins(self) -> Interval:
        """Chance that the longer of two answers is chosen when it is twice as long, sides balanced out."""
        low, high = (1 / (1 + math.exp(-bound * math.log(2))) for bound in (self.length.low, self.length.high))
        middle = 1 / (1 + math.exp(-self.length.estimate * math.log(2)))
        return Interval(middle, low, high, self.length.confidence, self.length.num_units)


def choice_model(votes: Votes, *, confidence: float = 0.95) -> ChoiceModel | None:
    """None where the fit does not exist: fewer than 10 prompts with decided judgements of answers of known and different lengths, or
    choices that length (or side) explains without an exception.

    Length and quality go together in most data: a positive ``length`` says that longer answers win, not that they win for being longer.
    """
    keep = (votes.outcome != 0) & ~votes.gold & np.isfinite(votes.length_ratio)
    x = np.column_stack([votes.length_ratio[keep], votes.side[keep]]).astype(np.float64)
    won = (votes.outcome[keep] > 0).astype(np.float64)
    clusters = np.unique(votes.prompt[keep], return_inverse=True)[1] if keep.any() else np.zeros(0, dtype=np.int64)
    num_prompts = int(clusters.max()) + 1 if len(clusters) else 0
    if num_prompts < 10 or np.linalg.matrix_rank(x) < 2:
        return None
    slope = logistic(x, won, np.ones(len(won)))
    if not np.isfinite(slope).all():
        return None
    p = 1 / (1 + np.exp(-(x @ slope)))
    bread = np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x).astype(np.float64)
    covariance = cluster_covariance(bread, x * (won - p)[:, None], clusters)
    half = NormalDist().inv_cdf((1 + confidence) / 2) * np.sqrt(np.diag(covariance))
    length, left = (Interval(float(b), float(b - h), float(b + h), confidence, num_prompts) for b, h in zip(slope, half, strict=True))
    return ChoiceModel(length, left, len(won))


def logistic(rows: Floats, share: Floats, weight: Floats) -> Floats:
    """Maximum likelihood of P = sigmoid(rows @ slope) by Newton's method; NaN where it does not exist (the rows separate the choices)."""
    slope = np.zeros(rows.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(rows @ slope, -500, 500)))
        curvature = (rows * (weight * p * (1 - p))[:, None]).T @ rows
        if np.linalg.cond(curvature) > 1e12:
            break
        step = np.linalg.solve(curvature, rows.T @ (weight * (share - p)))
        slope = slope + step * min(1.0, 5 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < 1e-10:
            return slope
        if np.abs(slope).max() > 50:
            break
    return np.full(rows.shape[1], np.nan)


def length_curve(votes: Votes, *, num_bins: int = 12) -> tuple[tuple[float, float, int], ...]:
    """(length of the longer over the shorter answer, share of decided judgements that chose the longer, judgements) in bins of about equal
    count; equal ratios are in one bin.
    """
    keep = (votes.outcome != 0) & ~votes.gold & np.isfinite(votes.length_ratio) & (votes.length_ratio != 0)
    ratio, longer = np.abs(votes.length_ratio[keep]), (np.sign(votes.length_ratio) == votes.outcome)[keep]
    ends = [part[-1] for part in np.array_split(np.sort(ratio), min(num_bins, max(1, len(ratio) // 20))) if len(part)]
    place = np.searchsorted(np.unique(ends), ratio)
    parts = [place == at for at in np.unique(place)]
    return tuple((math.exp(float(np.median(ratio[part]))), float(longer[part].mean()), int(part.sum())) for part in parts)
