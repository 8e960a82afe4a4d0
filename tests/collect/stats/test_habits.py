"""Every planted habit is found again, as often as its interval states, and what people do not do is not found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.simulate import SimulatedStudy, simulate
from tether.collect.stats.agreeing import agreement
from tether.collect.stats.bias import choice_model, length_curve, logistic, position_bias
from tether.collect.stats.ceiling import ceiling
from tether.collect.stats.reliability import (
    Attention,
    agreement_with_rest,
    attention,
    competence,
    gold_accuracy,
    pair_agreements,
    self_consistency,
)
from tether.collect.stats.speed import PAUSE_ALARM, speed
from tether.collect.stats.transitivity import transitivity
from tether.collect.stats.votes import read_votes
from tether.errors import ConfigError


def votes_of(**settings):
    made = simulate(SimulatedStudy(**settings))
    return read_votes(made.judgements, made.items, made.lengths), made.truth


def covers(interval, truth):
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize(("seeds", "least"), [(30, 0.85), pytest.param(200, 0.9, marks=pytest.mark.slow)])
def test_intervals_of_planted_habits_cover_as_stated(seeds, least):
    """One set of habits, all at once: of the 95 % intervals at least nine in ten hold the truth (26 of 30, where chance is wider)."""
    hits: dict[str, list[bool]] = {}
    for seed in range(seeds):
        votes, truth = votes_of(
            num_prompts=200, temperature=0.8, position_bias=0.4, length_bias=0.5, tie_threshold=0.3, both_bad_share=0.3, careless_share=0.2,
            seed=seed,
        )  # fmt: skip
        agreed, side, model = agreement(votes, seed=seed, num_resamples=300), position_bias(votes), choice_model(votes)
        people = competence(votes)
        limit = ceiling(votes, attention=attention(people), seed=seed, num_resamples=200)
        found = {
            "agreement": (agreed.raw, truth.agreement), "ties": (agreed.tie_share, truth.tie_share),
            "left": (side.left_share, truth.left_share),
            "both bad": (agreed.both_bad_share, truth.both_bad_share), "length": (model.length, truth.length_slope),
            "side": (model.left, truth.left_slope), "ceiling": (limit.decided, truth.ceiling),
            "ceiling, ties half": (limit.ties_half, truth.ceiling_ties_half),
        }  # fmt: skip
        for name, (interval, value) in found.items():
            hits.setdefault(name, []).append(covers(interval, value))
        for person in people:
            careless = person.annotator in truth.careless
            hits.setdefault("careless" if careless else "attentive", []).append(covers(person.relative, 0.0 if careless else 1.0))
    assert {name: np.mean(kept) for name, kept in hits.items() if np.mean(kept) < least} == {}


def test_biases_are_the_planted_log_odds_where_quality_does_not_differ():
    votes, truth = votes_of(num_prompts=4000, quality_sd=0.0, position_bias=0.5, length_bias=0.7, seed=1)
    model = choice_model(votes)
    assert (truth.length_slope, truth.left_slope) == pytest.approx((0.7, 0.5), abs=1e-6)
    assert covers(model.length, 0.7)
    assert covers(model.left, 0.5)
    assert model.length.high - model.length.low < 0.15
    assert model.longer_wins.estimate == pytest.approx(1 / (1 + 2 ** -model.length.estimate))


def test_logistic_regression_is_at_its_maximum_and_says_when_there_is_none():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = (rng.random(300) < 1 / (1 + np.exp(-(x @ [0.5, -0.3])))).astype(float)
    slope = logistic(x, y, np.ones(300))
    assert np.abs(x.T @ (y - 1 / (1 + np.exp(-(x @ slope))))).max() < 1e-8
    assert np.isnan(logistic(np.ones((4, 1)), np.ones(4), np.ones(4))).all()  # every choice is explained: no finite slope


def test_slopes_and_clustered_errors_are_those_of_another_program():
    """statsmodels 0.15.0: Logit, cov_type="cluster" over prompts without its small-sample factors, which are ours times sqrt(300 / 299)."""
    votes, _ = votes_of(num_prompts=300, length_bias=0.5, position_bias=0.2, seed=2)
    found = choice_model(votes)
    errors = [(one.high - one.low) / 2 / 1.959963984540054 for one in (found.length, found.left)]
    assert [found.length.estimate, found.left.estimate] == pytest.approx([0.26096909, 0.15474895], rel=1e-6)
    assert errors == pytest.approx([0.09986051, 0.06667197], rel=1e-6)


def test_clustered_errors_know_that_copies_say_nothing_new():
    made = simulate(SimulatedStudy(num_prompts=300, judgements_per_item=1, length_bias=0.5, seed=2))
    copies = [
        Judgement(f"{j.judgement_id} {k}", j.item_id, f"{j.annotator} {k}", j.choice, j.shown, j.strength)
        for j in made.judgements
        for k in range(4)
    ]
    one = choice_model(read_votes(made.judgements, made.items, made.lengths)).length
    four = choice_model(read_votes(copies, made.items, made.lengths)).length
    assert (four.estimate, four.low, four.high) == pytest.approx((one.estimate, one.low, one.high))


def test_no_position_bias_is_found_no_more_often_than_stated():
    alarms = [position_bias(votes_of(num_prompts=100, seed=seed)[0]).p_value < 0.05 for seed in range(60)]
    assert np.mean(alarms) <= 0.1


def test_position_bias_names_the_person():
    items = [Item(f"i{n}", f"p{n}", (f"{n}a", f"{n}b")) for n in range(80)]
    rng = np.random.default_rng(0)

    def judge(n, who, left):
        side = rng.random() < 0.5
        shown = items[n].answers if side else items[n].answers[::-1]
        return Judgement(f"{n}{who}", f"i{n}", who, Choice.FIRST if side == left else Choice.SECOND, shown)

    judgements = [judge(n, who, who == "lefty" or rng.random() < 0.5) for n in range(80) for who in ("lefty", "fair")]
    found = position_bias(read_votes(judgements, items, {}))
    p_values = {name: p for name, _, p in found.by_annotator}
    assert p_values["lefty"] < 1e-10
    assert p_values["fair"] > 0.05
    assert {name: share.estimate for name, share, _ in found.by_annotator}["lefty"] == 1.0


def test_the_longer_answer_in_bins():
    votes, _ = votes_of(num_prompts=1000, quality_sd=0.0, length_bias=2.0, seed=3)
    curve = length_curve(votes)
    assert sum(count for _, _, count in curve) == int((votes.length_ratio != 0).sum())
    ratio, share, _ = curve[-1]
    assert share == pytest.approx(1 / (1 + ratio**-2.0), abs=0.06)
    assert [r for r, _, _ in curve] == sorted(r for r, _, _ in curve)


def test_careless_people_and_those_with_the_buttons_turned_round_are_found():
    made = simulate(SimulatedStudy(num_prompts=1200, temperature=0.6, careless_share=0.2, num_annotators=10, seed=5))
    turned = {Choice.FIRST: Choice.SECOND, Choice.SECOND: Choice.FIRST}
    victim = next(name for name in (f"annotator-{n}" for n in range(10)) if name not in made.truth.careless)
    judgements = [
        Judgement(j.judgement_id, j.item_id, j.annotator, turned[j.choice] if j.annotator == victim else j.choice, j.shown)
        for j in made.judgements
    ]
    votes = read_votes(judgements, made.items, made.lengths)
    people = {p.annotator: p for p in competence(votes)}
    assert {name for name, p in people.items() if p.unreliable} == made.truth.careless | {victim}
    assert people[victim].relative.high < -0.5
    rest = agreement_with_rest(votes)
    assert min(rest, key=lambda name: rest[name].estimate) == victim
    assert all(abs(p.shrunk - p.relative.estimate) < 0.15 for p in people.values())


def test_the_careless_do_not_lower_the_mark():
    """With four careless people of ten, the median of all would be below the attentive ones."""
    votes, truth = votes_of(num_prompts=1500, temperature=0.6, careless_share=0.4, seed=6)
    relative = [p.relative.estimate for p in competence(votes) if p.annotator not in truth.careless]
    assert len(relative) == 6
    assert np.mean(relative) == pytest.approx(1.0, abs=0.06)


def test_nobody_is_called_careless_who_is_not():
    flagged = [p.unreliable for seed in range(40) for p in competence(votes_of(num_prompts=200, temperature=0.6, seed=seed)[0])]
    assert np.mean(flagged) <= 0.005


def test_competence_needs_three_people():
    assert competence(votes_of(num_prompts=50, num_annotators=2, judgements_per_item=2)[0]) == ()
    assert attention(()) == Attention(1.0, 1.0)


def test_people_who_always_agree_are_reliable_and_those_with_few_shared_pairs_are_left_out():
    people = competence(votes_of(num_prompts=300, temperature=0.001, num_annotators=8)[0])
    assert len(people) == 8
    assert all(p.relative.estimate == pytest.approx(1.0, abs=0.05) and p.relative.low > 0.9 for p in people)
    for seed in range(20):  # five shared pairs each: too few to say anything, and nothing overflows
        assert len(competence(votes_of(num_prompts=100, num_annotators=60, seed=seed)[0])) in {0, *range(3, 30)}


def test_kappa_of_two_people_is_that_of_their_shared_pairs():
    votes, _ = votes_of(num_prompts=150, num_annotators=3, temperature=0.5)
    pairs = pair_agreements(votes, seed=0)
    assert [p.num_units for p in pairs] == [150] * 3
    assert all(covers(p.kappa, 2 * p.raw.estimate - 1) for p in pairs)  # two equal categories: kappa is about 2 agreement - 1


def test_test_questions():
    votes, _ = votes_of(num_prompts=600, gold_share=0.3, careless_share=0.3, seed=1)
    everybody, people = gold_accuracy(votes)
    assert 0.8 < everybody.estimate < 0.9
    assert sum(share.estimate < 0.75 for share in people.values()) == 3
    assert gold_accuracy(votes_of(num_prompts=20)[0]) == (None, {})


def test_self_consistency_of_repeats_with_the_sides_swapped():
    """With no noise but a strong side, swapped repeats contradict each other."""
    votes, _ = votes_of(num_prompts=300, quality_sd=0.0, position_bias=3.0, repeat_share=0.5, seed=0)
    same, swapped, people = self_consistency(votes)
    assert same == swapped
    assert same.estimate < 0.2
    assert len(people) == 10
    assert self_consistency(votes_of(num_prompts=20)[0]) == (None, None, {})
    faithful, _, _ = self_consistency(votes_of(num_prompts=300, temperature=0.01, repeat_share=0.5, seed=0)[0])
    assert faithful.estimate > 0.95


def test_pauses_are_counted_at_the_stated_rate_and_no_more():
    votes, _ = votes_of(num_prompts=8000, num_annotators=60, seed=2)
    found = speed(votes)
    assert found.num_timed == 24_000
    assert len(found.pauses) / found.num_timed == pytest.approx(PAUSE_ALARM, abs=0.0004)


def three(shares, seed, num_prompts=300):
    """Three answers to each prompt; a beats b, b beats c, c beats a with the given chances."""
    rng = np.random.default_rng(seed)
    pairs = (("a", "b"), ("b", "c"), ("c", "a"))
    items = [Item(f"{p} {x}{y}", f"p{p}", (f"{p}{x}", f"{p}{y}")) for p in range(num_prompts) for x, y in pairs]
    chances = np.tile(shares, num_prompts)
    made = [
        Judgement(i.item_id, i.item_id, "x", Choice.FIRST if rng.random() < share else Choice.SECOND, i.answers)
        for i, share in zip(items, chances, strict=True)
    ]
    return read_votes(made, items, {})


def test_cycles_of_coins_are_a_quarter_and_of_rock_paper_scissors_all():
    coins = transitivity(three((0.5, 0.5, 0.5), 0), None, seed=0)
    assert coins.num_triples == 300
    assert covers(coins.cyclic, 0.25)
    assert coins.expected is None
    always = transitivity(three((1.0, 1.0, 1.0), 0), None, seed=0)
    assert (always.cyclic.estimate, always.num_cycles) == (1.0, 300)
    assert 0.9 < always.cyclic.low < 1.0
    assert transitivity(three((1.0, 1.0, 0.0), 0), None, seed=0).num_cycles == 0
    assert transitivity(votes_of(num_prompts=30)[0], None, seed=0) is None


def test_cycles_of_one_quality_are_those_that_its_noise_explains():
    for noise in (0.5, 1.5):
        votes, _ = votes_of(num_prompts=250, answers_per_prompt=4, judgements_per_item=2, temperature=noise, tie_threshold=0.2, seed=1)
        found = transitivity(votes, ceiling(votes, seed=0, num_resamples=50), seed=0)
        assert found.cyclic.low - 0.02 <= found.expected <= found.cyclic.high + 0.02
        assert 0 < found.expected < 0.25


def test_strengths_agree_more_when_much():
    votes, _ = votes_of(num_prompts=500, seed=4)
    found = agreement(votes, seed=0)
    assert found.decided_much.low > found.decided_slight.high
    assert covers(found.much_share, float(np.mean(votes.strength == 1)))


def test_rates_without_a_case_have_an_interval_all_the_same():
    found = agreement(votes_of(num_prompts=100)[0], seed=0)
    assert (found.tie_share.estimate, found.tie_share.low) == (0.0, 0.0)
    assert found.tie_share.high == pytest.approx(0.0127, abs=1e-3)  # Wilson's, 0 of 300


def test_fleiss_is_over_the_most_common_number_of_people():
    votes, _ = votes_of(num_prompts=200, overlap=0.8, judgements_per_item=4, seed=0)
    found = agreement(votes, seed=0)
    assert found.fleiss_annotators == 4
    assert found.fleiss_units == found.num_shared_units
    # nothing missing and one number of people: alpha is Fleiss' kappa corrected for small samples
    n = 2 * 4 * found.num_shared_units  # each unit counts in both directions
    assert 1 - found.alpha_nominal.estimate == pytest.approx((1 - found.fleiss.estimate) * (n - 1) / n, rel=1e-9)


def test_a_study_that_cannot_be_is_refused_with_all_problems():
    with pytest.raises(ConfigError) as caught:
        SimulatedStudy(temperature=0.0, overlap=2.0, judgements_per_item=30, length_bias=math.nan)
    assert len(caught.value.problems) == 4


def test_simulation_is_its_seed_and_every_judgement_fits_its_item():
    settings = {"num_prompts": 30, "answers_per_prompt": 3, "tie_threshold": 0.4, "skip_share": 0.1, "repeat_share": 0.2, "gold_share": 0.2}
    one, same, other = (simulate(SimulatedStudy(seed=seed, **settings)) for seed in (1, 1, 2))
    assert one == same
    assert one.judgements != other.judgements
    items = {item.item_id: item for item in one.items}
    for judgement in one.judgements:
        judgement.check(items[judgement.item_id])
