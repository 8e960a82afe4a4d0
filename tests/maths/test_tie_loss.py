"""Losses with ties against the probabilities they are the logarithm of, soft labels, and what they are fitted to."""

from __future__ import annotations

import math

import pytest
import torch

from tether.maths import bt_loss, davidson, davidson_loss, linear_bt_fit, pair_metrics, rao_kupper, rao_kupper_loss

GAPS = torch.tensor([-3.0, -0.4, 0.0, 0.7, 5.0], dtype=torch.float64)
ZERO = torch.zeros_like(GAPS)
KINDS = {"rao_kupper": (rao_kupper, rao_kupper_loss), "davidson": (davidson, davidson_loss)}


def full(label: float) -> torch.Tensor:
    return torch.full_like(GAPS, label)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parameter", [0.05, 0.6931471805599453, 3.0])
def test_a_loss_is_minus_the_log_of_its_probability(kind, parameter):
    probabilities, loss = KINDS[kind]
    of = probabilities(GAPS, ZERO, parameter)
    for label, expected in ((1.0, of.first), (0.0, of.second), (0.5, of.tie)):
        torch.testing.assert_close(loss(GAPS, full(label), math.log(parameter)).neg().exp(), expected, rtol=1e-10, atol=0)
    told = loss(GAPS, full(0.8), math.log(parameter))
    torch.testing.assert_close(told, -0.8 * of.first.log() - 0.2 * of.second.log(), rtol=1e-9, atol=0)


def test_thirds_at_equal_scores():
    zero = torch.zeros(1, dtype=torch.float64)
    for label in (0.0, 0.5, 1.0):
        labels = torch.full_like(zero, label)
        assert float(rao_kupper_loss(zero, labels, math.log(math.log(2)))) == pytest.approx(math.log(3))
        assert float(davidson_loss(zero, labels, 0.0)) == pytest.approx(math.log(3))


@pytest.mark.parametrize("loss", [rao_kupper_loss, davidson_loss])
def test_far_scores_stay_exact_and_have_gradients(loss):
    gap = torch.tensor([800.0, -800.0], dtype=torch.float64, requires_grad=True)
    log_parameter = torch.tensor(-0.3, dtype=torch.float64, requires_grad=True)
    won = loss(gap, torch.ones(2, dtype=torch.float64), log_parameter)
    tied = loss(gap, torch.full((2,), 0.5, dtype=torch.float64), log_parameter)
    assert bool(torch.isfinite(torch.cat([won, tied])).all())
    assert float(won[0].detach()) == pytest.approx(0, abs=1e-12)
    (won.sum() + tied.sum()).backward()
    assert bool(torch.isfinite(gap.grad).all())
    assert math.isfinite(float(log_parameter.grad))


@pytest.mark.parametrize("loss", [rao_kupper_loss, davidson_loss])
def test_the_gradient_of_gap_and_parameter_is_that_of_finite_differences(loss):
    labels = torch.tensor([1.0, 0.5, 0.0, 0.7, 0.5], dtype=torch.float64)
    inputs = (GAPS.clone().requires_grad_(), torch.tensor(-0.4, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(lambda gap, log_parameter: loss(gap, labels, log_parameter), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_parameter_gives_the_share_of_ties_that_was_seen(kind):
    """30 of 100 pairs of equal scores are ties."""
    probabilities, loss = KINDS[kind]
    labels = torch.cat([torch.full((30,), 0.5), torch.ones(35), torch.zeros(35)]).double()
    log_parameter = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([log_parameter], max_iter=60, line_search_fn="strong_wolfe")

    def objective():
        optimiser.zero_grad()
        total = loss(torch.zeros(100, dtype=torch.float64), labels, log_parameter).sum()
        total.backward()
        return total

    optimiser.step(objective)
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(probabilities(zero, zero, math.exp(float(log_parameter.detach()))).tie) == pytest.approx(0.3, abs=1e-6)


def test_a_soft_label_of_bradley_terry_is_the_mean_of_the_two_losses():
    one, other = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    labels = torch.tensor([0.75, 0.4, 0.5])
    expected = labels * bt_loss(one, other) + (1 - labels) * bt_loss(other, one)
    torch.testing.assert_close(bt_loss(one, other, labels=labels), expected)
    assert bt_loss(one, other, labels=0.9).tolist() == pytest.approx(bt_loss(one, other, label_smoothing=0.1).tolist())
    with pytest.raises(ValueError, match=r"\[0, 1\], got -0.1 to 1.2"):
        bt_loss(one, other, labels=torch.tensor([-0.1, 1.2, 1.0]))


def test_metrics_under_labels():
    """Pairs: right and sure of it, wrong, a tie; by hand."""
    chosen, rejected = torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0])
    told = pair_metrics(chosen, rejected, labels=torch.tensor([1.0, 0.8, 0.5]))
    p = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1)), 0.5]
    assert told.accuracy == 0.5  # the tie is not counted
    assert told.nll == pytest.approx((-math.log(p[0]) - 0.8 * math.log(p[1]) - 0.2 * math.log(1 - p[1]) + math.log(2)) / 3)
    assert told.brier == pytest.approx(((1 - p[0]) ** 2 + 0.8 * (1 - p[1]) ** 2 + 0.2 * p[1] ** 2 + 0.25) / 3)
    assert told.ece == pytest.approx((abs(1 - p[0]) + abs(0.2 - (1 - p[1])) + 0) / 3)
    swapped = pair_metrics(rejected, chosen, labels=torch.tensor([0.0, 0.2, 0.5]))
    assert (swapped.accuracy, swapped.nll, swapped.ece) == pytest.approx((told.accuracy, told.nll, told.ece))


def test_a_linear_fit_to_labels_is_logistic_regression():
    """One feature, always 1: the weight is the logit of the mean label, up to the ridge."""
    ones = torch.ones(8, 1, dtype=torch.float64)
    labels = torch.tensor([1, 1, 1, 0.5, 1, 1, 0.5, 0], dtype=torch.float64)
    w = float(linear_bt_fit(ones, 1e-9, labels=labels))
    assert w == pytest.approx(math.log(0.75 / 0.25), abs=1e-6)
    rows, signs = torch.tensor([[1.0], [-2.0]]).double(), torch.tensor([1.0, 0.0]).double()
    turned = torch.tensor([[1.0], [2.0]]).double()
    assert float(linear_bt_fit(rows, 0.1, labels=signs)) == pytest.approx(float(linear_bt_fit(turned, 0.1)))
