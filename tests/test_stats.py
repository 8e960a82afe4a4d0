import json
import math
from pathlib import Path

import numpy as np
import pytest

from tether import stats
from tether.stats import (
    binomial_p_value,
    bootstrap_mean,
    bootstrap_sums,
    clopper_pearson,
    paired_bootstrap,
    pass_at_k,
    permutation_p_value,
    sign_test_p_value,
    wilson,
    wilson_mean,
)

CASES = json.loads((Path(__file__).parent / "golden" / "cases.json").read_text())
CASES = CASES if isinstance(CASES, list) else CASES["cases"]


@pytest.mark.parametrize("case", [c for c in CASES if c["op"] == "pass_at_k"], ids=lambda c: c["id"])
def test_pass_at_k_agrees_with_the_golden_vectors(case):
    inputs = case["inputs"]
    assert pass_at_k(inputs["n"], inputs["c"], inputs["k"]) == pytest.approx(
        case["expected"]["value"], rel=case["rtol"], abs=case["atol"]
    )


def test_wilson_by_hand_and_at_the_ends():
    # published values for 8 of 10 at 95 %
    interval = wilson(8, 10)
    assert (interval.low, interval.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert (wilson(0, 5).low, wilson(5, 5).high) == (0.0, 1.0)
    assert wilson(0, 5).high == pytest.approx(1 - wilson(5, 5).low)


def test_bootstrap_of_a_mean_is_seeded_and_close_to_the_normal_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    interval = bootstrap_mean(values, seed=5)
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval == bootstrap_mean(values, seed=5)
    assert interval != bootstrap_mean(values, seed=6)
    assert (interval.low, interval.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=0.02
    )


def test_the_bootstrap_interval_covers_as_often_as_stated():
    rng = np.random.default_rng(0)
    intervals = [bootstrap_mean(rng.normal(size=40), seed=s, num_resamples=500) for s in range(300)]
    hits = [interval.low <= 0 <= interval.high for interval in intervals]
    assert 0.89 <= np.mean(hits) <= 0.985


def test_paired_bootstrap_uses_the_pairing():
    before = np.random.default_rng(2).normal(0, 10, 50)
    interval = paired_bootstrap(before, before + 1, seed=0)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((1, 1, 1))
    assert interval.excludes_zero
    assert not paired_bootstrap(before, before, seed=0).excludes_zero


def test_constant_values_give_a_point_and_one_unit_says_nothing():
    constant = bootstrap_mean([2.0, 2.0, 2.0], seed=0)
    assert (constant.low, constant.high) == (2.0, 2.0)
    single = bootstrap_mean([2.0], seed=0)
    assert (single.low, single.high) == (-math.inf, math.inf)


def test_permutation_exact_by_hand():
    # 3 pairs, all up by 1: only +++ and --- are as extreme, 2 of 8
    assert permutation_p_value([0, 0, 0], [1, 1, 1], seed=0) == 0.25
    assert permutation_p_value([0, 0], [0, 0], seed=0) == 1.0


def test_permutation_by_draws_agrees_with_the_exact_one():
    differences = np.random.default_rng(3).normal(0.5, 1, 14)
    exact = permutation_p_value(np.zeros(14), differences, seed=0)
    padded = np.concatenate([differences, np.zeros(3)])  # zeros change no sum: the same p, but by draws
    assert permutation_p_value(np.zeros(17), padded, seed=0) == pytest.approx(exact, abs=0.015)


def test_sign_test_by_hand():
    before, after = np.zeros(11), np.array([1.0] * 8 + [-1.0] * 2 + [0.0])
    assert sign_test_p_value(before, after) == pytest.approx(0.109375)
    assert sign_test_p_value([1.0], [1.0]) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap_mean([], seed=0),
        lambda: bootstrap_mean([1.0, math.nan], seed=0),
        lambda: bootstrap_mean([[1.0]], seed=0),
        lambda: bootstrap_mean([1.0], seed=0, confidence=1.0),
        lambda: paired_bootstrap([1.0], [1.0, 2.0], seed=0),
        lambda: wilson(3, 2),
        lambda: wilson(0, 0),
        lambda: pass_at_k(3, 4, 1),
        lambda: pass_at_k(3, 1, 4),
    ],
)
def test_inputs_are_checked(call):
    with pytest.raises(ValueError, match=r"."):
        call()


@pytest.mark.parametrize(("k", "n"), [(8, 10), (0, 5), (5, 5), (1, 1), (520, 1000), (50_200, 100_000)])
def test_exact_binomial_agrees_with_scipy(k, n):
    scipy_stats = pytest.importorskip("scipy.stats")
    known = scipy_stats.binomtest(k, n)
    exact = known.proportion_ci(method="exact")
    found = clopper_pearson(k, n)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-10)
    assert binomial_p_value(k, n) == pytest.approx(known.pvalue, abs=1e-10)


def test_clopper_pearson_by_hand():
    # published for 8 of 10; at 0 of n the bound is 1 - (alpha / 2)^(1 / n)
    found = clopper_pearson(8, 10)
    assert (found.low, found.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert clopper_pearson(0, 5).high == pytest.approx(1 - 0.025 ** (1 / 5))
    assert binomial_p_value(8, 10) == pytest.approx(0.109375)
    with pytest.raises(ValueError, match="got 3 of 2"):
        clopper_pearson(3, 2)


def test_wilson_of_a_mean_is_wilson_for_coin_tosses_and_never_too_short():
    assert wilson_mean([1, 1, 1, 0]) == wilson(3, 4)
    halves = wilson_mean([0.5] * 40)
    assert halves.low < 0.5 < halves.high
    with pytest.raises(ValueError, match="between 0 and 1, got 0 to 2"):
        wilson_mean([0, 2])


def _ratio(sums):
    return sums[:, :1] / sums[:, 1:]


def test_bootstrap_of_sums_is_the_bootstrap_of_a_mean_for_a_mean():
    values = np.random.default_rng(4).normal(1, 2, 200)
    found = bootstrap_sums(np.stack([values, np.ones(200)], axis=1), _ratio, seed=0, num_resamples=4000)[0]
    known = bootstrap_mean(values, seed=1, num_resamples=4000)
    assert (found.estimate, found.low, found.high) == pytest.approx((known.estimate, known.low, known.high), abs=0.03)
    assert found.num_units == 200


def test_the_normal_limit_of_many_units_is_what_resampling_gives(monkeypatch):
    rng = np.random.default_rng(5)
    trials = rng.integers(1, 5, 3000)
    units = np.stack([rng.binomial(trials, 0.3), trials], axis=1)
    drawn = bootstrap_sums(units, _ratio, seed=0, num_resamples=4000)[0]
    monkeypatch.setattr(stats, "_NORMAL_FROM", 100)
    limit = bootstrap_sums(units, _ratio, seed=0, num_resamples=4000)[0]
    assert limit.estimate == drawn.estimate
    assert (limit.low, limit.high) == pytest.approx((drawn.low, drawn.high), abs=0.0008)
    assert limit.high - limit.low == pytest.approx(drawn.high - drawn.low, rel=0.06)


def test_bootstrap_of_sums_says_what_it_cannot_know():
    one = bootstrap_sums([[1.0, 2.0]], _ratio, seed=0)[0]
    assert (one.estimate, one.low, one.high) == (0.5, -math.inf, math.inf)
    undefined = bootstrap_sums([[0.0, 0.0]] * 3, _ratio, seed=0)[0]
    assert math.isnan(undefined.estimate)
    rare = bootstrap_sums([[1.0, 1.0], *[[0.0, 0.0]] * 9], _ratio, seed=0)[0]  # a third of the resamples have no trial
    assert (rare.estimate, rare.low) == (1.0, -math.inf)
    with pytest.raises(ValueError, match="one row per unit"):
        bootstrap_sums([], _ratio, seed=0)
