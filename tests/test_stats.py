import json
import math
from pathlib import Path

import numpy as np
import pytest

from tether.stats import (
    bootstrap_mean,
    paired_bootstrap,
    pass_at_k,
    permutation_p_value,
    sign_test_p_value,
    wilson,
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
