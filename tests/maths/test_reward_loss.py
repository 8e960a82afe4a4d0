"""Reward model losses and metrics."""

import math

import pytest
import torch

from tether import maths

NAN = float("nan")


def test_bradley_terry_by_hand():
    one, zero = torch.tensor([1.0]), torch.tensor([0.0])
    assert maths.bt_loss(one, zero).item() == pytest.approx(0.313262, abs=1e-6)
    assert maths.bt_loss(one, zero, margin=1.0).item() == pytest.approx(0.693147, abs=1e-6)
    assert maths.bt_loss(one, zero, center_coef=0.01).item() == pytest.approx(0.323262, abs=1e-6)
    assert maths.bt_loss(one, zero, label_smoothing=0.1).item() == pytest.approx(0.413262, abs=1e-6)


def test_case_E5_identical_answers_cost_log_two_and_teach_nothing():
    scores = torch.tensor([0.4], requires_grad=True)
    loss = maths.bt_loss(scores, scores)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert scores.grad.tolist() == [0]


def test_exact_at_extreme_scores():
    chosen = torch.tensor([800.0, -800.0], requires_grad=True)
    losses = maths.bt_loss(chosen, torch.zeros(2))
    losses.sum().backward()
    assert losses.tolist() == [0, 800]
    assert chosen.grad.tolist() == [0, -1]


def test_an_offset_changes_nothing():
    chosen, rejected = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 0.0]).double()
    moved = maths.bt_loss(chosen + 7, rejected + 7)
    torch.testing.assert_close(moved, maths.bt_loss(chosen, rejected))


def test_nan_scores_name_the_row():
    with pytest.raises(maths.NonFiniteError, match="rejected_scores is nan at row 1"):
        maths.bt_loss(torch.zeros(2), torch.tensor([0.0, NAN]))


def test_tie_models_by_hand():
    zero = torch.zeros((), dtype=torch.float64)
    for out in (maths.rao_kupper(zero, zero, math.log(2)), maths.davidson(zero, zero, 1.0)):
        assert [float(p) for p in (out.first, out.second, out.tie)] == pytest.approx([1 / 3] * 3)


def test_tie_models_reduce_to_bradley_terry():
    first, second = torch.tensor(1.0).double(), torch.tensor(0.0).double()
    for out in (maths.rao_kupper(first, second, 0.0), maths.davidson(first, second, 0.0)):
        assert float(out.first) == pytest.approx(0.731059, abs=1e-6)
        assert float(out.tie) == pytest.approx(0, abs=1e-15)


def test_plackett_luce_by_hand_and_reduction_to_a_pair():
    assert float(maths.plackett_luce_nll(torch.zeros(3), torch.tensor([2, 0, 1]))) == pytest.approx(1.791759)
    pair = maths.plackett_luce_nll(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))
    assert float(pair) == pytest.approx(0.313262, abs=1e-6)
    with pytest.raises(ValueError, match="permutation"):
        maths.plackett_luce_nll(torch.zeros(3), torch.tensor([0, 0, 1]))


def test_instructgpt_weighs_prompts_and_not_pairs():
    ranked = [torch.tensor([1.0, 0.0]), torch.zeros(3)]
    assert float(maths.instructgpt_rm_loss(ranked)) == pytest.approx(0.503204, abs=1e-6)
    assert float(maths.flattened_pair_loss(ranked)) == pytest.approx(0.598176, abs=1e-6)
    with pytest.raises(ValueError, match="needs two"):
        maths.instructgpt_rm_loss([torch.zeros(1)])


def test_linear_fit_solves_its_first_order_condition():
    w = float(maths.linear_bt_fit(torch.tensor([[1.0]], dtype=torch.float64), 0.25))
    assert 1 / (1 + math.exp(w)) == pytest.approx(0.25 * w, abs=1e-12)


def test_linear_fit_refuses_no_regulariser():
    with pytest.raises(ValueError, match="separable"):
        maths.linear_bt_fit(torch.ones(1, 1), 0.0)


def test_linear_fit_survives_badly_scaled_features():
    w = maths.linear_bt_fit(torch.tensor([[1000.0, 0.001], [-3.0, 2.0]], dtype=torch.float64), 1e-4)
    assert torch.isfinite(w).all()


def test_pair_metrics_by_hand():
    out = maths.pair_metrics(torch.tensor([0.0, math.log(3)]).double(), torch.zeros(2).double())
    assert out.accuracy == 0.75
    assert out.nll == pytest.approx((0.693147 + 0.287682) / 2, abs=1e-6)
    assert out.brier == pytest.approx((0.25 + 0.0625) / 2)
    assert out.ece == pytest.approx(0.125)  # bins .5 (right .5) and .75 (right 1)
    assert out.mean_margin == pytest.approx(math.log(3) / 2)


def test_a_perfectly_certain_pair_falls_in_the_last_bin():
    out = maths.pair_metrics(torch.tensor([800.0]), torch.tensor([0.0]))
    assert (out.accuracy, out.nll, out.ece) == (1, 0, 0)


def test_label_smoothing_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"\[0, .5\)"):
        maths.bt_loss(torch.zeros(1), torch.zeros(1), label_smoothing=0.5)


def test_a_nan_margin_names_the_row():
    with pytest.raises(maths.NonFiniteError, match="margin is nan at row 1"):
        maths.bt_loss(torch.zeros(2), torch.zeros(2), margin=torch.tensor([0.0, NAN]))


def test_tie_models_refuse_negative_parameters():
    zero = torch.zeros(())
    with pytest.raises(ValueError, match="eta must not be negative"):
        maths.rao_kupper(zero, zero, -0.1)
    with pytest.raises(ValueError, match="nu must not be negative"):
        maths.davidson(zero, zero, -0.1)


def test_losses_and_metrics_of_nothing_are_refused():
    with pytest.raises(ValueError, match="no prompts"):
        maths.flattened_pair_loss([])
    with pytest.raises(ValueError, match="no pairs"):
        maths.pair_metrics(torch.zeros(0), torch.zeros(0))


def test_linear_fit_halves_a_step_that_overshoots():
    # Plain Newton raises the objective here at its twelfth step, from .009 to 2.05.
    features = torch.tensor([[121.7, -510.0, -42.0], [0.6, -1.4, -1.4], [-2.6, 8.0, -5.5]], dtype=torch.float64)
    l2 = 0.0009372879
    w = maths.linear_bt_fit(features, l2).requires_grad_()
    objective = maths.bt_loss(features @ w, torch.zeros(3).double()).mean() + l2 / 2 * w.square().sum()
    (gradient,) = torch.autograd.grad(objective, w)
    assert gradient.abs().max() < 1e-7
    assert objective < 0.009


def test_linear_fit_says_when_it_did_not_converge():
    with pytest.raises(RuntimeError, match="did not converge in 1 steps"):
        maths.linear_bt_fit(torch.tensor([[1.0]]), 0.25, max_steps=1)


@pytest.mark.parametrize(
    ("label", "smoothing", "q"), [(0.75, 0.0, 0.75), (0.0, 0.0, 0.0), (0.9, 0.1, 0.82), (0.5, 0.3, 0.5), (1.0, 0.1, 0.9), (0.2, 0.1, 0.26)]
)
def test_a_soft_label_weighs_both_outcomes(label, smoothing, q):
    """q softplus(-1) + (1 - q) softplus(1), as a number for all pairs and as one a pair."""
    one, zero = torch.tensor([1.0]), torch.tensor([0.0])
    expected = q * math.log1p(math.exp(-1)) + (1 - q) * math.log1p(math.exp(1))
    for labels in (label, torch.tensor([label])):
        found = maths.bt_loss(one, zero, label_smoothing=smoothing, labels=labels)
        assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("labels", [1.5, -0.1, float("nan")])
def test_a_label_that_is_no_probability_is_refused(labels):
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\]"):
        maths.bt_loss(torch.ones(2), torch.zeros(2), labels=torch.tensor([1.0, labels]))
