"""Best of n: what is refused, and the bound (values: test_small_worlds.py)."""

import math

import pytest
import torch

from tether import maths

NAN = float("nan")


@pytest.mark.parametrize("n", [0, 3])
def test_more_than_there_are_cannot_be_estimated(n):
    with pytest.raises(ValueError, match=f"best of {n} cannot be estimated from 2 samples"):
        maths.bon_unbiased(torch.zeros(2), torch.zeros(2), n)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_an_unscorable_sample_is_refused_by_the_estimate(side, bad):
    scores = [torch.zeros(2), torch.zeros(2)]
    scores[side][1] = bad
    with pytest.raises(ValueError, match="finite scores"):
        maths.bon_unbiased(*scores, 1)


@pytest.mark.parametrize(("probs", "n"), [([0.5, 0.5], 0), ([0.5, 0.4], 2), ([1.2, -0.2], 2)])
def test_what_is_no_distribution_is_refused(probs, n):
    with pytest.raises(ValueError, match="expected n >= 1 and probabilities"):
        maths.bon_kl(torch.tensor(probs), torch.zeros(2), n)


def test_bound_by_hand():
    assert maths.bon_kl_bound(1) == 0
    assert maths.bon_kl_bound(4) == pytest.approx(0.636294, abs=1e-6)
    with pytest.raises(ValueError, match="n must be at least 1"):
        maths.bon_kl_bound(0)


@pytest.mark.parametrize("arguments", [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6)])
def test_pass_at_k_outside_its_range_is_refused(arguments):
    with pytest.raises(ValueError, match="0 <= c <= n"):
        maths.pass_at_k(*arguments)


def test_pass_at_k_by_hand():
    # 4 samples, 2 right: of the 6 pairs one holds no right answer
    assert maths.pass_at_k(4, 2, 2) == pytest.approx(5 / 6)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.5], [NAN, 1.0]])
def test_principle_weights_must_weigh_something(weights):
    with pytest.raises(ValueError, match="principle weights"):
        maths.principle_vote(torch.ones(1, 2, 1), torch.tensor(weights))
