"""Direct preference losses."""

import math

import pytest
import torch

from tether import maths
from tether.maths import PreferenceKind

NAN = float("nan")


def _pairs(chosen=-4.0, rejected=-6.0, ref_chosen=-5.0, ref_rejected=-5.0, lengths=(4.0, 4.0)):
    def row(x):
        return torch.tensor([x], dtype=torch.float64)

    return maths.PreferencePairs(
        row(chosen), row(rejected), row(ref_chosen), row(ref_rejected), row(lengths[0]), row(lengths[1])
    )


@pytest.mark.parametrize(
    ("kind", "beta", "options", "expected"),
    [
        (PreferenceKind.DPO, 0.1, {}, 0.598139),
        (PreferenceKind.CDPO, 0.1, {"label_smoothing": 0.1}, 0.618139),
        (PreferenceKind.ROBUST, 0.1, {"label_smoothing": 0.1}, 0.573139),
        (PreferenceKind.HINGE, 0.1, {}, 0.8),
        (PreferenceKind.IPO, 0.1, {}, 9.0),
        (PreferenceKind.IPO_AVG, 0.1, {}, 20.25),
        (PreferenceKind.SIMPO, 2.0, {"gamma": 0.5}, 0.474077),
    ],
)
def test_by_hand(kind, beta, options, expected):
    assert float(maths.preference_loss(_pairs(), kind, beta, **options)) == pytest.approx(expected, abs=1e-6)


def test_orpo_by_hand():
    half = 2 * math.log(0.5)
    pairs = _pairs(half, half, lengths=(2.0, 2.0))
    assert float(maths.orpo_loss(pairs, 0.1)) == pytest.approx(0.762462, abs=1e-6)


def test_orpo_refuses_a_certain_answer():
    with pytest.raises(ValueError, match="odds"):
        maths.orpo_loss(_pairs(chosen=0.0), 0.1)


def test_dpo_is_exact_at_extreme_margins():
    margin = torch.tensor([-8000.0, 8000.0], requires_grad=True)
    losses = maths.dpo_loss(margin, 0.1)
    assert losses.tolist() == [800, 0]
    losses.sum().backward()
    assert margin.grad.tolist() == pytest.approx([-0.1, 0])


def test_options_that_would_be_ignored_are_refused():
    with pytest.raises(ValueError, match="label_smoothing"):
        maths.preference_loss(_pairs(), PreferenceKind.DPO, 0.1, label_smoothing=0.1)
    with pytest.raises(ValueError, match="gamma"):
        maths.preference_loss(_pairs(), PreferenceKind.IPO, 0.1, gamma=0.5)
    with pytest.raises(ValueError, match="beta"):
        maths.preference_loss(_pairs(), PreferenceKind.DPO, 0.0)
    with pytest.raises(ValueError, match=r"\[0, .5\)"):
        maths.preference_loss(_pairs(), PreferenceKind.ROBUST, 0.1, label_smoothing=0.5)


def test_nan_names_the_side():
    with pytest.raises(maths.NonFiniteError, match="ref_rejected_logprobs is nan at row 0"):
        maths.log_ratio_margin(_pairs(ref_rejected=NAN))


def test_empty_completion_is_refused_where_averages_are_taken():
    with pytest.raises(ValueError, match="at least one completion token"):
        maths.simpo_loss(_pairs(lengths=(0.0, 4.0)), 2.0, 0.5)


def test_robust_is_the_unbiased_mixture():
    # with labels flipped with probability e, the expected robust loss is the clean loss
    margin, e = torch.tensor([0.7], dtype=torch.float64), 0.2
    noisy = 0.8 * maths.robust_dpo_loss(margin, 0.5, e) + 0.2 * maths.robust_dpo_loss(-margin, 0.5, e)
    assert float(noisy) == pytest.approx(float(maths.dpo_loss(margin, 0.5)))


def test_implicit_rewards_count_a_tie_half():
    rewards = maths.implicit_rewards(_pairs(-5.0, -5.0), 0.1)
    assert rewards.accuracy == 0.5
    assert float(maths.implicit_rewards(_pairs(), 0.1).chosen_B) == pytest.approx(0.1)


def test_kto_by_hand():
    one, none = torch.tensor([1.0]), torch.tensor([0.0, -3.0])
    desirable = maths.kto_loss(one, torch.tensor([True]), none, 0.1)
    assert desirable.z0.item() == 0
    assert desirable.losses_B.item() == pytest.approx(0.475021, abs=1e-6)
    undesirable = maths.kto_loss(one, torch.tensor([False]), none, 0.1, undesirable_weight=2.0)
    assert undesirable.losses_B.item() == pytest.approx(2 * 0.524979, abs=1e-6)


def test_kto_reference_point_needs_mismatched_answers_and_carries_no_gradient():
    mismatched = torch.tensor([1.0, 2.0], requires_grad=True)
    out = maths.kto_loss(torch.zeros(1, requires_grad=True), torch.tensor([True]), mismatched, 0.1)
    assert out.z0.item() == 1.5
    assert not out.z0.requires_grad
    with pytest.raises(ValueError, match="two or more"):
        maths.kto_loss(torch.zeros(1), torch.tensor([True]), torch.zeros(0), 0.1)


def test_kto_weights_by_hand():
    assert maths.kto_weights(30, 10) == pytest.approx((2.25, 3.0))


@pytest.mark.parametrize("kind", list(PreferenceKind))
def test_gradients_against_finite_differences(kind):
    smoothing = 0.1 if kind in (PreferenceKind.CDPO, PreferenceKind.ROBUST) else 0.0
    fixed = torch.tensor([-5.0, -4.0], dtype=torch.float64)
    lengths = torch.tensor([4.0, 3.0], dtype=torch.float64)

    def loss(chosen, rejected):
        pairs = maths.PreferencePairs(chosen, rejected, fixed, fixed, lengths, lengths)
        return maths.preference_loss(pairs, kind, 0.3, smoothing)

    chosen = torch.tensor([-4.0, -3.5], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([-6.0, -3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (chosen, rejected))


@pytest.mark.parametrize(("good", "bad"), [(0, 10), (10, 0)])
def test_kto_weights_need_both_kinds(good, bad):
    with pytest.raises(ValueError, match="both kinds of rows"):
        maths.kto_weights(good, bad)


def test_implicit_rewards_of_no_pairs_are_refused():
    none = torch.zeros(0)
    with pytest.raises(ValueError, match="no pairs"):
        maths.implicit_rewards(maths.PreferencePairs(none, none, none, none, none, none), 0.1)


@pytest.mark.parametrize(
    "loss",
    [lambda h: maths.dpo_loss(h, 0.1), lambda h: maths.robust_dpo_loss(h, 0.1, 0.1), lambda h: maths.ipo_loss(h, 0.1)],
)
def test_a_nan_margin_names_the_row(loss):
    with pytest.raises(maths.NonFiniteError, match="margin is nan at row 1"):
        loss(torch.tensor([0.0, NAN]))
