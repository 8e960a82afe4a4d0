"""Closed forms of small worlds: what is refused, and first-order conditions (values: test_small_worlds.py)."""

import pytest
import torch

from tether import maths

HALVES = torch.tensor([0.5, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("optimum", [maths.reverse_kl_optimum, maths.reverse_kl_value, maths.forward_kl_optimum])
@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_a_beta_that_is_not_positive_is_refused(optimum, beta):
    with pytest.raises(ValueError, match="beta must be positive"):
        optimum(torch.zeros(2).double(), HALVES, beta)


def test_forward_optimum_needs_a_reference_that_covers_every_action():
    with pytest.raises(ValueError, match="positive probability"):
        maths.forward_kl_optimum(torch.zeros(2).double(), torch.tensor([1.0, 0.0]).double(), 1.0)


def test_forward_optimum_by_hand():
    # beta ref / (lambda - R) with R [0, 1], ref [.5, .5], beta 1: .5 / l + .5 / (l - 1) = 1 at l = 1 + 1 / sqrt 2
    policy = maths.forward_kl_optimum(torch.tensor([0.0, 1.0]).double(), HALVES, 1.0)
    assert policy.tolist() == pytest.approx([0.2928932, 0.7071068], abs=1e-6)


@pytest.mark.parametrize(("hazard", "reward"), [(0.0, 0.1), (1.0, 0.1), (0.2, -0.1)])
def test_length_hack_outside_its_world_is_refused(hazard, reward):
    with pytest.raises(ValueError, match="expected 0 < hazard < 1"):
        maths.length_hack(hazard, reward, 1.0)


def test_length_hack_reference_length_is_one_over_the_hazard():
    assert maths.length_hack(0.25, 0.0, 1.0).ref_mean_length == 4
