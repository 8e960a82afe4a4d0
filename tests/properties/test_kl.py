"""Laws of the KL estimators, by enumeration over eight outcomes. Axis: A outcomes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from tether import maths
from tether.maths import KLEstimator

few = settings(max_examples=12, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)
LIVE = torch.ones(1, 8, dtype=torch.bool)


def _world(seed: int):
    """Logits of policy (with gradient), reference and an older policy."""
    generator = torch.Generator().manual_seed(seed)
    policy, ref, old = 1.5 * torch.randn(3, 8, generator=generator, dtype=torch.float64)
    return policy.requires_grad_(), ref, old


def _number(value: torch.Tensor) -> float:
    return float(value.detach())


def _exact(logits, ref):
    return kl_divergence(Categorical(logits=logits), Categorical(logits=ref))


def _gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


def _expected_loss(logits, ref, estimator):
    """E under the (detached) policy of an estimator used as a loss."""
    logprobs, ref_logprobs = torch.log_softmax(logits, -1)[None], torch.log_softmax(ref, -1)[None]
    return (logprobs.exp().detach() * maths.kl_tokens(logprobs, ref_logprobs, LIVE, estimator)).sum()


@few
@given(SEEDS)
def test_k1_and_k3_are_unbiased_and_the_full_kl_is_exact(seed):
    logits, ref, _ = _world(seed)
    exact = _number(_exact(logits, ref))
    assert _number(_expected_loss(logits, ref, KLEstimator.K1)) == pytest.approx(exact)
    assert _number(_expected_loss(logits, ref, KLEstimator.K3)) == pytest.approx(exact)
    assert _number(maths.kl_full(logits, ref)) == pytest.approx(exact)


@few
@given(SEEDS)
def test_k2_is_biased_by_the_third_order_only(seed):
    logits, ref, _ = _world(seed)
    near = logits.detach() + 0.01 * (ref - logits.detach())
    exact = _number(_exact(logits, near))
    assert _number(_expected_loss(logits, near, KLEstimator.K2)) == pytest.approx(exact, rel=0.05)


@few
@given(SEEDS)
def test_as_losses_k1_teaches_nothing_k2_one_direction_k3_the_other(seed):
    logits, ref, _ = _world(seed)
    forward, reverse = _gradient(_exact(logits, ref), logits), _gradient(_exact_reverse(logits, ref), logits)
    k1, k2, k3 = (_gradient(_expected_loss(logits, ref, estimator), logits) for estimator in KLEstimator)
    torch.testing.assert_close(k1, torch.zeros_like(k1), rtol=0, atol=1e-12)
    torch.testing.assert_close(k2, forward)
    torch.testing.assert_close(k3, reverse)
    torch.testing.assert_close(_gradient(maths.kl_full(logits, ref), logits), forward)


def _exact_reverse(logits, ref):
    return kl_divergence(Categorical(logits=ref), Categorical(logits=logits))


@few
@given(SEEDS)
def test_k1_in_the_reward_is_the_gradient_of_the_policy_to_the_reference(seed):
    logits, ref, _ = _world(seed)
    logprobs, ref_logprobs = torch.log_softmax(logits, -1)[:, None], torch.log_softmax(ref, -1)[:, None]
    mask = torch.ones(8, 1, dtype=torch.bool)
    rewards = maths.shaped_rewards(torch.zeros(8).double(), logprobs, ref_logprobs, mask, 1.0)
    loss = maths.ppo_surrogate(logprobs, logprobs, rewards, mask).losses_BT
    probs = torch.softmax(logits, -1).detach()
    torch.testing.assert_close(_gradient((probs * loss[:, 0]).sum(), logits), _gradient(_exact(logits, ref), logits))


@few
@given(SEEDS, st.floats(0.1, 3))
def test_ratio_corrected_k3_is_right_off_policy_too(seed, beta):
    logits, ref, old = _world(seed)
    logprobs, ref_logprobs, old_logprobs = (torch.log_softmax(x, -1)[None] for x in (logits, ref, old))
    zeros = torch.zeros(1, 8, dtype=torch.float64)
    out = maths.grpo_loss_ratio_corrected(logprobs, old_logprobs, ref_logprobs, zeros, LIVE, beta=beta)
    expected_loss = (old_logprobs.exp() * out.losses_BT).sum()
    exact = beta * _exact(logits, ref)
    assert _number(expected_loss) == pytest.approx(_number(exact))
    torch.testing.assert_close(_gradient(expected_loss, logits), _gradient(exact, logits))
    assert _number((old_logprobs.exp() * out.kl_BT).sum()) == pytest.approx(_number(_exact(logits, ref)))


@few
@given(SEEDS)
def test_uncorrected_k3_is_wrong_off_policy(seed):
    logits, ref, old = _world(seed)
    logprobs, ref_logprobs, old_logprobs = (torch.log_softmax(x, -1)[None] for x in (logits, ref, old))
    zeros = torch.zeros(1, 8, dtype=torch.float64)
    out = maths.grpo_loss(logprobs, old_logprobs, ref_logprobs, zeros, LIVE, beta=1.0)
    gradient = _gradient((old_logprobs.exp() * out.losses_BT).sum(), logits)
    assert not torch.allclose(gradient, _gradient(_exact(logits, ref), logits), rtol=1e-3)


@few
@given(SEEDS)
def test_the_mismatch_is_the_kl_of_the_sampler_to_the_trainer(seed):
    sampler, trainer, _ = _world(seed)
    counts = (torch.softmax(sampler, -1) * 2000).round().long().detach()
    drawn = torch.repeat_interleave(torch.arange(8), counts)[None]
    sampler_logprobs = (counts / counts.sum()).log()
    trainer_logprobs = torch.log_softmax(trainer, -1)
    live = torch.ones_like(drawn, dtype=torch.bool)
    out = maths.mismatch_kl(trainer_logprobs[drawn], sampler_logprobs[drawn].double(), live)
    seen = Categorical(probs=counts.double())
    exact = _number(kl_divergence(seen, Categorical(logits=trainer)))
    assert out.k1 == pytest.approx(exact, rel=1e-5)
    assert out.ppl_ratio == pytest.approx(math.exp(exact), rel=1e-5)
    unseen = _number(torch.softmax(trainer, -1)[counts == 0].sum())
    assert out.k3 == pytest.approx(exact - unseen, rel=1e-4, abs=1e-6)


@few
@given(SEEDS)
def test_units_agree_for_one_token_and_scale_with_length(seed):
    generator = torch.Generator().manual_seed(seed)
    logprobs, ref = -torch.rand(2, 5, 3, generator=generator, dtype=torch.float64)
    live = torch.ones(5, 3, dtype=torch.bool)
    one, three = maths.kl_units(logprobs[:, :1], ref[:, :1], live[:, :1]), maths.kl_units(logprobs, ref, live)
    assert one.seq_sum_mean_nats == pytest.approx(one.token_mean_nats)
    assert three.seq_sum_mean_nats == pytest.approx(3 * three.token_mean_nats)
    assert three.mean_of_row_means_nats == pytest.approx(three.token_mean_nats)
    assert three.token_mean_bits * math.log(2) == pytest.approx(three.token_mean_nats)


@few
@given(st.floats(0.001, 10), st.floats(-50, 50), st.floats(0.01, 20), st.integers(1, 512))
def test_the_controller_never_moves_beta_by_more_than_its_clip(beta, kl, target, num_sequences):
    after = maths.adaptive_beta(beta, kl, target, num_sequences, 10_000)
    assert abs(after / beta - 1) <= 0.2 * num_sequences / 10_000 + 1e-12
    assert (after > beta) == (kl > target) or kl == pytest.approx(target)
    assert abs(maths.adaptive_beta_ziegler(beta, kl, target) / beta - 1) <= 0.02 + 1e-12
