"""Gradients of every loss against finite differences, in float64. Axes: B rows or pairs, T tokens, K answers."""

import pytest
import torch

from tether import maths
from tether.maths import Aggregation, KLEstimator, PreferenceKind

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[True, True, False, True], [True, False, False, False], [False] * 4])
GENERATOR = torch.Generator().manual_seed(11)
NOISE = torch.randn(6, 3, 4, generator=GENERATOR, dtype=torch.float64)
X, OLD = NOISE[0], torch.where(MASK, NOISE[0] + 0.3 * NOISE[1], NAN)
REF, A = torch.where(MASK, NOISE[0] + 0.5 * NOISE[2], NAN), torch.where(MASK, NOISE[3], NAN)
ROW = torch.tensor([1.5, -0.7, NAN], dtype=torch.float64)
RETURNS, OLD_VALUES = torch.where(MASK, NOISE[4], NAN), torch.where(MASK, NOISE[5], NAN)

TOKEN_LOSSES = {
    "ppo": lambda x: maths.ppo_surrogate(x, OLD, A, MASK).losses_BT,
    "ppo_unclipped": lambda x: maths.ppo_surrogate(x, OLD, A, MASK, INF, INF).losses_BT,
    "ppo_dual": lambda x: maths.ppo_surrogate(x, OLD, A, MASK, 0.1, 0.1, 1.05).losses_BT,
    "gspo": lambda x: maths.gspo(x, OLD, ROW, MASK, 0.2, 0.2).losses_BT,
    "gmpo": lambda x: maths.gmpo(x, OLD, ROW, MASK, 0.1, 0.1).losses_BT,
    "value": lambda x: maths.value_loss(x, OLD_VALUES, RETURNS, MASK).losses_BT,
    "value_clipped": lambda x: maths.value_loss(x, OLD_VALUES, RETURNS, MASK, 0.2).losses_BT,
    "entropy_bonus": lambda x: maths.entropy_bonus(x, MASK, 0.1),
    "whiten": lambda x: maths.whiten(x, MASK),
    "scale_only_whiten": lambda x: maths.scale_only_whiten(x, MASK, ddof=1),
    "masked_var": lambda x: maths.masked_var(x, MASK, 1),
    **{f"kl_{e}": lambda x, e=e: maths.kl_tokens(x, REF, MASK, e) for e in KLEstimator},
    **{f"grpo_{e}": lambda x, e=e: maths.grpo_loss(x, OLD, REF, A, MASK, estimator=e).losses_BT for e in KLEstimator},
    **{
        f"corrected_{e}": lambda x, e=e: maths.grpo_loss_ratio_corrected(x, OLD, REF, A, MASK, estimator=e).losses_BT
        for e in KLEstimator
    },
    **{
        f"{a}": lambda x, a=a: maths.aggregate(x.square(), MASK, a, 5 if a == Aggregation.TOKEN_SUM_NORM else None)
        for a in Aggregation
    },
}


@pytest.mark.parametrize("loss", TOKEN_LOSSES.values(), ids=TOKEN_LOSSES)
def test_token_losses(loss):
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, x)
    (gradient,) = torch.autograd.grad(loss(x).sum(), x)
    assert gradient[~MASK].eq(0).all()


def test_clipped_rows_are_among_those_checked():
    assert maths.policy_stats(X, OLD, A, MASK, 0.1, 0.1).clip_beneficial > 0
    assert maths.value_loss(X, OLD_VALUES, RETURNS, MASK, 0.2).clipped_BT.any()


def test_stopped_coefficients_are_constants_to_the_gradient():
    """CISPO and GSPO-token hold their coefficient fixed: the difference quotient is taken with it held by hand."""
    x = X.clone().requires_grad_()
    weights = maths.cispo(X, OLD, A, MASK, 0.1).weights_BT
    (gradient,) = torch.autograd.grad(maths.cispo(x, OLD, A, MASK, 0.1).losses_BT.sum(), x)
    assert torch.autograd.gradcheck(lambda y: -(weights * maths.select(A, MASK) * y), x)
    torch.testing.assert_close(gradient, -weights * maths.select(A, MASK))
    out = maths.gspo_token(x, OLD, A, MASK, INF, INF)
    (gradient,) = torch.autograd.grad(out.losses_BT.sum(), x)
    torch.testing.assert_close(gradient, out.losses_BT.detach())  # d exp is exp


def _pairs(generator_seed: int):
    generator = torch.Generator().manual_seed(generator_seed)
    return -1 - torch.rand(4, 5, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", list(PreferenceKind))
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_preference_losses(kind, beta):
    chosen, rejected, ref_chosen, ref_rejected = _pairs(3)
    lengths = torch.tensor([1.0, 2, 3, 4, 50], dtype=torch.float64)
    smoothing = 0.2 if kind in (PreferenceKind.CDPO, PreferenceKind.ROBUST) else 0.0
    gamma = 0.7 if kind == PreferenceKind.SIMPO else 0.0

    def loss(c, r):
        pairs = maths.PreferencePairs(c, r, ref_chosen, ref_rejected, lengths, lengths.flip(0))
        return maths.preference_loss(pairs, kind, beta, smoothing, gamma)

    assert torch.autograd.gradcheck(loss, (chosen.requires_grad_(), rejected.requires_grad_()))


def test_kto_holds_its_reference_point():
    log_ratios = torch.tensor([0.4, -0.3, 1.2], dtype=torch.float64, requires_grad=True)
    mismatched = torch.tensor([0.5, 0.1], dtype=torch.float64)
    desirable = torch.tensor([True, False, True])
    assert torch.autograd.gradcheck(lambda x: maths.kto_loss(x, desirable, mismatched, 0.5, 1.3, 0.8).losses_B, log_ratios)


@pytest.mark.parametrize(
    "loss",
    [
        lambda c, r: maths.bt_loss(c, r),
        lambda c, r: maths.bt_loss(c, r, torch.linspace(0, 1, 5).double(), 0.01, 0.1),
        lambda c, r: maths.instructgpt_rm_loss([c, r[:2]]),
        lambda c, r: maths.flattened_pair_loss([c, r[:2]]),
        lambda c, r: maths.plackett_luce_nll(torch.cat([c, r]), torch.tensor([3, 1, 9, 0, 7, 2, 8, 4, 6, 5])),
        lambda c, r: torch.stack(list(vars(maths.rao_kupper(c, r, 0.4)).values())).log(),
        lambda c, r: torch.stack(list(vars(maths.davidson(c, r, 0.8)).values())).log(),
    ],
    ids=["bt", "bt_all_options", "instructgpt", "flattened", "plackett_luce", "rao_kupper", "davidson"],
)
def test_reward_model_losses(loss):
    chosen, rejected, *_ = _pairs(5)
    assert torch.autograd.gradcheck(loss, (chosen.requires_grad_(), rejected.requires_grad_()))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probabilities_and_entropy(temperature):
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    tokens = torch.tensor([[0, 4, -1, 2], [3, -1, -1, -1], [-1] * 4])
    assert torch.autograd.gradcheck(lambda z: maths.token_logprobs(z, tokens, MASK, temperature), logits)
    assert torch.autograd.gradcheck(lambda z: maths.token_entropy(z, MASK, temperature), logits)
    ref = torch.zeros(3, 4, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: maths.kl_full(z, ref), logits)
