"""Intervals of shares and fits whose units come in clusters: by hand, at the ends, and as often right as they say."""

from __future__ import annotations

import numpy as np
import pytest

from tether.clusters import cluster_covariance, design_effect, effective_number, told_over, wilson_clusters
from tether.stats import student_quantile, wilson, wilson_mean, wilson_share


def draw(rng, prompts: int, per_prompt: int, rho: float, share: float = 0.75):
    """0 and 1 with this share, and this correlation of two of one prompt (beta-binomial)."""
    chance = np.full(prompts, share) if rho == 0 else rng.beta(share * (1 - rho) / rho, (1 - share) * (1 - rho) / rho, prompts)
    clusters = np.repeat(np.arange(prompts), per_prompt)
    return (rng.random(len(clusters)) < chance[clusters]).astype(float), clusters


def test_the_design_effect_by_hand():
    assert design_effect([1, 1, 0, 0], "aabb") == 2  # each prompt one voice
    assert design_effect([1, 1, 0, 0], "abab") == 1  # prompts that differ less than chance: never below 1
    assert design_effect([1, 0, 1, 1], "abcd") == 1
    # sums over prompts about the mean 1/2: 0, 1, -1; 2 / (6/4), times (3/2) / (6/5)
    assert design_effect([1, 0, 1, 1, 0, 0], "aabbcc") == pytest.approx(5 / 3)
    assert design_effect([1, 1, 1, 0, 0, 0], "aabccc") == pytest.approx(14 / 6)  # 2.9, held at (4 + 1 + 9) / 6
    assert design_effect([1, 1, 1], "aab") == pytest.approx(5 / 3)  # all alike: nothing can be estimated, the worst is taken
    assert design_effect([1, 0, 1], "aaa") == 3
    for values, clusters in (([], ""), ([1, 0], "a")):
        with pytest.raises(ValueError, match="one cluster for every value"):
            design_effect(values, clusters)


def test_prompts_of_one_pair_give_wilsons_interval_to_the_last_bit():
    for hits, n in ((8, 10), (0, 5), (7, 7), (1, 1), (613, 1000)):
        values = np.array([1.0] * hits + [0.0] * (n - hits))
        told, plain = wilson_clusters(values, range(n)), wilson(hits, n)
        assert (told.estimate, told.low, told.high, told.num_units) == (plain.estimate, plain.low, plain.high, n)
    halves = [1, 0.5, 0, 1]
    assert wilson_clusters(halves, "abcd") == wilson_mean(halves)


def test_pairs_that_repeat_their_prompt_are_worth_one_each():
    values, clusters = np.repeat([1.0, 0.0, 1.0, 1.0], 5), np.repeat(np.arange(4), 5)
    assert effective_number(values, clusters) == pytest.approx(4)
    told, of_prompts = wilson_clusters(values, clusters), wilson(3, 4)
    assert (told.low, told.high) == pytest.approx((of_prompts.low, of_prompts.high))
    assert told.num_units == 20
    assert effective_number([1.0] * 20, clusters) == pytest.approx(4)
    # a design effect of 1, but known from 5 prompts: 10 (t_9 / t_4)^2 = 10 (2.2622 / 2.7764)^2
    assert effective_number([1.0, 0.0] * 5, np.repeat(np.arange(5), 2)) == pytest.approx(6.639, abs=1e-3)
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson_clusters([2.0], [0])


@pytest.mark.parametrize(("prompts", "per_prompt", "rho"), [(20, 4, 0.0), (20, 4, 0.8), (60, 16, 0.3), (200, 4, 0.8)])
def test_the_interval_covers_as_often_as_stated(prompts, per_prompt, rho):
    """300 studies: 95 % +- 3.8 (three standard errors); above for few prompts, whose design effect is not known well. Taking pairs for
    independent covers 70 % with four alike."""
    rng = np.random.default_rng(5)
    hits = plain = 0
    for _ in range(300):
        values, clusters = draw(rng, prompts, per_prompt, rho)
        told, as_if = wilson_clusters(values, clusters), wilson_mean(values)
        hits += told.low <= 0.75 <= told.high
        plain += as_if.low <= 0.75 <= as_if.high
    assert 0.912 <= hits / 300 <= 0.99
    assert rho == 0 or plain / 300 < 0.8


def test_errors_of_a_fit_are_those_of_prompts():
    """The mean as a fit with curvature n: every row twice gives the same error, as if it stood there once."""
    values = np.array([0.3, -1.0, 0.2, 0.5])
    once = cluster_covariance(np.array([[1 / 4]]), values[:, None], range(4))
    twice = cluster_covariance(np.array([[1 / 8]]), np.repeat(values, 2)[:, None], np.repeat(np.arange(4), 2))
    assert once == pytest.approx(twice)
    assert once[0, 0] == pytest.approx(values.var(ddof=0) / 3 + values.mean() ** 2 / 3)
    assert np.isinf(cluster_covariance(np.eye(1), values[:, None], "aaaa")).all()


def test_words_and_quantiles():
    assert told_over(40, "pairs", 10, 17.3) == "40 pairs of 10 prompts, worth 17 independent ones"
    assert told_over(40, "pairs", 40, 40.0) == "40 pairs of 40 prompts"
    assert told_over(40, "pairs", None, None) == "40 pairs"
    assert student_quantile(0.975, 1) == pytest.approx(12.7062, abs=1e-4)
    assert student_quantile(0.975, 9) == pytest.approx(2.26216, abs=1e-5)
    assert student_quantile(0.995, 10**6) == pytest.approx(2.57583, abs=1e-4)
    for level, freedom in ((0.4, 3), (1.0, 3), (0.9, 0)):
        with pytest.raises(ValueError, match="level from"):
            student_quantile(level, freedom)
    with pytest.raises(ValueError, match="share between"):
        wilson_share(1.2, 3)
