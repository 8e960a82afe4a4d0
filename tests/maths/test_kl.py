"""KL estimators, units and controllers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths
from tether.maths import Aggregation, KLEstimator

NAN = float("nan")
ONE = torch.ones(1, 1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("estimator", "value"), [(KLEstimator.K1, -0.5), (KLEstimator.K2, 0.125), (KLEstimator.K3, 0.148721)]
)
def test_case_C1_values_by_hand(estimator, value):
    kl = maths.kl_tokens(torch.tensor([[-1.0]]), torch.tensor([[-0.5]]), ONE, estimator)
    assert float(kl) == pytest.approx(value, abs=1e-6)


@settings(max_examples=80, deadline=None)
@given(st.floats(-30, 0, width=32), st.floats(-30, 0, width=32))
def test_case_C1_k2_and_k3_are_never_negative(logprob, ref_logprob):
    a, b = torch.tensor([logprob]), torch.tensor([ref_logprob])
    assert float(maths.kl_k2(a, b)) >= 0
    assert float(maths.kl_k3(a, b)) >= 0


@pytest.mark.parametrize("estimator", list(KLEstimator))
def test_case_C1_policy_equal_to_reference_gives_exactly_zero(estimator):
    x = torch.tensor([[-0.1, -7.3]])
    assert maths.kl_tokens(x, x, torch.ones(1, 2).bool(), estimator).tolist() == [[0.0, 0.0]]


def test_case_C2_one_step_on_the_kl_loss_approaches_the_reference():
    logits = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    ref = torch.zeros(3, dtype=torch.float64)
    sampled = torch.log_softmax(logits, -1)[None]  # each action once, weighted by its probability
    loss = maths.grpo_loss(
        sampled, sampled.detach(), torch.log_softmax(ref, -1)[None], torch.zeros(1, 3),
        torch.ones(1, 3).bool(), beta=0.1, estimator=KLEstimator.K2,
    )  # fmt: skip
    before = maths.kl_full(logits, ref)
    (loss.losses_BT * sampled.detach().exp()).sum().backward()
    after = maths.kl_full((logits - logits.grad).detach(), ref)
    assert after.item() < before.item()


def test_case_C2_the_penalty_is_added():
    # log pi - log ref = d with k2 = .2: beta .1 adds .02
    d = math.sqrt(0.4)
    x, ref = torch.tensor([[-1.0]]), torch.tensor([[-1.0 - d]])
    out = maths.grpo_loss(x, x, ref, torch.zeros(1, 1), ONE, beta=0.1, estimator=KLEstimator.K2)
    assert float(out.losses_BT) == pytest.approx(0.02)


def test_case_C4_reward_mode_pays_the_kl_once():
    old, ref = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-1.1, -1.1, -1.1]])
    mask = torch.ones(1, 3).bool()
    rewards = maths.shaped_rewards(torch.tensor([1.0]), old, ref, mask, 0.1)
    assert float(rewards.sum()) == pytest.approx(0.97, abs=1e-6)
    term = 0.1 * maths.aggregate(
        maths.kl_tokens(old, ref, mask, KLEstimator.K1), mask, Aggregation.TOKEN_MEAN
    )
    assert float(term) == pytest.approx(0.01, abs=1e-6)


def test_estimators_are_unbiased_on_eight_outcomes():
    generator = torch.Generator().manual_seed(0)
    logits, ref = torch.randn(2, 8, generator=generator, dtype=torch.float64).unbind()
    logprobs, ref_logprobs = torch.log_softmax(logits, -1), torch.log_softmax(ref, -1)
    policy, reference = (torch.distributions.Categorical(logits=x) for x in (logits, ref))
    exact = float(torch.distributions.kl_divergence(policy, reference))
    for function in (maths.kl_k1, maths.kl_k3):
        assert float((logprobs.exp() * function(logprobs, ref_logprobs)).sum()) == pytest.approx(exact)
    assert float(maths.kl_full(logits, ref)) == pytest.approx(exact)


def test_kl_full_by_hand_and_with_an_impossible_action():
    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)
    assert float(maths.kl_full(logits, torch.zeros(1, 2))) == pytest.approx(0.130812, abs=1e-6)
    greedy = torch.tensor([[0.0, -math.inf]])
    assert float(maths.kl_full(greedy, torch.zeros(1, 2))) == pytest.approx(math.log(2))


def test_k3_keeps_tiny_differences():
    x = torch.tensor([-1.0], dtype=torch.float64)
    assert float(maths.kl_k3(x, x + 1e-6)) == pytest.approx(5e-13, rel=1e-3)


def test_k3_does_not_overflow_in_float32():
    kl = maths.kl_k3(torch.tensor([-500.0]), torch.tensor([0.0]))
    assert torch.isfinite(kl).all()
    assert maths.exceeds_exp_range(torch.tensor([0.0, 500.0])).tolist() == [False, True]


def test_units_by_hand():
    logprobs = torch.tensor([[0.1, 0.3], [0.5, NAN], [NAN, NAN]])
    ref = torch.zeros(3, 2)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    units = maths.kl_units(logprobs, ref, mask)
    assert units.seq_sum_mean_nats == pytest.approx(0.45)
    assert units.token_mean_nats == pytest.approx(0.3)
    assert units.mean_of_row_means_nats == pytest.approx(0.35)
    assert units.token_mean_bits == pytest.approx(0.432809, abs=1e-6)


def test_live_nan_names_the_side():
    with pytest.raises(maths.NonFiniteError, match="ref_logprobs is nan"):
        maths.kl_tokens(torch.zeros(1, 1), torch.tensor([[NAN]]), ONE, KLEstimator.K1)


def test_controllers_by_hand():
    assert maths.adaptive_beta(0.2, 9.0, 6.0, 256, 10_000) == pytest.approx(0.201024)
    assert maths.adaptive_beta(0.2, -3.0, 6.0, 256, 10_000) == pytest.approx(0.198976)
    assert maths.adaptive_beta(0.2, 6.0, 6.0, 256, 10_000) == 0.2
    assert maths.adaptive_beta_ziegler(0.2, 9.0, 6.0) == pytest.approx(0.204)
    assert [maths.adaptive_beta_ppo(0.2, kl, 6.0) for kl in (10.0, 3.0, 5.0)] == [0.4, 0.1, 0.2]


@pytest.mark.parametrize("arguments", [(0.2, NAN, 6.0), (0.2, 1.0, 0.0), (0.0, 1.0, 6.0)])
def test_controllers_refuse_nonsense(arguments):
    with pytest.raises(ValueError, match="expected beta > 0"):
        maths.adaptive_beta(*arguments, 256, 10_000)


def test_target_kl_stops_strictly_above_and_on_nan():
    assert not maths.exceeds_target_kl(0.03, 0.02, 1.5)
    assert maths.exceeds_target_kl(0.0301, 0.02, 1.5)
    assert maths.exceeds_target_kl(NAN, 0.02)
    assert maths.target_kl_stop([0.01, 0.02, 0.04], 0.02) == 2
    assert maths.target_kl_stop([0.01], 0.02) is None


def test_a_horizon_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="horizon must be positive"):
        maths.adaptive_beta(0.2, 6.0, 6.0, 256, 0)
