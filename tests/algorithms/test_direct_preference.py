"""Direct preference losses as sums: values by hand, what does and does not change them, and the statistics beside them."""

from __future__ import annotations

import math

import pytest
import torch

from tether.algorithms.direct_preference import (
    PairSums,
    PreferenceSpec,
    answer_loss,
    balanced_weights,
    pair_loss,
    sequence_sums,
)
from tether.config import DirectConfig, OnlineDPOConfig

T = torch.tensor


def sides(chosen=(-4.0,), rejected=(-6.0,), lengths=(4.0, 4.0)):
    return (
        PairSums(T(chosen), torch.full((len(chosen),), lengths[0])),
        PairSums(T(rejected), torch.full((len(rejected),), lengths[1])),
    )


def loss_of(spec, chosen=(-4.0,), rejected=(-6.0,), start=(-5.0, -5.0), lengths=(4.0, 4.0)):
    starts = (torch.full((len(chosen),), start[0]), torch.full((len(rejected),), start[1]))
    return pair_loss(*sides(chosen, rejected, lengths), *starts, spec)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PreferenceSpec("dpo", 0.1), 0.598139),  # h = 2
        (PreferenceSpec("cdpo", 0.1, 0.1), 0.618139),
        (PreferenceSpec("robust", 0.1, 0.1), 0.573139),
        (PreferenceSpec("hinge", 0.1), 0.8),
        (PreferenceSpec("ipo", 0.1), 9.0),
        (PreferenceSpec("ipo_avg", 0.1), 20.25),  # (0.5 - 5)^2
        (PreferenceSpec("simpo", 2.0, gamma=0.5), 0.474077),  # averages -1 and -1.5
        (PreferenceSpec("dpo", 0.1, sft_coef=0.5), 0.598139 + 0.5 * 1.0),  # NLL of the chosen answer: 4 nats over 4 tokens
    ],
)
def test_a_pair_by_hand(spec, expected):
    assert float(loss_of(spec).total) == pytest.approx(expected, abs=1e-6)


def test_orpo_by_hand():
    half = 2 * math.log(0.5)
    loss = loss_of(PreferenceSpec("orpo", 0.1), (half,), (half,), lengths=(2.0, 2.0))
    assert value(loss) == pytest.approx(math.log(2) + 0.1 * math.log(2), abs=1e-6)


def test_sums_are_over_live_tokens_alone():
    sums = sequence_sums(T([[-1.0, -2.0, float("nan")], [-0.5, -0.5, -0.5]]), T([[True, True, False], [False, True, True]]))
    assert sums.logprobs_B.tolist() == [-3.0, -1.0]
    assert sums.lengths_B.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["dpo", "cdpo", "robust", "ipo", "ipo_avg", "hinge", "orpo", "simpo"])
def test_two_pairs_give_the_sum_of_one_and_one(kind):
    spec = PreferenceSpec(kind, 0.3, 0.1 if kind in {"cdpo", "robust"} else 0.0, sft_coef=0.0 if kind == "orpo" else 0.2)
    both = loss_of(spec, (-4.0, -7.0), (-6.0, -3.0))
    parts = [loss_of(spec, (c,), (r,)) for c, r in ((-4.0, -6.0), (-7.0, -3.0))]
    assert value(both) == pytest.approx(sum(value(part) for part in parts), rel=1e-6)
    together = parts[0].stats + parts[1].stats
    assert together.num_units == both.stats.num_units == 2
    assert both.stats.correct == together.correct == 1
    assert both.stats.margin == pytest.approx(together.margin, abs=1e-6)


@pytest.mark.parametrize("kind", ["dpo", "cdpo", "robust", "ipo", "ipo_avg", "hinge", "orpo", "simpo"])
def test_the_gradient_raises_the_chosen_answer_and_lowers_the_rejected_one(kind):
    chosen, rejected = T([-5.0], requires_grad=True), T([-5.0], requires_grad=True)
    spec = PreferenceSpec(kind, 0.1, 0.1 if kind in {"cdpo", "robust"} else 0.0)
    lengths = T([4.0])
    pair_loss(PairSums(chosen, lengths), PairSums(rejected, lengths), T([-5.0]), T([-5.0]), spec).total.backward()
    assert float(chosen.grad) < 0 < float(rejected.grad)


@pytest.mark.parametrize("kind", ["dpo", "ipo", "ipo_avg", "hinge"])
def test_at_the_start_implied_rewards_are_zero_and_ties_count_half(kind):
    stats = loss_of(PreferenceSpec(kind, 0.1), (-5.0,), (-5.0,)).stats
    assert (stats.reward_chosen, stats.reward_rejected, stats.margin, stats.correct) == (0, 0, 0, 0.5)
    assert (stats.chosen_change, stats.rejected_change) == (0, 0)


def test_implied_rewards_are_measured_as_the_loss_ranks():
    stats = loss_of(PreferenceSpec("dpo", 0.1)).stats
    assert (stats.reward_chosen, stats.reward_rejected) == pytest.approx((0.1, -0.1))
    stats = loss_of(PreferenceSpec("ipo_avg", 1.0)).stats
    assert stats.margin == pytest.approx(0.5)  # (1 - -1) / 4 tokens
    stats = loss_of(PreferenceSpec("simpo", 2.0)).stats
    assert stats.margin == pytest.approx(1.0)  # 2 (-1 - -1.5)
    assert (stats.chosen_change, stats.rejected_change) == (1.0, -1.0)  # the start is still what changes are measured from


@pytest.mark.parametrize("kind", ["orpo", "simpo"])
def test_losses_without_a_reference_do_not_read_one(kind):
    spec = PreferenceSpec(kind, 0.5)
    assert float(loss_of(spec).total) == float(loss_of(spec, start=(-50.0, -1.0)).total)


def test_the_start_gets_no_gradient():
    start = T([-5.0], requires_grad=True)
    chosen = T([-4.0], requires_grad=True)
    pair_loss(PairSums(chosen, T([4.0])), PairSums(T([-6.0]), T([4.0])), start, start, PreferenceSpec("dpo", 0.1)).total.backward()
    assert start.grad is None


def value(loss):
    return float(loss.total.detach())


def kto(log_ratios, liked, mismatched, weights=(1.0, 1.0), beta=0.1):
    n = len(log_ratios)
    sums = PairSums(T(log_ratios, requires_grad=True), torch.ones(n))
    return sums, answer_loss(sums, torch.zeros(n), T(liked), T(mismatched), PreferenceSpec("kto", beta), weights)


def test_kto_by_hand():
    _, loss = kto([1.0, 1.0], [True, False], [-3.0, 1.0])  # z0 = max(0, -1) = 0
    assert value(loss) == pytest.approx(0.475021 + 0.524979, abs=1e-6)
    _, loss = kto([1.0], [True], [2.0, 4.0], weights=(2.0, 1.0))  # z0 = 3: 2 (1 - sigma(-.2))
    assert value(loss) == pytest.approx(2 * 0.549834, abs=1e-6)
    assert loss.stats.correct == 0  # below z0 although it rose
    assert math.isnan(loss.stats.margin)  # no disliked answer


def test_kto_has_one_reference_point_for_the_step_however_it_is_split():
    log_ratios, liked, mismatched = [1.0, -2.0, 0.5, 3.0], [True, False, False, True], [0.2, 3.0, 1.0, 1.8]
    whole = kto(log_ratios, liked, mismatched)[1]
    split = [kto(log_ratios[:1], liked[:1], mismatched)[1], kto(log_ratios[1:], liked[1:], mismatched)[1]]
    assert value(whole) == pytest.approx(sum(value(part) for part in split), rel=1e-6)
    local = [kto(log_ratios[:1], liked[:1], mismatched[:1])[1], kto(log_ratios[1:], liked[1:], mismatched[1:])[1]]
    assert value(whole) != pytest.approx(sum(value(part) for part in local), rel=1e-6)
    stats = split[0].stats + split[1].stats
    assert (stats.num_chosen, stats.num_rejected) == (2, 2)
    assert stats.margin == pytest.approx(0.1 * (2.0 - -0.75))


def test_kto_raises_liked_answers_and_lowers_disliked_ones():
    sums, loss = kto([0.0, 0.0], [True, False], [0.0])
    loss.total.backward()
    assert sums.logprobs_B.grad[0] < 0 < sums.logprobs_B.grad[1]


def test_weights_are_balanced_by_the_rule_of_the_paper():
    assert balanced_weights(10, 10) == (1, 1)
    assert balanced_weights(4, 3) == (1, 1)  # 4/3 is still inside
    assert balanced_weights(10, 30) == (3, 1)
    assert balanced_weights(30, 10) == (1, 2.25)
    for liked, disliked in ((7, 90), (90, 7), (1, 1), (5, 6)):
        w_liked, w_disliked = balanced_weights(liked, disliked)
        assert 1 - 1e-9 <= w_liked * liked / (w_disliked * disliked) <= 4 / 3 + 1e-9


def test_specs_of_configurations():
    simpo = DirectConfig.model_validate({"kind": "simpo", "data": {"path": "p"}})
    assert PreferenceSpec.direct(simpo) == PreferenceSpec("simpo", 2.0, gamma=1.0)
    online = {"kind": "online_dpo", "prompts": {"path": "p"}, "rewards": [{"kind": "format"}]}
    assert PreferenceSpec.online(OnlineDPOConfig.model_validate(online)).kind == "dpo"
    smoothed = OnlineDPOConfig.model_validate({**online, "label_smoothing": 0.2})
    assert PreferenceSpec.online(smoothed) == PreferenceSpec("cdpo", 0.1, 0.2)
