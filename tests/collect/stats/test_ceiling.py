"""The ceiling: the truth of simulated annotators, known moments, bounds, and no number where there is too little overlap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.simulate import SimulatedStudy, simulate
from tether.collect.stats.ceiling import ceiling, ceiling_bounds, expected_ceiling, overlap_sums, product_variance
from tether.collect.stats.reliability import Attention, attention, competence
from tether.collect.stats.votes import read_votes
from tether.errors import DataError


def votes_of(**settings):
    made = simulate(SimulatedStudy(**settings))
    return read_votes(made.judgements, made.items, made.lengths), made.truth


def votes_with(shares, judgements_per_item, seed):
    """Units whose first answer is preferred with the given chances by everybody."""
    rng = np.random.default_rng(seed)
    items = [Item(f"i{n}", f"p{n}", (f"{n}a", f"{n}b")) for n in range(len(shares))]
    judgements = [
        Judgement(f"{n} {k}", item.item_id, f"w{k}", Choice.FIRST if rng.random() < p else Choice.SECOND, item.answers)
        for n, (item, p) in enumerate(zip(items, shares, strict=True))
        for k in range(judgements_per_item)
    ]
    return read_votes(judgements, items, {})


@pytest.mark.parametrize("judgements", [2, 3])
@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 2.0])
def test_recovers_the_truth_within_two_points(judgements, temperature):
    found, truth = [], 0.0
    for seed in range(4):
        votes, known = votes_of(num_prompts=1500, judgements_per_item=judgements, temperature=temperature, seed=seed)
        found.append(ceiling(votes, seed=seed, num_resamples=50).decided.estimate)
        truth = known.ceiling
    assert np.mean(found) == pytest.approx(truth, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("judgements", [2, 3])
@pytest.mark.parametrize("temperature", [0.3, 0.5, 0.7, 1.0, 1.5, 2.0])
@pytest.mark.parametrize(
    "habits", [{}, {"tie_threshold": 0.5}, {"tie_threshold": 0.3, "position_bias": 0.4, "length_bias": 0.5, "careless_share": 0.2}]
)
def test_recovers_the_truth_over_the_grid(judgements, temperature, habits):
    """Twenty studies a setting: the mean of twelve strays by .8 points where a single study strays by 2.7."""
    found, hits, truth = [], [], 0.0
    for seed in range(20):
        votes, known = votes_of(num_prompts=1500, judgements_per_item=judgements, temperature=temperature, seed=seed, **habits)
        one = ceiling(votes, attention=attention(competence(votes)), seed=seed, num_resamples=400)
        truth = known.ceiling
        found.append(one.decided.estimate)
        hits.append(one.decided.low <= truth <= one.decided.high)
    assert np.mean(found) == pytest.approx(truth, abs=0.015)
    assert np.mean(hits) >= 0.75


@pytest.mark.parametrize(
    ("shares", "off"),
    [
        (np.random.default_rng(0).beta(0.5, 0.5, 3000), 0.02),
        (np.random.default_rng(1).beta(3, 3, 3000), 0.02),
        (np.random.default_rng(2).uniform(0.2, 0.8, 3000), 0.03),  # no unit is clear: as far from normal gaps as
        (np.where(np.arange(3000) % 2 == 0, 0.9, 0.3), 0.03),  # two kinds of units
    ],
    ids=["beta 1/2", "beta 3", "uniform", "two kinds"],
)
def test_another_shape_of_disagreement_costs_little_and_stays_inside_the_bounds(shares, off):
    one = ceiling(votes_with(shares, 3, 0), seed=0, num_resamples=50)
    truth = float(np.maximum(shares, 1 - shares).mean())
    assert one.decided.estimate == pytest.approx(truth, abs=off)
    assert one.beta == pytest.approx(truth, abs=off)
    assert one.bounds[0] <= truth <= one.bounds[1] + 0.005


def test_the_plug_in_maximum_would_be_wrong_by_far():
    """What is not done, and why: people who toss coins, three each, have a majority of 3/4 on average."""
    votes = votes_with(np.full(2000, 0.5), 3, 0)
    total = np.bincount(votes.unit, weights=votes.outcome)
    assert (0.5 + np.abs(total).mean() / 6) == pytest.approx(0.75, abs=0.01)
    one = ceiling(votes, seed=0)
    assert one.decided.low == 0.5
    assert one.like_coins


def test_careless_people_are_taken_into_account():
    settings = {"num_prompts": 3000, "temperature": 0.3, "careless_share": 0.3, "seed": 1}
    votes, truth = votes_of(**settings)
    share = attention(competence(votes))
    assert share.single == pytest.approx(0.7, abs=0.03)
    assert share.pair == pytest.approx(7 * 6 / (10 * 9), abs=0.03)
    plain, aware = (ceiling(votes, attention=a, seed=0, num_resamples=50).decided.estimate for a in (Attention(), share))
    assert abs(aware - truth.ceiling) < 0.012
    assert abs(plain - truth.ceiling) > 0.02


def test_closed_forms():
    assert ceiling_bounds(0.25, 1.0) == (0.625, 0.75)
    assert ceiling_bounds(-0.1, 0.8) == (0.5, 0.5)
    assert ceiling_bounds(1.0, 1.0) == (1.0, 1.0)
    assert [expected_ceiling(moment) for moment in (0.0, 1.0)] == [0.5, 1.0]
    # small gaps: e = gap / 2 is normal, E|e| = sqrt(2 / pi) sqrt(E e^2)
    assert expected_ceiling(1e-4) == pytest.approx(0.5 + math.sqrt(2 / math.pi) * 0.01 / 2, rel=1e-4)
    one = ceiling(votes_with(np.random.default_rng(3).random(4000), 2, 1), seed=0, num_resamples=50)  # uniform: Beta(1, 1), E|2p - 1| = 1/2
    assert one.beta == pytest.approx(0.75, abs=0.015)
    assert one.tie_threshold == 0


def test_the_moment_counts_each_pair_of_people_once_and_each_unit_alike():
    items = [Item("i", "p", ("a", "b")), Item("h", "q", ("c", "d")), Item("alone", "r", ("e", "f"))]

    def said(item, who, choice):
        return Judgement(f"{item} {who}", item, who, choice, {i.item_id: i.answers for i in items}[item])

    judgements = [
        said("i", "x", Choice.FIRST), said("i", "y", Choice.FIRST), said("i", "z", Choice.SECOND),  # products 1, -1, -1
        said("h", "x", Choice.TIE), said("h", "y", Choice.FIRST),
        said("alone", "x", Choice.FIRST),
    ]  # fmt: skip
    assert overlap_sums(read_votes(judgements, items, {})) == pytest.approx(np.array([[-1 / 3, 1, 1], [0, 1, 0.5]]))


def test_variance_of_the_moment_is_that_of_simulated_units():
    for judgements in (2, 3):
        votes, _ = votes_of(num_prompts=8_000, judgements_per_item=judgements, temperature=0.7, tie_threshold=0.3, seed=2)
        sums = overlap_sums(votes)
        moment, decided = sums[:, 0].mean(), sums[:, 2].mean()
        assert product_variance(moment, decided, judgements) == pytest.approx(sums[:, 0].var(), rel=0.05)


def test_no_disagreement_is_no_proof():
    one = ceiling(votes_with(np.ones(40), 2, 0), seed=0)
    assert one.decided.estimate == 1.0
    assert 0.9 < one.decided.low < 0.99


def test_too_little_overlap_is_an_error_that_says_what_to_do():
    votes, _ = votes_of(num_prompts=100, overlap=0.1)
    with pytest.raises(DataError, match=r"at least 30 pairs of answers over 20 prompts .* let a second person judge"):
        ceiling(votes, seed=0)
    votes, _ = votes_of(num_prompts=5, answers_per_prompt=5)  # enough units, too few prompts
    with pytest.raises(DataError, match="there are 50 over 5"):
        ceiling(votes, seed=0)
    items = [Item(f"i{n}", f"p{n}", (f"{n}a", f"{n}b")) for n in range(40)]
    ties = [Judgement(f"{n}{w}", f"i{n}", w, Choice.TIE, (f"{n}a", f"{n}b")) for n in range(40) for w in "xy"]
    votes = read_votes(ties, items, {})
    with pytest.raises(DataError, match="all judgements of the 40 pairs"):
        ceiling(votes, seed=0)


def test_hardly_a_preference_among_ties_gives_no_finite_interval():
    items = [Item(f"i{n}", f"p{n}", (f"{n}a", f"{n}b")) for n in range(40)]
    judgements = [
        Judgement(f"{n}{w}", f"i{n}", w, Choice.FIRST if n == 0 else Choice.TIE, (f"{n}a", f"{n}b")) for n in range(40) for w in "xy"
    ]
    one = ceiling(read_votes(judgements, items, {}), seed=0)
    assert (one.decided.low, one.decided.high) == (-math.inf, math.inf)


def test_repeats_of_one_person_and_test_questions_are_no_overlap():
    items = [Item(f"i{n}{s}", f"p{n}", (f"{n}a", f"{n}b")) for n in range(40) for s in "uv"]
    alone = [Judgement(item.item_id, item.item_id, "x", Choice.FIRST, item.answers) for item in items]
    with pytest.raises(DataError, match="there are 0 over 0"):
        ceiling(read_votes(alone, items, {}), seed=0)


def test_attention_is_checked():
    votes, _ = votes_of(num_prompts=40)
    with pytest.raises(ValueError, match="attention must be above 0 and at most 1, got "):
        ceiling(votes, attention=Attention(0.0, 0.0), seed=0)
