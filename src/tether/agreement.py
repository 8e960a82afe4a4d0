"""Agreement beyond chance between people who put the same things into categories: Cohen's kappa, Fleiss' kappa, Krippendorff's alpha.

Each coefficient depends on sums over units (things that were judged) alone, so one function turns sums into the coefficient, for one set
of sums or a thousand resampled ones, and intervals come from resampling units or, where units are not independent, groups of them
(:func:`tether.stats.bootstrap_sums`). numpy only.

Axes: A annotators, U units, C clusters, K categories; ``...`` are resamples.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tether.stats import Interval, bootstrap_sums

__all__ = [
    "Level", "Weights", "alpha_from_coincidences", "cohen_kappa", "cohen_kappa_of_table", "coincidences", "confusions", "fleiss_kappa",
    "fleiss_kappa_from_sums", "krippendorff_alpha", "raw_agreement_from_coincidences",
]  # fmt: skip

Floats = NDArray[np.float64]


class Weights(StrEnum):
    """How bad a disagreement between categories i and j is, for Cohen's kappa. Linear and quadratic need categories in order."""

    UNWEIGHTED = "unweighted"  # 1 where i != j (Cohen 1960)
    LINEAR = "linear"  # |i - j|
    QUADRATIC = "quadratic"  # (i - j)^2 (Cohen 1968)


class Level(StrEnum):
    """What the categories of Krippendorff's alpha mean; decides the squared difference between two of them."""

    NOMINAL = "nominal"  # names: 1 where they differ
    ORDINAL = "ordinal"  # ranks: (ratings that lie between, half of the two themselves)^2
    INTERVAL = "interval"  # numbers: (c - k)^2


# -- Cohen ---------------------------------------------------------------------------------------------------------------------


def confusions(first: ArrayLike, second: ArrayLike, num_categories: int) -> Floats:
    """One table per unit, shape (U, K, K), with a single 1: row the category of ``first``, column that of ``second`` (integers from 0)."""
    rows, columns = _categories(first, num_categories), _categories(second, num_categories)
    if len(rows) != len(columns):
        raise ValueError(f"two annotators of the same units give as many categories each, got {len(rows)} and {len(columns)}")
    tables = np.zeros((len(rows), num_categories, num_categories))
    tables[np.arange(len(rows)), rows, columns] = 1
    return tables


def cohen_kappa_of_table(table: ArrayLike, weights: Weights | ArrayLike = Weights.UNWEIGHTED) -> Floats:
    """kappa = 1 - sum(w p) / sum(w e): observed over expected disagreement, e the product of the margins (Cohen 1960; weighted: 1968, eq.
    8).

    ``table``: (..., K, K) counts or shares, rows one annotator, columns the other. ``weights``: of disagreement, or a K x K matrix of
    them with a zero diagonal. NaN where chance alone would agree always (both used one category). Returns shape (...).

    Example: [[88, 14, 18], [10, 40, 10], [2, 6, 12]] -> 0.492 (Cohen 1960).
    """
    counts = np.asarray(table, dtype=np.float64)
    if counts.ndim < 2 or counts.shape[-1] != counts.shape[-2] or (counts < 0).any():
        raise ValueError(f"expected a square table of counts that are not negative, got shape {counts.shape}")
    penalty = _penalty(weights, counts.shape[-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = counts / counts.sum(axis=(-2, -1), keepdims=True)
        by_chance = shares.sum(axis=-1)[..., :, None] * shares.sum(axis=-2)[..., None, :]
        expected = (penalty * by_chance).sum(axis=(-2, -1))
        return np.where(expected > 0, 1 - (penalty * shares).sum(axis=(-2, -1)) / expected, np.nan)


def cohen_kappa(
    first: ArrayLike,
    second: ArrayLike,
    num_categories: int,
    *,
    weights: Weights | ArrayLike = Weights.UNWEIGHTED,
    clusters: ArrayLike | None = None,
    seed: int,
    confidence: float = 0.95,
    num_resamples: int = 1000,
) -> Interval:
    """Cohen's kappa of two annotators who put the same units into categories 0 to K - 1, with a bootstrap interval over units, or over
    ``clusters`` of them (one integer a unit).
    """
    tables = confusions(first, second, num_categories)
    sums = _by_cluster(tables.reshape(len(tables), -1), clusters)

    def statistic(totals: Floats) -> Floats:
        return cohen_kappa_of_table(totals.reshape(-1, num_categories, num_categories), weights)[:, None]

    return bootstrap_sums(sums, statistic, seed=seed, confidence=confidence, num_resamples=num_resamples)[0]


def _penalty(weights: Weights | ArrayLike, num_categories: int) -> Floats:
    if isinstance(weights, Weights):
        apart = np.abs(np.subtract.outer(np.arange(num_categories), np.arange(num_categories))).astype(np.float64)
        return {Weights.UNWEIGHTED: (apart > 0).astype(np.float64), Weights.LINEAR: apart, Weights.QUADRATIC: apart**2}[weights]
    penalty = np.asarray(weights, dtype=np.float64)
    if penalty.shape != (num_categories, num_categories) or np.diag(penalty).any() or (penalty < 0).any():
        raise ValueError(f"weights are of disagreement: a {num_categories} x {num_categories} matrix, none negative, zeros on the diagonal")
    return penalty


# -- Fleiss --------------------------------------------------------------------------------------------------------------------


def fleiss_kappa(
    counts_UK: ArrayLike, *, clusters: ArrayLike | None = None, seed: int, confidence: float = 0.95, num_resamples: int = 1000
) -> Interval:
    """Fleiss' kappa (1971, eq. 7) of units that were each put into categories by the same number of annotators, not always the same people.

    ``counts_UK[u, k]``: annotators who put unit u into category k. Units with other numbers of annotators: use Krippendorff's alpha.
    """
    counts = np.asarray(counts_UK, dtype=np.float64)
    if counts.ndim != 2 or len(counts) == 0 or (counts < 0).any():
        raise ValueError(f"expected one row of counts per unit, got shape {counts.shape}")
    raters = counts.sum(axis=1)
    if (raters != raters[0]).any() or raters[0] < 2:
        raise ValueError(
            f"Fleiss' kappa needs the same number of annotators for every unit, at least 2, got {int(raters.min())} to "
            f"{int(raters.max())}; krippendorff_alpha takes any numbers"
        )
    agreeing = (counts * (counts - 1)).sum(axis=1) / (raters * (raters - 1))
    sums = _by_cluster(np.column_stack([counts / raters[:, None], agreeing]), clusters)
    return bootstrap_sums(
        sums, lambda totals: fleiss_kappa_from_sums(totals)[:, None], seed=seed, confidence=confidence, num_resamples=num_resamples
    )[0]


def fleiss_kappa_from_sums(sums: Floats) -> Floats:
    """kappa = (P - Pe) / (1 - Pe) from (..., K + 1): summed shares of each category, then the summed agreement of pairs within units."""
    num_units = sums[..., :-1].sum(axis=-1)
    by_chance = ((sums[..., :-1] / num_units[..., None]) ** 2).sum(axis=-1)
    return np.where(by_chance < 1, (sums[..., -1] / num_units - by_chance) / (1 - by_chance), np.nan)


# -- Krippendorff --------------------------------------------------------------------------------------------------------------


def coincidences(units: ArrayLike, values: ArrayLike, num_categories: int) -> Floats:
    """What each unit adds to Krippendorff's coincidence matrix, shape (U, K, K).

    One entry of ``units`` (integers from 0) and ``values`` (categories from 0) per rating, in any order; a missing rating is simply not
    there. A unit with m ratings adds each ordered pair of them with weight 1 / (m - 1); a single rating pairs with nothing and adds
    nothing.
    """
    unit, value = np.asarray(units, dtype=np.int64), _categories(values, num_categories)
    num_units = int(unit.max()) + 1 if len(unit) else 0
    cells = np.bincount(unit * num_categories + value, minlength=num_units * num_categories)
    n_UK = cells.reshape(num_units, num_categories).astype(np.float64)
    pairs = n_UK[:, :, None] * n_UK[:, None, :]
    diagonal = np.arange(num_categories)
    pairs[:, diagonal, diagonal] -= n_UK
    return pairs / np.maximum(n_UK.sum(axis=1) - 1, 1)[:, None, None]


def alpha_from_coincidences(matrix: ArrayLike, level: Level, values: ArrayLike | None = None) -> Floats:
    """alpha = 1 - (n - 1) sum(o_ck d_ck) / sum(n_c n_k d_ck) over c, k (Krippendorff 2011, "Computing Krippendorff's alpha-reliability").

    ``matrix``: (..., K, K) coincidences o; n_c are its margins, n their sum, d squared differences by ``level``. ``values``: the numbers
    that the categories stand for, for Level.INTERVAL (else 0 to K - 1). NaN where all ratings are one category.
    """
    o = np.asarray(matrix, dtype=np.float64)
    n_K = o.sum(axis=-1)
    if level is Level.ORDINAL:
        middle = np.cumsum(n_K, axis=-1) - n_K / 2
        d = (middle[..., :, None] - middle[..., None, :]) ** 2
    else:
        numbers = np.arange(o.shape[-1], dtype=np.float64) if values is None else np.asarray(values, dtype=np.float64)
        d = np.subtract.outer(numbers, numbers) ** 2
        d = (d > 0).astype(np.float64) if level is Level.NOMINAL else d
    expected = (n_K[..., :, None] * n_K[..., None, :] * d).sum(axis=(-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > 0, 1 - (n_K.sum(axis=-1) - 1) * (o * d).sum(axis=(-2, -1)) / expected, np.nan)


def raw_agreement_from_coincidences(matrix: ArrayLike) -> Floats:
    """Share of pairs of ratings of one unit that are the same category: the trace of the coincidences over their sum."""
    o = np.asarray(matrix, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.trace(o, axis1=-2, axis2=-1) / o.sum(axis=(-2, -1))


def krippendorff_alpha(
    units: ArrayLike,
    values: ArrayLike,
    *,
    level: Level,
    clusters: ArrayLike | None = None,
    seed: int,
    confidence: float = 0.95,
    num_resamples: int = 1000,
) -> Interval:
    """Krippendorff's alpha of any number of annotators with missing ratings, and its bootstrap interval over units (or ``clusters`` of
    units).

    One entry of ``units`` (integers from 0) and ``values`` per rating: numbers, or for Level.NOMINAL and ORDINAL anything that sorts.
    ``clusters``: one integer per unit. Raises ValueError where no unit has two ratings.
    """
    names, codes = np.unique(np.asarray(values), return_inverse=True)
    per_unit = coincidences(units, codes, len(names))
    num_categories = len(names)
    if not per_unit.any():
        raise ValueError("no unit has two ratings: agreement cannot be computed; let several annotators judge the same units")
    sums = _by_cluster(per_unit.reshape(len(per_unit), -1), clusters)
    numbers = names.astype(np.float64) if level is Level.INTERVAL else None
    sums = sums[sums.any(axis=1)]  # units that pair with nothing are no part of the design

    def statistic(totals: Floats) -> Floats:
        return alpha_from_coincidences(totals.reshape(-1, num_categories, num_categories), level, numbers)[:, None]

    return bootstrap_sums(sums, statistic, seed=seed, confidence=confidence, num_resamples=num_resamples)[0]


def _categories(values: ArrayLike, num_categories: int) -> NDArray[np.int64]:
    codes = np.asarray(values)
    whole = np.issubdtype(codes.dtype, np.integer)
    if codes.ndim != 1 or (len(codes) and not (whole and codes.min() >= 0 and codes.max() < num_categories)):
        raise ValueError(f"expected one row of whole numbers from 0 to {num_categories - 1}, got {codes!r:.120}")
    return codes.astype(np.int64)


def _by_cluster(units_UD: Floats, clusters: ArrayLike | None) -> Floats:
    """Rows that belong to one cluster, added up."""
    if clusters is None:
        return units_UD
    codes = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if len(codes) != len(units_UD):
        raise ValueError(f"expected one cluster per unit, got {len(codes)} for {len(units_UD)} units")
    return np.stack([np.bincount(codes, weights=column) for column in units_UD.T], axis=1).astype(np.float64)
