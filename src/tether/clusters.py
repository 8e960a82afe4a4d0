"""Uncertainty of shares and fits whose units come in clusters: pairs of one prompt are not independent of each other. numpy only.

A mean over n units that share prompts is worth n / deff independent ones, where the design effect deff is its variance over what that would
be for as many independent units (Kish 1965). deff is estimated from sums over prompts, so prompts may be of any sizes and no correlation is
assumed; where every unit is a prompt of its own it is exactly 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tether.stats import Interval, student_quantile, wilson_share

__all__ = ["cluster_covariance", "design_effect", "effective_number", "told_over", "wilson_clusters"]

Floats = NDArray[np.float64]


def design_effect(values: ArrayLike, clusters: Sequence[Hashable] | NDArray[np.int64]) -> float:
    """Variance of the mean of ``values`` over that of as many independent ones: [C / (C - 1)] sum_c (sum_{i in c} v_i - m)^2 over
    [n / (n - 1)] sum_i (v_i - m)^2, for C clusters (``clusters[i]`` names that of value i) and the mean m.

    At least 1, and at most sum_c n_c^2 / n, which it is where all values of a cluster are the same: also taken where nothing can be
    estimated, with one cluster or values that are all alike. Raises ValueError for no values, or clusters of another number.

    Example: 1, 1, 0, 0 in clusters a, a, b, b -> 2; in a, b, a, b -> 1.
    """
    units, place = np.asarray(values, dtype=np.float64), _places(clusters)
    if len(units) != len(place) or not len(units):
        raise ValueError(f"expected one cluster for every value, at least one, got {len(units)} values and {len(place)} clusters")
    sizes = np.bincount(place)
    most = float(np.square(sizes).sum() / len(units))
    apart = units - units.mean()
    spread = float(np.square(apart).sum())
    if len(sizes) in (1, len(units)) or spread <= 1e-12 * len(units):
        return most
    between = float(np.square(np.bincount(place, apart)).sum())
    n, c = len(units), len(sizes)
    return min(max(between / spread * (c / (c - 1)) / (n / (n - 1)), 1.0), most)


def effective_number(values: ArrayLike, clusters: Sequence[Hashable] | NDArray[np.int64], *, confidence: float = 0.95) -> float:
    """How many independent values tell as much about the mean: n / deff, times (t_{n - 1} / t_{C - 1})^2 for a deff that is itself
    estimated from C clusters (Korn and Graubard 1998). Between n^2 / sum_c n_c^2, the number where each prompt has one voice, and n.
    """
    place = _places(clusters)
    n, c = len(place), int(place.max(initial=-1)) + 1
    deff = design_effect(values, place)
    if c == n:
        return float(n)
    least = n * n / float(np.square(np.bincount(place)).sum())
    known = 1.0 if c == 1 else (_student(n - 1, confidence) / _student(c - 1, confidence)) ** 2
    return max(n / deff * known, least)


def wilson_clusters(values: ArrayLike, clusters: Sequence[Hashable] | NDArray[np.int64], *, confidence: float = 0.95) -> Interval:
    """Wilson's interval of the mean of values between 0 and 1, with the effective number in place of n; ``num_units`` is n.

    With one value a cluster it is :func:`tether.stats.wilson_mean` to the last bit.
    """
    units = np.asarray(values, dtype=np.float64)
    number = effective_number(units, clusters, confidence=confidence)
    if units.min() < 0 or units.max() > 1:
        raise ValueError(f"expected values between 0 and 1, got {units.min():g} to {units.max():g}")
    return replace(wilson_share(float(units.mean()), number, confidence=confidence), num_units=len(units))


def told_over(num: int | None, what: str, num_prompts: int | None, effective: float | None) -> str:
    """What an interval is over, in words. Records of older runs do not say of how many prompts.

    Example: 40, "pairs", 10, 17.3 -> "40 pairs of 10 prompts, worth 17 independent ones".
    """
    of = "" if num_prompts is None else f" of {num_prompts} {'prompt' if num_prompts == 1 else 'prompts'}"
    fewer = effective is not None and num is not None and round(effective) < num
    return f"{num} {what}{of}" + (f", worth {effective:.0f} independent ones" if fewer else "")


def cluster_covariance(bread_FF: Floats, scores_BF: Floats, clusters: Sequence[Hashable] | NDArray[np.int64]) -> Floats:
    """Covariance of a fit that does not take the rows of a cluster for independent: bread (sum_c s_c s_c') bread C / (C - 1), with s_c the
    sum of the score vectors (gradients of the log-likelihood) of the cluster's rows and ``bread`` the inverse curvature (Liang and Zeger
    1986). One cluster says nothing of spread: infinite variances.
    """
    place = _places(clusters)
    c = int(place.max(initial=-1)) + 1
    if c < 2:
        return np.full_like(bread_FF, np.inf)
    sums_CF = np.stack([np.bincount(place, column) for column in scores_BF.T], axis=1)
    return bread_FF @ (sums_CF.T @ sums_CF) @ bread_FF * (c / (c - 1))


def _places(clusters: Sequence[Hashable] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Clusters numbered from 0."""
    if isinstance(clusters, np.ndarray):
        return np.unique(clusters, return_inverse=True)[1]
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in clusters], dtype=np.int64)


@lru_cache(maxsize=4096)
def _student(freedom: int, confidence: float) -> float:
    return student_quantile((1 + confidence) / 2, freedom)
