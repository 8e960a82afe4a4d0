"""Policy surrogates and their statistics."""

import math

import pytest
import torch

from tether import maths
from tether.maths import Aggregation, KLEstimator

NAN = float("nan")
INF = float("inf")


def _one(ratio: float, advantage: float, **options):
    """Loss and gradient of one token whose ratio is given."""
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    zeros, live = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    out = maths.ppo_surrogate(logprobs, zeros, torch.full_like(zeros, advantage), live, **options)
    (gradient,) = torch.autograd.grad(out.losses_BT.sum(), logprobs)
    return out.losses_BT.item(), gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.4, 2.0, -2.4, 0.0),
        (1.4, -2.0, 2.8, 2.8),
        (0.6, -2.0, 1.6, 0.0),
        (0.6, 2.0, -1.2, -1.2),
        (1.0, 2.0, -2, -2),
    ],
)
def test_clip_by_hand(ratio, advantage, loss, gradient):
    assert _one(ratio, advantage) == pytest.approx((loss, gradient))


def test_ratio_on_the_bound_keeps_its_gradient():
    assert _one(1.5, 1.0, eps_high=0.5)[1] == pytest.approx(-1.5)
    assert _one(0.5, -1.0, eps_low=0.5)[1] == pytest.approx(0.5)
    bound = math.exp(math.log(3.0))  # as the library computes it
    assert _one(3.0, -1.0, dual_clip=bound)[1] == pytest.approx(3.0)


def test_dual_clip_by_hand():
    assert _one(5.0, -2.0, dual_clip=3.0) == pytest.approx((6.0, 0.0))
    assert _one(5.0, 2.0, dual_clip=3.0) == pytest.approx((-2.4, 0.0))
    with pytest.raises(ValueError, match="dual_clip"):
        _one(1.0, 1.0, dual_clip=1.0)


def test_infinite_clip_and_one_epoch_is_the_plain_policy_gradient():
    generator = torch.Generator().manual_seed(0)
    old, advantages = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).unbind()
    logprobs, mask = old.clone().requires_grad_(), torch.ones(3, 4, dtype=torch.bool)
    out = maths.ppo_surrogate(logprobs, old, advantages, mask, eps_low=INF, eps_high=INF)
    (surrogate,) = torch.autograd.grad(out.losses_BT.sum(), logprobs)
    assert torch.equal(surrogate, -advantages)
    assert torch.equal(out.ratio_BT, torch.ones(3, 4, dtype=torch.float64))


def test_case_M2_nan_in_a_pad_leaves_loss_kl_and_gradient_finite():
    new = torch.zeros(1, 2, requires_grad=True)
    old, ones = torch.tensor([[0.0, NAN]]), torch.ones(1, 2)
    mask = torch.tensor([[True, False]])
    out = maths.ppo_surrogate(new, old, ones, mask)
    loss = maths.aggregate(out.losses_BT, mask, Aggregation.TOKEN_MEAN)
    loss.backward()
    assert loss.item() == -1
    assert new.grad.tolist() == [[-1.0, 0.0]]
    stats = maths.policy_stats(new.detach(), old, ones, mask).means()
    assert (stats.approx_kl_k1, stats.approx_kl_k2, stats.approx_kl_k3) == (0, 0, 0)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, o, a, m: maths.ppo_surrogate(x, o, a, m).losses_BT,
        lambda x, o, a, m: maths.ppo_surrogate(x, o, a, m, dual_clip=3.0).losses_BT,
        lambda x, o, a, m: maths.cispo(x, o, a, m).losses_BT,
        lambda x, o, a, m: maths.gspo_token(x, o, a, m).losses_BT,
        lambda x, o, a, m: maths.gspo(x, o, a[:, 0], m).losses_BT,
        lambda x, o, a, m: maths.gmpo(x, o, a[:, 0], m).losses_BT,
        lambda x, o, a, m: maths.grpo_loss(x, o, o, a, m).losses_BT,
        lambda x, o, a, m: maths.grpo_loss_ratio_corrected(x, o, o, a, m).losses_BT,
    ],
)
def test_case_M2_every_loss_ignores_pads_and_reports_live_nan(loss):
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    logprobs = torch.where(mask, -1.0, NAN).requires_grad_()
    old, advantages = torch.where(mask, -1.2, INF), torch.where(mask, 1.0, NAN)
    out = loss(logprobs, old, advantages, mask)
    assert out[~mask].tolist() == [0] * 6
    (gradient,) = torch.autograd.grad(out.sum(), logprobs)
    assert torch.isfinite(gradient).all()
    assert gradient[~mask].tolist() == [0] * 6
    bad = old.clone()
    bad[1, 0] = NAN
    with pytest.raises(maths.NonFiniteError, match=r"old_logprobs is nan at row 1, column 0"):
        loss(logprobs, bad, advantages, mask)
    with pytest.raises(maths.NonFiniteError, match=r"^logprobs is nan at row 1, column 0"):
        loss(torch.where(old == bad, logprobs.detach(), NAN), old, advantages, mask)


def test_case_M2_live_nan_advantage_is_reported():
    zeros, live = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(maths.NonFiniteError, match="advantages is nan"):
        maths.ppo_surrogate(zeros, zeros, torch.tensor([[NAN]]), live)


def test_case_D7_token_mean_does_not_depend_on_the_split():
    mask = torch.arange(6) < torch.tensor([2, 6])[:, None]
    base = torch.tensor([[1.0], [3.0]], dtype=torch.float64).expand(2, 6)

    def run(splits):
        scale = torch.ones(2, 6, dtype=torch.float64, requires_grad=True)
        losses = scale * base
        count = maths.aggregate_count(mask, Aggregation.TOKEN_MEAN)
        total = sum(
            maths.aggregate_sum(losses[part], mask[part], Aggregation.TOKEN_MEAN) / count for part in splits
        )
        total.backward()
        return total.item(), scale.grad

    whole, whole_gradient = run([slice(0, 2)])
    split, split_gradient = run([slice(0, 1), slice(1, 2)])
    assert whole == pytest.approx(2.5)
    assert split == pytest.approx(2.5)
    torch.testing.assert_close(split_gradient, whole_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_case_D7_every_aggregation_is_invariant_to_the_split(aggregation):
    generator = torch.Generator().manual_seed(1)
    losses = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 0, 2, 1, 4, 3])[:, None]
    norm_len = 5 if aggregation == Aggregation.TOKEN_SUM_NORM else None
    whole = maths.aggregate(losses, mask, aggregation, norm_len)
    count = maths.aggregate_count(mask, aggregation)
    for sizes in ([1] * 6, [2, 4], [5, 1]):
        parts = zip(losses.split(sizes), mask.split(sizes), strict=True)
        total = sum(maths.aggregate_sum(x, m, aggregation, norm_len) for x, m in parts)
        assert float(total / count) == pytest.approx(float(whole))
        assert sum(maths.aggregate_count(m, aggregation) for m in mask.split(sizes)) == count


def test_permuting_rows_permutes_losses():
    generator = torch.Generator().manual_seed(2)
    new, old, advantages = torch.randn(3, 4, 3, generator=generator).unbind()
    mask, order = torch.ones(4, 3, dtype=torch.bool), torch.tensor([3, 1, 0, 2])
    straight = maths.ppo_surrogate(new, old, advantages, mask).losses_BT
    permuted = maths.ppo_surrogate(new[order], old[order], advantages[order], mask).losses_BT
    assert torch.equal(permuted, straight[order])


def test_stats_by_hand_and_merged():
    logprobs = torch.tensor([[math.log(1.4), 0.0], [math.log(0.5), NAN]], dtype=torch.float64)
    old = torch.zeros(2, 2, dtype=torch.float64)
    advantages = torch.tensor([[2.0, 2.0], [2.0, NAN]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    whole = maths.policy_stats(logprobs, old, advantages, mask)
    assert (whole.count, whole.clip_any, whole.clip_high, whole.clip_low) == (3, 2, 1, 0)
    assert (whole.ratio_min, whole.ratio_max) == pytest.approx((0.5, 1.4))
    parts = [
        maths.policy_stats(logprobs[r], old[r], advantages[r], mask[r]) for r in (slice(0, 1), slice(1, 2))
    ]
    merged = (parts[0] + parts[1]).means()
    assert merged.ratio_mean == pytest.approx(2.9 / 3)
    assert merged.ess_token == pytest.approx(2.9**2 / (3 * (1.96 + 1 + 0.25)))
    assert merged.clip_beneficial == pytest.approx(1 / 3)
    assert all(isinstance(value, float) for value in vars(whole).values())


def test_stats_of_nothing_are_zero_sums_and_nan_means():
    empty = maths.policy_stats(*[torch.full((1, 2), NAN)] * 3, torch.zeros(1, 2, dtype=torch.bool))
    assert empty.count == 0
    assert math.isnan(empty.means().clip_any)
    other = maths.policy_stats(*[torch.zeros(1, 1)] * 3, torch.ones(1, 1, dtype=torch.bool))
    assert empty + other == other


def test_overflowing_ratio_is_clamped_and_counted():
    arguments = (
        torch.tensor([[300.0]]),
        torch.tensor([[0.0]]),
        torch.tensor([[-1.0]]),
        torch.tensor([[True]]),
    )
    assert torch.isfinite(maths.ppo_surrogate(*arguments).losses_BT).all()
    assert maths.policy_stats(*arguments).overflow == 1


def test_gspo_token_equals_gspo_when_the_advantage_is_constant():
    generator = torch.Generator().manual_seed(3)
    old = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor([4, 2, 0])[:, None]
    rows = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    gradients = []
    for function, advantages in ((maths.gspo, rows), (maths.gspo_token, rows[:, None].expand(3, 4))):
        logprobs = (old + 0.1 * torch.ones_like(old)).requires_grad_()
        out = function(logprobs, old, advantages, mask, 0.2, 0.3)
        loss = maths.aggregate(out.losses_BT, mask, Aggregation.SEQ_MEAN_TOKEN_MEAN)
        gradients.append(torch.autograd.grad(loss, logprobs)[0])
    torch.testing.assert_close(*gradients)


def test_gspo_by_hand():
    logprobs, zeros = torch.tensor([[0.1, 0.3]]), torch.zeros(1, 2)
    out = maths.gspo(logprobs, zeros, torch.ones(1), torch.ones(1, 2, dtype=torch.bool), INF, INF)
    assert out.ratio_B.tolist() == pytest.approx([1.221403])
    assert out.losses_BT[0].tolist() == pytest.approx([-1.221403, -1.221403])


def test_gmpo_by_hand():
    logprobs, zeros = torch.tensor([[0.1, 0.9]]), torch.zeros(1, 2)
    out = maths.gmpo(logprobs, zeros, torch.ones(1), torch.ones(1, 2, dtype=torch.bool))
    assert out.losses_BT[0].tolist() == pytest.approx([-1.284025, -1.284025])
    assert not out.clipped_B.any()


def test_cispo_by_hand_no_token_loses_its_gradient():
    logprobs = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-1.0 - math.log(1.4)]], dtype=torch.float64)
    out = maths.cispo(
        logprobs, old, torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    )
    assert out.losses_BT.item() == pytest.approx(1.28)
    assert torch.autograd.grad(out.losses_BT.sum(), logprobs)[0].item() == pytest.approx(-1.28)


def test_grpo_terms_by_hand():
    x, ref, live = torch.tensor([[-1.0]]), torch.tensor([[-0.5]]), torch.ones(1, 1, dtype=torch.bool)
    zeros = torch.zeros(1, 1)
    out = maths.grpo_loss(x, x, ref, zeros, live, beta=0.1)
    assert out.losses_BT.item() == pytest.approx(0.0148721, abs=1e-7)
    corrected = maths.grpo_loss_ratio_corrected(x, x - math.log(1.4), ref, zeros, live, beta=0.1)
    assert corrected.losses_BT.item() == pytest.approx(0.0208210, abs=1e-6)


def test_gradient_of_the_tethered_loss_against_finite_differences():
    generator = torch.Generator().manual_seed(5)
    old = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    logprobs = (old + 0.05).requires_grad_()
    mask = torch.tensor([[True, True, True], [True, False, False]])
    advantages = torch.tensor([[1.0, -1.0, 2.0], [-1.0, NAN, NAN]], dtype=torch.float64)
    for estimator in KLEstimator:
        for function in (maths.grpo_loss, maths.grpo_loss_ratio_corrected):
            assert torch.autograd.gradcheck(
                lambda x, f=function, e=estimator: (
                    f(x, old, old - 0.1, advantages, mask, estimator=e).losses_BT
                ),
                logprobs,
            )


def test_entropy_bonus_raises_entropy():
    logits = torch.tensor([[[1.0, 0.0], [NAN, NAN]]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    maths.entropy_bonus(maths.token_entropy(logits, mask), mask, 0.1).sum().backward()
    after = maths.token_entropy((logits - logits.grad).detach(), mask)
    assert after[0, 0] > maths.token_entropy(logits.detach(), mask)[0, 0]
    assert logits.grad[0, 1].tolist() == [0, 0]


def test_negative_clip_widths_are_refused():
    with pytest.raises(ValueError, match="clip widths"):
        _one(1.0, 1.0, eps_low=-0.1)


def test_update_kl_of_another_policys_tokens_is_weighted_and_shares_are_not():
    """Ratios 1.5 and .5 with weights 2 and 0: the KL is twice that of the first token, the clip shares are of both."""
    logprobs, old = torch.log(torch.tensor([[1.5, 0.5]])), torch.zeros(1, 2)
    mask, advantages = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[1.0, -1.0]])
    plain = maths.policy_stats(logprobs[:, :1], old[:, :1], advantages[:, :1], mask[:, :1])
    weighted = maths.policy_stats(logprobs, old, advantages, mask, weights_BT=torch.tensor([[2.0, 0.0]]))
    assert weighted.approx_kl_k1 == pytest.approx(2 * plain.approx_kl_k1)
    assert weighted.approx_kl_k3 == pytest.approx(2 * plain.approx_kl_k3)
    unweighted = maths.policy_stats(logprobs, old, advantages, mask)
    assert weighted.clip_high == unweighted.clip_high == 1
