"""Published tables, and what the coefficients must be at their limits. Figures of other programs were computed once and stand here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.agreement import (
    Level,
    Weights,
    alpha_from_coincidences,
    cohen_kappa,
    cohen_kappa_of_table,
    coincidences,
    fleiss_kappa,
    krippendorff_alpha,
    raw_agreement_from_coincidences,
)

COHEN = [[88, 14, 18], [10, 40, 10], [2, 6, 12]]  # Cohen 1960, 1968: 200 patients, three diagnoses
XEROMAMMOGRAMS = [[21, 12, 0, 0], [4, 17, 1, 0], [3, 9, 15, 2], [0, 0, 0, 1]]  # Boyd et al. 1982, in Altman 1991, table 14.4

# Krippendorff 2011, "Computing Krippendorff's alpha-reliability", example C: four observers, twelve units, 0 where nothing was said.
KRIPPENDORFF = np.array([
    [1, 2, 3, 3, 2, 1, 4, 1, 2, 0, 0, 0],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, 0, 3],
    [0, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 0],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, 0],
])  # fmt: skip

# Fleiss 1971, table 1: thirty patients, six psychiatrists each; depression, personality disorder, schizophrenia, neurosis, other.
FLEISS = np.array([[int(digit) for digit in row] for row in [
    "00060", "03003", "01401", "00006", "03030", "20400", "00402", "20310", "20040", "00006", "10050", "11040", "03300", "10050", "02031",
    "00501", "30012", "51000", "02040", "10203", "00006", "01050", "02013", "20040", "10041", "05010", "40002", "02040", "10500", "00006",
]])  # fmt: skip


def test_cohens_own_tables():
    assert float(cohen_kappa_of_table(COHEN)) == pytest.approx(0.492, abs=5e-4)
    # Cohen 1968: disagreements weighted 1, 3 and 6
    assert float(cohen_kappa_of_table(COHEN, [[0, 1, 3], [1, 0, 6], [3, 6, 0]])) == pytest.approx(0.348, abs=5e-4)


@pytest.mark.parametrize(
    ("weights", "published"), [(Weights.UNWEIGHTED, 0.47), (Weights.LINEAR, 0.57), (Weights.QUADRATIC, 0.67)]
)
def test_weighted_kappa_of_xeromammograms(weights, published):
    assert float(cohen_kappa_of_table(XEROMAMMOGRAMS, weights)) == pytest.approx(published, abs=5e-3)


def test_kappa_of_two_lists_agrees_with_other_programs():
    """scikit-learn 1.9.1 and statsmodels 0.15.0 gave these for the same draws."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 4, 200)
    second = np.where(rng.random(200) < 0.5, first, rng.integers(0, 4, 200))
    found = [cohen_kappa(first, second, 4, weights=weights, seed=0).estimate for weights in Weights]
    assert found == pytest.approx([0.42019326891036324, 0.45139169019766034, 0.483739837398374], rel=1e-12)


def test_fleiss_psychiatrists():
    found = fleiss_kappa(FLEISS, seed=0)
    assert found.estimate == pytest.approx(0.430, abs=5e-4)
    assert found.estimate == pytest.approx(0.43024452006014074, rel=1e-12)  # statsmodels 0.15.0
    assert found.low < 0.430 < found.high


@pytest.mark.parametrize(
    ("level", "published", "evalica"),
    [
        (Level.NOMINAL, 0.743, 0.743421052631579),
        (Level.ORDINAL, 0.815, 0.8153875037548813),
        (Level.INTERVAL, 0.849, 0.8491071428571428),
    ],
)
def test_krippendorffs_own_example(level, published, evalica):
    """The last column are figures of evalica 0.4.2."""
    annotator, unit = np.nonzero(KRIPPENDORFF)
    found = krippendorff_alpha(unit, KRIPPENDORFF[annotator, unit], level=level, seed=0)
    assert found.estimate == pytest.approx(published, abs=5e-4)
    assert found.estimate == pytest.approx(evalica, rel=1e-12)
    assert found.num_units == 11  # the twelfth unit has one rating


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=3, max_size=40))
@settings(max_examples=50, deadline=None)
def test_alpha_is_scotts_pi_corrected_for_small_samples(pairs):
    """With two annotators and nothing missing, 1 - alpha = (1 - pi)(n - 1) / n, n = 2 units (Krippendorff 1970)."""
    units = np.repeat(np.arange(len(pairs)), 2)
    values = np.array(pairs).ravel()
    shares = np.bincount(values, minlength=3) / len(values)
    by_chance = float((shares**2).sum())
    if by_chance == 1:
        return
    observed = float(np.mean([a == b for a, b in pairs]))
    pi = (observed - by_chance) / (1 - by_chance)
    alpha = float(alpha_from_coincidences(coincidences(units, values, 3).sum(axis=0), Level.NOMINAL))
    assert 1 - alpha == pytest.approx((1 - pi) * (len(values) - 1) / len(values), abs=1e-12)


def test_perfect_agreement_is_one_and_one_category_is_undefined():
    units = np.repeat(np.arange(4), 3)
    matrix = coincidences(units, np.repeat([0, 1, 2, 1], 3), 3).sum(axis=0)
    assert [float(alpha_from_coincidences(matrix, level)) for level in Level] == [1.0, 1.0, 1.0]
    assert float(raw_agreement_from_coincidences(matrix)) == 1.0
    assert math.isnan(float(alpha_from_coincidences(coincidences(units, np.zeros(12, int), 3).sum(axis=0), Level.NOMINAL)))
    assert math.isnan(float(cohen_kappa_of_table([[5, 0], [0, 0]])))
    undefined = krippendorff_alpha([0, 0], [1, 1], level=Level.NOMINAL, seed=0)
    assert math.isnan(undefined.estimate)
    assert (undefined.low, undefined.high) == (-math.inf, math.inf)


def test_the_order_of_ratings_and_the_names_of_categories_do_not_matter():
    annotator, unit = np.nonzero(KRIPPENDORFF)
    values = KRIPPENDORFF[annotator, unit]
    shuffled = np.random.default_rng(0).permutation(len(unit))
    names = np.array(["", "e", "a", "d", "b", "c"])[values]
    one = krippendorff_alpha(unit, values, level=Level.NOMINAL, seed=0)
    other = krippendorff_alpha(unit[shuffled], names[shuffled], level=Level.NOMINAL, seed=0)
    assert other.estimate == pytest.approx(one.estimate, rel=1e-12)


def test_intervals_come_from_clusters_where_units_depend_on_each_other():
    """Every unit ten times over says nothing new: clustered, the interval is that of the units themselves."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 2, 60)
    second = np.where(rng.random(60) < 0.7, first, 1 - first)
    one = cohen_kappa(first, second, 2, seed=3)
    copies = np.tile(np.arange(60), 10)
    clustered = cohen_kappa(first[copies], second[copies], 2, clusters=copies, seed=3)
    naive = cohen_kappa(first[copies], second[copies], 2, seed=3)
    assert (clustered.estimate, clustered.low, clustered.high) == pytest.approx((one.estimate, one.low, one.high))
    assert naive.high - naive.low < 0.5 * (one.high - one.low)


def test_the_interval_of_kappa_covers():
    """Two annotators who agree with chance 0.7 on two equal categories: kappa 0.4."""
    hits = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        first = rng.integers(0, 2, 120)
        second = np.where(rng.random(120) < 0.7, first, 1 - first)
        found = cohen_kappa(first, second, 2, seed=seed, num_resamples=300)
        hits.append(found.low <= 0.4 <= found.high)
    assert np.mean(hits) >= 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fleiss_kappa([[2, 0], [1, 2]], seed=0), "same number of annotators for every unit, at least 2, got 2 to 3"),
        (lambda: krippendorff_alpha([0, 1], [1, 1], level=Level.NOMINAL, seed=0), "no unit has two ratings"),
        (lambda: cohen_kappa([0, 1], [0], 2, seed=0), "got 2 and 1"),
        (lambda: cohen_kappa([0, 2], [0, 1], 2, seed=0), "whole numbers from 0 to 1"),
        (lambda: cohen_kappa_of_table([[1, 2]]), "square table"),
        (lambda: cohen_kappa_of_table(COHEN, [[1, 0, 0], [0, 0, 0], [0, 0, 0]]), "zeros on the diagonal"),
        (lambda: cohen_kappa([0, 1], [0, 1], 2, clusters=[0], seed=0), "one cluster per unit, got 1 for 2"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
