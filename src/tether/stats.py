"""Uncertainty of the numbers that a run reports. numpy only; every random draw takes a seed.

The unit of a resample is one entry of the arrays given: pass one number per prompt (the mean of its samples),
not per sample, because answers to one prompt are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Interval",
    "binomial_p_value",
    "bootstrap_mean",
    "bootstrap_sums",
    "clopper_pearson",
    "holm",
    "paired_bootstrap",
    "pass_at_k",
    "permutation_p_value",
    "sign_test_p_value",
    "student_quantile",
    "wilson",
    "wilson_mean",
    "wilson_share",
]

_NORMAL_FROM = 10_000  # units from which sums of resamples are drawn from their normal limit
_BLOCK = 4_000_000  # indices drawn at once: bounds the memory of a bootstrap


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided interval. ``num_units`` is what was resampled (prompts, pairs)."""

    estimate: float
    low: float
    high: float
    confidence: float
    num_units: int

    @property
    def excludes_zero(self) -> bool:
        """True when 0 lies outside the interval."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


def bootstrap_mean(
    values: ArrayLike, *, seed: int, confidence: float = 0.95, num_resamples: int = 10_000
) -> Interval:
    """Percentile bootstrap of a mean (Efron 1979): resample units with replacement, take the quantiles of the
    means.

    One unit says nothing about spread: its interval is (-inf, inf).
    """
    units = _finite(values)
    _check_confidence(confidence)
    estimate = float(units.mean())
    if len(units) == 1:
        return Interval(estimate, -math.inf, math.inf, confidence, 1)
    means = _resampled_means(units, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(estimate, float(low), float(high), confidence, len(units))


def paired_bootstrap(
    before: ArrayLike, after: ArrayLike, *, seed: int, confidence: float = 0.95, num_resamples: int = 10_000
) -> Interval:
    """Bootstrap of mean(after - before) over the same units in the same order. Positive means that ``after``
    is larger.
    """
    return bootstrap_mean(
        _differences(before, after), seed=seed, confidence=confidence, num_resamples=num_resamples
    )


def bootstrap_sums(
    units_CD: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    seed: int,
    confidence: float = 0.95,
    num_resamples: int = 1000,
) -> tuple[Interval, ...]:
    """Percentile bootstrap of statistics that depend on sums over independent units alone: ratios, kappa, alpha.

    ``units_CD``: one row per unit (cluster) with what it adds to each sum. ``statistic`` maps sums of shape (R, D) to values of shape (R,
    S), row by row; all S share the same resamples. From 10,000 units on, sums are drawn from the normal limit of the bootstrap (mean and
    covariance of resampled sums, none below 0 where no unit is), which costs one pass over the units. Not defined (NaN) for all units
    together: (nan, -inf, inf); one unit, or NaN in more than a tenth of the resamples: (-inf, inf).

    Example, a ratio: ``bootstrap_sums(np.stack([hits, trials], 1), lambda s: s[:, :1] / s[:, 1:], seed=0)``.
    """
    units = np.asarray(units_CD, dtype=np.float64)
    if units.ndim != 2 or len(units) == 0:
        raise ValueError(f"expected one row per unit, at least one, got shape {units.shape}")
    _finite(units.ravel())
    _check_confidence(confidence)
    n, total = len(units), units.sum(axis=0, keepdims=True)
    resampled = _resampled_sums(units, num_resamples if n > 1 else 0, np.random.default_rng(seed))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = statistic(np.concatenate([total, resampled]))
    return tuple(_percentiles(column, confidence, n) for column in values.T)


def _resampled_sums(units: NDArray[np.float64], num_resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    n = len(units)
    if n >= _NORMAL_FROM:
        centred = units - units.mean(axis=0)
        values, vectors = np.linalg.eigh(centred.T @ centred)
        noise = rng.standard_normal((num_resamples, len(values))) * np.sqrt(np.maximum(values, 0)) @ vectors.T
        return np.where(units.min(axis=0) >= 0, np.maximum(units.sum(axis=0) + noise, 0), units.sum(axis=0) + noise)
    block, parts = max(1, _BLOCK // n), [np.empty((0, units.shape[1]))]
    for start in range(0, num_resamples, block):
        count = min(block, num_resamples - start)
        drawn = rng.integers(0, n, size=(count, n)) + n * np.arange(count)[:, None]
        parts.append(np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n) @ units)
    return np.concatenate(parts)


def _percentiles(values: NDArray[np.float64], confidence: float, num_units: int) -> Interval:
    """The first value is the estimate, the others are its resamples."""
    estimate, resamples = float(values[0]), values[1:]
    defined = resamples[~np.isnan(resamples)]
    if math.isnan(estimate) or len(defined) < 0.9 * len(resamples) or len(defined) == 0:
        return Interval(estimate, -math.inf, math.inf, confidence, num_units)
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(estimate, float(low), float(high), confidence, num_units)


def wilson(num_successes: int, num_trials: int, *, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share (Wilson 1927): stays inside [0, 1] and is usable at 0 and n
    successes.

    Example: 8 of 10 at 95 % -> 0.8 [0.490, 0.943].
    """
    _check_confidence(confidence)
    _check_counts(num_successes, num_trials)
    return wilson_share(num_successes / num_trials, num_trials, confidence=confidence)


def wilson_mean(values: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Wilson's interval for the mean of values between 0 and 1, as if each were a coin toss: such values spread no more than tosses with
    the same mean, so the interval is never too short. Cheap enough for hundreds of small groups.
    """
    units = _finite(values)
    _check_confidence(confidence)
    if units.min() < 0 or units.max() > 1:
        raise ValueError(f"expected values between 0 and 1, got {units.min():g} to {units.max():g}")
    return wilson_share(float(units.mean()), len(units), confidence=confidence)


def wilson_share(share: float, num_trials: float, *, confidence: float = 0.95) -> Interval:
    """Wilson's interval of a share that is worth so many independent tosses, not always a whole number of them."""
    _check_confidence(confidence)
    if not (0 <= share <= 1 and num_trials > 0):
        raise ValueError(f"expected a share between 0 and 1 of more than 0 trials, got {share} of {num_trials}")
    n, z = num_trials, NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = 0.0 if share == 0 else max(0.0, middle - half)
    high = 1.0 if share == 1 else min(1.0, middle + half)
    return Interval(share, low, high, confidence, round(num_trials))


def clopper_pearson(num_successes: int, num_trials: int, *, confidence: float = 0.95) -> Interval:
    """The exact interval of a share (Clopper and Pearson 1934): covers at least as often as stated, for every true share.

    Example: 8 of 10 at 95 % -> 0.8 [0.444, 0.975].
    """
    _check_confidence(confidence)
    _check_counts(num_successes, num_trials)
    k, n, tail = num_successes, num_trials, (1 - confidence) / 2
    low = 0.0 if k == 0 else _bisect(lambda p: _beta_cdf(p, k, n - k + 1) - tail)
    high = 1.0 if k == n else _bisect(lambda p: _beta_cdf(p, k + 1, n - k) - (1 - tail))
    return Interval(k / n, low, high, confidence, n)


def binomial_p_value(num_successes: int, num_trials: int) -> float:
    """Two-sided exact p of "a fair coin" (p = 1/2, where the two tails are alike). Example: 8 of 10 -> 0.109375."""
    _check_counts(num_successes, num_trials)
    k, n = min(num_successes, num_trials - num_successes), num_trials
    return min(1.0, 2 * _beta_cdf(0.5, n - k, k + 1))  # P(X <= k) = I_(1/2)(n - k, k + 1)


def student_quantile(level: float, freedom: int) -> float:
    """The quantile of Student's t. Example: level .975, 9 degrees of freedom -> 2.262; 1 -> 12.706."""
    if not (0.5 <= level < 1 and freedom >= 1):
        raise ValueError(f"expected a level from 0.5 up to 1 and at least 1 degree of freedom, got {level} and {freedom}")
    x = _bisect(lambda x: _beta_cdf(x, 0.5, freedom / 2) - (2 * level - 1))  # P(|T| <= t) = I_x(1/2, f/2), x = t^2 / (f + t^2)
    return math.sqrt(freedom * x / (1 - x))


def _check_counts(num_successes: int, num_trials: int) -> None:
    if num_trials < 1 or not 0 <= num_successes <= num_trials:
        raise ValueError(f"expected 0 <= num_successes <= num_trials and num_trials >= 1, got {num_successes} of {num_trials}")


def _bisect(increasing: Callable[[float], float]) -> float:
    """Where ``increasing`` crosses zero between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return (low + high) / 2


def _beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_cdf(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d, c = 1 / _away_from_zero(1 + step * d), _away_from_zero(1 + step / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def permutation_p_value(
    before: ArrayLike, after: ArrayLike, *, seed: int, num_permutations: int = 20_000
) -> float:
    """Two-sided p of "the signs of the paired differences are coin tosses" (Fisher), for the mean difference.

    Exact (all 2^n sign patterns) up to 14 pairs; beyond, (hits + 1) / (draws + 1).
    """
    differences = _differences(before, after)
    n = len(differences)
    observed = abs(differences.sum()) * (1 - 1e-12)  # ties in exact arithmetic stay ties in floats
    if n <= 14:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float(np.mean(np.abs(signs @ differences) >= observed))
    rng = np.random.default_rng(seed)
    hits, done = 0, 0
    while done < num_permutations:
        count = min(num_permutations - done, max(1, _BLOCK // n))
        signs = rng.integers(0, 2, size=(count, n), dtype=np.int8) * 2 - 1
        hits += int(np.sum(np.abs(signs @ differences) >= observed))
        done += count
    return (hits + 1) / (num_permutations + 1)


def sign_test_p_value(before: ArrayLike, after: ArrayLike) -> float:
    """Two-sided exact sign test of paired values; ties are left out (all ties: 1). Example: 8 up, 2 down ->
    0.109375.
    """
    differences = _differences(before, after)
    up, down = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    n = up + down
    tail = sum(math.comb(n, k) for k in range(min(up, down) + 1))
    return min(1.0, 2 * tail / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979), in the order given: the chance of any false claim among all stays below the level that the
    adjusted values are held against. Example: (0.01, 0.04, 0.03) -> (0.03, 0.06, 0.06).
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"expected p-values between 0 and 1, got {list(p_values)}")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased P(at least one of k is right) = 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, 2107.03374 eq.
    1).
    """
    if not (0 <= num_correct <= num_samples and 1 <= k <= num_samples):
        raise ValueError(
            f"expected 0 <= num_correct <= num_samples and 1 <= k <= num_samples, "
            f"got {num_correct} of {num_samples}, k = {k}"
        )
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def _resampled_means(
    units: NDArray[np.float64], num_resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    n = len(units)
    block = max(1, _BLOCK // n)
    counts = [min(block, num_resamples - start) for start in range(0, num_resamples, block)]
    return np.concatenate([units[rng.integers(0, n, size=(count, n))].mean(axis=1) for count in counts])


def _differences(before: ArrayLike, after: ArrayLike) -> NDArray[np.float64]:
    first, second = _finite(before), _finite(after)
    if len(first) != len(second):
        raise ValueError(f"paired values must have one length, got {len(first)} and {len(second)}")
    return second - first


def _finite(values: ArrayLike | Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"expected one row of at least one value, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{int((~np.isfinite(array)).sum())} of {len(array)} values are not finite; "
            "leave unscorable units out and count them"
        )
    return array


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
