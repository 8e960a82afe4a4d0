"""Figures of an audit. Axes: B pairs, F features, N bins. ``gap``: score of chosen minus score of rejected, in log-odds.

``label``: probability that chosen is better. Pairs of one prompt (``cluster``) are not independent: it is prompts that are resampled, and
intervals of shares and coefficients are over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from tether.clusters import cluster_covariance, design_effect, wilson_clusters
from tether.maths.reward_loss import linear_bt_fit
from tether.stats import Interval

__all__ = [
    "Bin",
    "Calibration",
    "Coefficient",
    "calibration",
    "correct",
    "cross_validated",
    "explained_interval",
    "explained_share",
    "log_odds",
    "logistic",
    "mean_interval",
    "share_interval",
]  # fmt: skip

Array = NDArray[np.float64]
_RESAMPLES = 1000


@dataclass(frozen=True)
class Bin:
    """Pairs whose confidence max(p, 1 - p) lies in [low, high)."""

    low: float
    high: float
    num_pairs: int
    confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


@dataclass(frozen=True)
class Calibration:
    """Ten bins over [.5, 1]; expected calibration error with its interval, and the value below which a perfectly calibrated model of this
    confidence on so many pairs stays in 95 of 100 cases."""

    bins: tuple[Bin, ...]
    ece: float
    ece_low: float
    ece_high: float
    ece_by_chance: float


@dataclass(frozen=True)
class Coefficient:
    """Log-odds with its 95 % interval; ``p_value`` two-sided, normal."""

    name: str
    value: float
    low: float
    high: float
    p_value: float


def correct(gap_B: Array, label_B: Array) -> Array:
    """1, 0, or .5 for equal scores, against the side that the label favours. NaN for label .5."""
    right_B = np.where(gap_B == 0, 0.5, ((gap_B > 0) == (label_B > 0.5)).astype(float))
    return np.where(label_B == 0.5, np.nan, right_B)


def share_interval(right_B: Array, cluster_B: Sequence[int]) -> Interval:
    """Wilson's interval of a mean of 0, .5 and 1 over prompts; NaN is left out, and ``num_units`` counts the others."""
    known = ~np.isnan(right_B)
    if not known.any():
        return Interval(math.nan, math.nan, math.nan, 0.95, 0)
    return wilson_clusters(right_B[known], np.asarray(cluster_B)[known])


def mean_interval(values_B: Array, cluster_B: Sequence[int], seed: int) -> Interval:
    """Percentile bootstrap of a mean over pairs that resamples prompts; NaN is left out. One prompt says nothing of spread: (-inf, inf)."""
    known = ~np.isnan(values_B)
    values, cluster = values_B[known], np.unique(np.asarray(cluster_B)[known], return_inverse=True)[1]
    if not len(values):
        return Interval(math.nan, math.nan, math.nan, 0.95, 0)
    sums, counts = np.bincount(cluster, values), np.bincount(cluster).astype(float)
    if len(counts) == 1:
        return Interval(float(values.mean()), -math.inf, math.inf, 0.95, 1)
    drawn = _draws(len(counts), seed)
    low, high = np.quantile((drawn @ sums) / (drawn @ counts), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high), 0.95, len(counts))


def _draws(units: int, seed: int) -> Array:
    """How often each unit is drawn, resample by resample."""
    return np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=_RESAMPLES).astype(float)


def calibration(gap_B: Array, label_B: Array, cluster_B: Sequence[int], seed: int, bins: int = 10) -> Calibration:
    """Is 80 % sure right in 80 %? Confidence is max(p, 1 - p) with p = sigma(gap); on p over [0, 1] the label would always be "chosen"."""
    p_B = 1 / (1 + np.exp(-np.clip(gap_B, -700, 700)))
    confidence_B = np.maximum(p_B, 1 - p_B)
    won_B = np.where(gap_B == 0, 0.5, np.where(gap_B > 0, label_B, 1 - label_B))
    bin_B = np.minimum(((confidence_B - 0.5) * 2 * bins).astype(int), bins - 1)
    cluster = np.unique(np.asarray(cluster_B), return_inverse=True)[1]
    told = tuple(_bin(k, bins, confidence_B[bin_B == k], won_B[bin_B == k], cluster[bin_B == k]) for k in range(bins))
    drawn = _draws(int(cluster.max()) + 1, seed)[:, cluster]  # weight of every pair in every resample
    one_hot_BN = np.eye(bins)[bin_B]
    eces = np.abs(drawn @ (one_hot_BN * (won_B - confidence_B)[:, None])).sum(1) / drawn.sum(1)
    low, high = np.quantile(eces, [0.025, 0.975])
    tossed = np.random.default_rng(seed + 1).random((_RESAMPLES, len(confidence_B))) < confidence_B
    chance = np.abs((tossed - confidence_B) @ one_hot_BN).sum(1) / len(confidence_B)
    chance *= math.sqrt(design_effect(won_B - confidence_B, cluster))  # errors of one prompt go together
    ece = float(np.abs((won_B - confidence_B) @ one_hot_BN).sum() / len(gap_B))
    return Calibration(told, ece, float(low), float(high), float(np.quantile(chance, 0.95)))


def _bin(k: int, bins: int, confidence: Array, won: Array, cluster: NDArray[np.int64]) -> Bin:
    low, high = 0.5 + 0.5 * k / bins, 0.5 + 0.5 * (k + 1) / bins
    if not len(won):
        return Bin(low, high, 0, math.nan, math.nan, math.nan, math.nan)
    interval = wilson_clusters(won, cluster)
    return Bin(low, high, len(won), float(confidence.mean()), float(won.mean()), interval.low, interval.high)


def logistic(names: Sequence[str], d_BF: Array, label_B: Array, preferred_B: Array, cluster_B: Sequence[int]) -> list[Coefficient]:
    """Logistic regression of "the model prefers chosen" on the label, as 2 label - 1 (1: chosen surely won, 0: a tie), and on differences
    of features, per standard deviation of each (about 0, where it lies over both ways of calling one answer chosen). A feature that never
    differs is left out. Which answer of a pair is called chosen changes nothing: with it every column changes its sign.
    """
    stds = np.sqrt(np.square(d_BF).mean(0))
    live = np.flatnonzero(stds > 1e-12)
    design = np.column_stack([2 * label_B - 1, d_BF[:, live] / stds[live]])
    return log_odds(["label", *(names[int(k)] for k in live)], design, preferred_B, cluster_B)


def log_odds(names: Sequence[str], design_BF: Array, won_B: Array, cluster_B: Sequence[int]) -> list[Coefficient]:
    """Logistic regression of ``won_B`` (0 to 1) on the columns of ``design_BF`` as they are.

    A little L2 (1 / B) keeps separable data finite, and shrinks what it finds: bounds are cautious. So are the errors: the larger one of
    the inverse curvature's and of that over prompts (``tether.clusters.cluster_covariance``). Pairs of one prompt alone bound nothing: an
    infinite error.
    """
    l2 = 1 / len(design_BF)
    w = linear_bt_fit(torch.from_numpy(design_BF), l2, labels=torch.from_numpy(won_B)).numpy()
    p = 1 / (1 + np.exp(-np.clip(design_BF @ w, -500, 500)))
    curvature = (design_BF.T * (p * (1 - p))) @ design_BF + len(design_BF) * l2 * np.eye(len(w))
    bread = np.asarray(np.linalg.inv(curvature), dtype=np.float64)
    over_prompts = cluster_covariance(bread, design_BF * (won_B - p)[:, None], np.asarray(cluster_B))
    errors = np.sqrt(np.maximum(np.diag(bread), np.diag(over_prompts)))
    return [
        Coefficient(name, float(value), float(value - 1.96 * error), float(value + 1.96 * error), _p_value(value, error))
        for name, value, error in zip(names, w, errors, strict=True)
    ]


def _p_value(value: float, error: float) -> float:
    return 2 * (1 - NormalDist().cdf(abs(value) / error))


def explained_share(gap_B: Array, d_BF: Array) -> float:
    """R^2 of the gaps about their zero on differences of features, without an intercept: 1 - |gap - D w|^2 / |gap|^2."""
    if not np.square(gap_B).sum() > 0:
        return math.nan
    w = np.linalg.lstsq(d_BF, gap_B, rcond=None)[0]
    return float(1 - np.square(gap_B - d_BF @ w).sum() / np.square(gap_B).sum())


def explained_interval(gap_B: Array, d_BF: Array, cluster_B: Sequence[int], seed: int) -> Interval:
    """``explained_share`` with its percentile bootstrap over prompts: b' A^+ b / |gap|^2 with A = D'D, b = D'gap, all sums over prompts."""
    cluster = np.unique(np.asarray(cluster_B), return_inverse=True)[1]
    features = d_BF.shape[1]
    rows = np.column_stack([(d_BF[:, :, None] * d_BF[:, None, :]).reshape(len(d_BF), -1), d_BF * gap_B[:, None], gap_B**2])
    sums = np.stack([np.bincount(cluster, column) for column in rows.T], axis=1)
    drawn = _draws(len(sums), seed) @ sums
    inverse = np.linalg.pinv(drawn[:, : features**2].reshape(-1, features, features), hermitian=True)
    b, total = drawn[:, features**2 : -1], drawn[:, -1]
    known = total > 0
    shares = np.einsum("rf,rfg,rg->r", b, inverse, b)[known] / total[known]
    low, high = np.quantile(shares, [0.025, 0.975]) if len(shares) else (math.nan, math.nan)
    return Interval(explained_share(gap_B, d_BF), float(low), float(high), 0.95, len(sums))


def cross_validated(d_BF: Array, label_B: Array, cluster_B: Sequence[int], folds: int = 5) -> Array:
    """Gaps of a linear Bradley-Terry model for every pair, fitted to the pairs of the other prompts: a fair opponent."""
    cluster = np.unique(np.asarray(cluster_B), return_inverse=True)[1]
    folds = min(folds, int(cluster.max()) + 1)
    stds = np.where(d_BF.std(0) > 1e-12, d_BF.std(0), 1.0)
    gap_B = np.zeros(len(d_BF))
    for fold in range(folds):
        held = cluster % folds == fold
        if held.all():  # one prompt: nothing to fit to
            continue
        fit = torch.from_numpy(d_BF[~held] / stds)
        w = linear_bt_fit(fit, 1e-3, labels=torch.from_numpy(label_B[~held])).numpy()
        gap_B[held] = d_BF[held] / stds @ w
    return gap_B
