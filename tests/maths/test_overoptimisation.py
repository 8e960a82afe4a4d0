"""The law of over-optimisation."""

import math

import pytest
import torch

from tether import maths
from tether.maths import OptimisationKind, Overoptimisation

BON, RL = OptimisationKind.BON, OptimisationKind.RL


def test_rl_law_by_hand():
    # d = e at KL e^2: gold = e (2 - .5 * 1) = 1.5 e; peak at d = exp(3), gold .5 exp(3)
    law = Overoptimisation(RL, 2.0, 0.5)
    gold = law.gold(torch.tensor([0.0, math.e**2], dtype=torch.float64))
    assert gold.tolist() == pytest.approx([0.0, 1.5 * math.e])
    assert (law.peak_distance, law.peak_gold) == pytest.approx((math.exp(3), 0.5 * math.exp(3)))


@pytest.mark.parametrize("kind", [BON, RL])
@pytest.mark.parametrize("beta", [0.0, -0.1])
def test_a_law_that_does_not_bend_has_no_peak(kind, beta):
    law = Overoptimisation(kind, 1.0, beta)
    assert (law.peak_distance, law.peak_gold) == (math.inf, math.inf)


@pytest.mark.parametrize("kind", [BON, RL])
def test_fit_finds_the_law_again(kind):
    kls = torch.tensor([0.0, 0.5, 1.0, 4.0, 9.0], dtype=torch.float64)
    fit = maths.fit_overoptimisation(kls, Overoptimisation(kind, 1.7, 0.3).gold(kls), kind)
    assert (fit.kind, fit.alpha, fit.beta) == (kind, pytest.approx(1.7), pytest.approx(0.3))


@pytest.mark.parametrize("points", [[], [1.0]])
def test_too_few_points_are_refused(points):
    with pytest.raises(ValueError, match="two or more points"):
        maths.fit_overoptimisation(torch.tensor(points), torch.tensor(points), BON)


def test_a_negative_kl_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        Overoptimisation(BON, 1.0, 0.1).gold(torch.tensor([-0.1]))
    with pytest.raises(ValueError, match="must not be negative"):
        maths.fit_overoptimisation(torch.tensor([-1.0, 1.0]), torch.zeros(2), RL)


@pytest.mark.gpu
def test_gold_stays_on_the_device_of_its_input():
    law = Overoptimisation(BON, 1.0, 0.25)
    assert law.gold(torch.tensor([4.0], device="cuda")).tolist() == [1.0]


@pytest.mark.parametrize("kls", [[0.0, 0.0], [4.0, 4.0], [0.0, 9.0]])
def test_points_that_two_parameters_do_not_tell_apart_are_refused(kls):
    with pytest.raises(ValueError, match="two different KLs above 0"):
        maths.fit_overoptimisation(torch.tensor(kls), torch.tensor([1.0, 2.0]), BON)
