"""Laws of the policy surrogates: what each becomes at a limit. Axes: B sequences, T tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths
from tether.maths import Aggregation, ImportanceMode

NAN, INF = float("nan"), float("inf")
few = settings(max_examples=12, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)


def _batch(seed: int, rows: int = 5, columns: int = 4, spread: float = 0.4):
    """log-probabilities (attached), old ones, advantages, a mask with gaps, an empty row; NaN in every pad."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < 0.7
    mask[0, 0], mask[-1] = True, False
    noise = torch.randn(3, rows, columns, generator=generator, dtype=torch.float64)
    old = torch.where(mask, -noise[0].abs(), NAN)
    logprobs = (old + spread * noise[1]).requires_grad_()
    return logprobs, old, torch.where(mask, noise[2], NAN), mask


def _rows(advantages, mask):
    """One advantage per row, and the same spread to its tokens."""
    row = torch.where(mask, advantages, 0.0).sum(-1)
    return torch.where(mask.any(-1), row, NAN), maths.broadcast_to_tokens(row, mask)


def _gradient(losses, logprobs):
    return torch.autograd.grad(losses.sum(), logprobs)[0]


@few
@given(SEEDS)
def test_without_a_clip_the_gradient_is_ratio_times_advantage(seed):
    logprobs, old, advantages, mask = _batch(seed)
    out = maths.ppo_surrogate(logprobs, old, advantages, mask, INF, INF)
    expected = torch.where(mask, -(logprobs - old).exp() * advantages, 0.0).detach()
    torch.testing.assert_close(_gradient(out.losses_BT, logprobs), expected)


@few
@given(SEEDS)
def test_on_policy_every_surrogate_is_the_plain_policy_gradient(seed):
    _, old, advantages, mask = _batch(seed)
    logprobs = old.clone().requires_grad_()
    plain = torch.where(mask, -advantages, 0.0)
    for out in (
        maths.ppo_surrogate(logprobs, old, advantages, mask),
        maths.ppo_surrogate(logprobs, old, advantages, mask, 0.0, 0.0, dual_clip=2.0),
        maths.cispo(logprobs, old, advantages, mask),
        maths.cispo(logprobs, old, advantages, mask, 0.0, 0.0),
        maths.grpo_loss(logprobs, old, old, advantages, mask),
        maths.grpo_loss_ratio_corrected(logprobs, old, old, advantages, mask),
    ):
        torch.testing.assert_close(_gradient(out.losses_BT, logprobs), plain, rtol=1e-12, atol=0)


@few
@given(SEEDS)
def test_cispo_at_ratio_one_is_reinforce_in_value_too(seed):
    _, old, advantages, mask = _batch(seed)
    logprobs = old.clone().requires_grad_()
    out = maths.cispo(logprobs, old, advantages, mask)
    assert torch.equal(out.weights_BT, mask.double())
    torch.testing.assert_close(out.losses_BT, torch.where(mask, -advantages * old, 0.0))


@few
@given(SEEDS, st.floats(0.01, 1), st.floats(0.01, 0.9))
def test_cispo_gives_every_token_its_capped_weight(seed, eps_high, eps_low):
    logprobs, old, advantages, mask = _batch(seed, spread=1.0)
    ratios = (logprobs - old).exp().detach()
    for low in (None, eps_low):
        out = maths.cispo(logprobs, old, advantages, mask, eps_high, low)
        floor = 0.0 if low is None else 1 - low
        for b, t in mask.nonzero().tolist():
            weight = min(max(float(ratios[b, t]), floor), 1 + eps_high)
            assert float(out.weights_BT[b, t]) == pytest.approx(weight)
        gradient = _gradient(out.losses_BT, logprobs)
        torch.testing.assert_close(gradient, torch.where(mask, -out.weights_BT * advantages, 0.0))


@few
@given(SEEDS, st.floats(0, 0.9), st.floats(0, 2))
def test_an_infinite_dual_clip_is_none(seed, eps_low, eps_high):
    arguments = _batch(seed, spread=2.0)
    none = maths.ppo_surrogate(*arguments, eps_low, eps_high)
    infinite = maths.ppo_surrogate(*arguments, eps_low, eps_high, dual_clip=INF)
    assert torch.equal(infinite.losses_BT, none.losses_BT)
    assert torch.equal(_gradient(infinite.losses_BT, arguments[0]), _gradient(none.losses_BT, arguments[0]))
    assert maths.policy_stats(*arguments, eps_low, eps_high).dual_clip == 0


@few
@given(SEEDS, st.floats(1.1, 4))
def test_the_dual_clip_bounds_the_loss_of_negative_advantages_only(seed, bound):
    logprobs, old, advantages, mask = _batch(seed, spread=2.0)
    none = maths.ppo_surrogate(logprobs, old, advantages, mask)
    dual = maths.ppo_surrogate(logprobs, old, advantages, mask, dual_clip=bound)
    negative = mask & (advantages < 0)
    assert torch.equal(dual.losses_BT[~negative], none.losses_BT[~negative])
    ceiling = -bound * advantages[negative]
    torch.testing.assert_close(dual.losses_BT[negative], torch.minimum(none.losses_BT[negative], ceiling))
    cut = negative & ((logprobs - old).exp() > bound)
    assert _gradient(dual.losses_BT, logprobs)[cut].eq(0).all()
    assert maths.policy_stats(logprobs, old, advantages, mask, dual_clip=bound).dual_clip == int(cut.sum())


@few
@given(SEEDS, st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_the_clip_is_pessimistic_and_its_share_is_the_share_without_gradient(seed, eps_low, eps_high):
    arguments = _batch(seed, spread=1.0)
    logprobs, _, advantages, mask = arguments
    clipped = maths.ppo_surrogate(*arguments, eps_low, eps_high).losses_BT
    free = maths.ppo_surrogate(*arguments, INF, INF).losses_BT
    assert (clipped >= free - 1e-12).all()
    gradient = _gradient(clipped, logprobs)
    stats = maths.policy_stats(*arguments, eps_low, eps_high)
    assert stats.clip_beneficial == int((mask & (gradient == 0) & (advantages != 0)).sum())
    assert stats.clip_low + stats.clip_high == stats.clip_beneficial <= stats.clip_any


@few
@given(SEEDS, st.floats(0.001, 0.3), st.floats(0.001, 0.3))
def test_gspo_token_with_a_constant_advantage_is_gspo(seed, eps_low, eps_high):
    logprobs, old, advantages, mask = _batch(seed)
    row, spread_row = _rows(advantages, mask)
    sequence = maths.gspo(logprobs, old, row, mask, eps_low, eps_high)
    token = maths.gspo_token(logprobs, old, spread_row, mask, eps_low, eps_high)
    losses, gradients = [], []
    for out in (sequence, token):
        loss = maths.aggregate(out.losses_BT, mask, Aggregation.SEQ_MEAN_TOKEN_MEAN)
        losses.append(loss)
        gradients.append(_gradient(loss, logprobs))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)
    assert sequence.clipped_B.tolist() == [
        bool(cut) for cut in (gradients[0].eq(0).all(-1) & mask.any(-1) & row.ne(0))
    ]


@few
@given(SEEDS, st.floats(0.01, 0.3), st.floats(0.01, 0.3))
def test_with_one_token_a_sequence_ratio_is_a_token_ratio(seed, eps_low, eps_high):
    logprobs, old, advantages, mask = _batch(seed, rows=8, columns=1)
    row, _ = _rows(advantages, mask)
    ppo = maths.ppo_surrogate(logprobs, old, advantages, mask, eps_low, eps_high).losses_BT
    gradient = _gradient(ppo, logprobs)
    for out in (
        maths.gspo(logprobs, old, row, mask, eps_low, eps_high),
        maths.gspo_token(logprobs, old, advantages, mask, eps_low, eps_high),
        maths.gmpo(logprobs, old, row, mask, -math.log1p(-eps_low), math.log1p(eps_high)),  # the clip in log space
    ):
        torch.testing.assert_close(out.losses_BT, ppo)
        torch.testing.assert_close(_gradient(out.losses_BT, logprobs), gradient)


@few
@given(SEEDS)
def test_without_a_clip_gmpo_is_gspo(seed):
    logprobs, old, advantages, mask = _batch(seed)
    row, _ = _rows(advantages, mask)
    gspo = maths.gspo(logprobs, old, row, mask, INF, INF)
    gmpo = maths.gmpo(logprobs, old, row, mask, INF, INF)
    torch.testing.assert_close(gmpo.losses_BT, gspo.losses_BT)
    torch.testing.assert_close(_gradient(gmpo.losses_BT, logprobs), _gradient(gspo.losses_BT, logprobs))
    assert not gmpo.clipped_B.any()


@few
@given(SEEDS)
def test_gmpo_counts_a_row_as_cut_when_none_of_its_tokens_has_a_gradient(seed):
    logprobs, old, advantages, mask = _batch(seed, rows=12, columns=2)
    row, _ = _rows(advantages, mask)
    out = maths.gmpo(logprobs, old, row, mask, 0.1, 0.1)
    gradient = _gradient(out.losses_BT, logprobs)
    assert out.clipped_B.tolist() == (gradient.eq(0).all(-1) & mask.any(-1)).tolist()


@few
@given(SEEDS)
def test_no_gradient_flows_into_data(seed):
    logprobs, old, advantages, mask = _batch(seed)
    old, ref = old.clone().requires_grad_(), (old - 0.1).requires_grad_()
    advantages = advantages.requires_grad_()
    row = torch.where(mask.any(-1), 1.0, NAN).double().requires_grad_()
    data = (old, advantages, row)
    for out in (
        maths.ppo_surrogate(logprobs, old, advantages, mask, dual_clip=3.0),
        maths.cispo(logprobs, old, advantages, mask),
        maths.gspo(logprobs, old, row, mask),
        maths.gspo_token(logprobs, old, advantages, mask),
        maths.gmpo(logprobs, old, row, mask),
        maths.grpo_loss(logprobs, old, ref.detach(), advantages, mask),
        maths.grpo_loss_ratio_corrected(logprobs, old, ref.detach(), advantages, mask),
    ):
        gradients = torch.autograd.grad(out.losses_BT.sum(), data, allow_unused=True)
        assert all(gradient is None or gradient.eq(0).all() for gradient in gradients)
        assert sum(x.requires_grad for x in vars(out).values()) == 1  # the losses alone
    weights = maths.is_weights(logprobs, old, mask, ImportanceMode.TOKEN_TRUNCATE)
    assert not weights.requires_grad


@few
@given(SEEDS)
def test_permuting_rows_permutes_losses(seed):
    logprobs, old, advantages, mask = _batch(seed)
    logprobs = logprobs.detach()
    row, _ = _rows(advantages, mask)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    for function, weight in (
        (maths.ppo_surrogate, advantages), (maths.cispo, advantages), (maths.gspo_token, advantages),
        (maths.gspo, row), (maths.gmpo, row),
    ):  # fmt: skip
        straight = function(logprobs, old, weight, mask).losses_BT
        shuffled = function(logprobs[order], old[order], weight[order], mask[order]).losses_BT
        assert torch.equal(shuffled, straight[order])


@few
@given(SEEDS)
def test_statistics_of_parts_add_up_to_those_of_the_whole(seed):
    arguments = [x.detach() for x in _batch(seed, spread=1.0)]
    whole = maths.policy_stats(*arguments, dual_clip=1.5)
    parts = [
        maths.policy_stats(*part, dual_clip=1.5) for part in zip(*(x.split([1, 3, 1]) for x in arguments), strict=True)
    ]
    merged = parts[2] + parts[0] + parts[1]
    assert vars(merged) == pytest.approx(vars(whole))
    live = (arguments[0] - arguments[1])[arguments[3]].exp()
    assert whole.means().ratio_mean == pytest.approx(float(live.mean()))
    assert (whole.ratio_min, whole.ratio_max) == pytest.approx((float(live.min()), float(live.max())))
    share = maths.effective_sample_size(live[None], torch.ones(1, len(live)).bool())
    assert whole.means().ess_token == pytest.approx(share)


AGGREGATIONS = {
    Aggregation.TOKEN_MEAN: None,
    Aggregation.SEQ_MEAN_TOKEN_MEAN: None,
    Aggregation.SEQ_MEAN_TOKEN_SUM: None,
    Aggregation.TOKEN_SUM_NORM: 9,
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(SEEDS)
def test_loss_and_gradient_do_not_depend_on_the_split(aggregation, seed):
    logprobs, old, advantages, mask = _batch(seed, rows=6)
    norm_len = AGGREGATIONS[aggregation]
    count = maths.aggregate_count(mask, aggregation)
    generator = torch.Generator().manual_seed(seed)
    outcomes = []
    for sizes in ([6], [1] * 6, [2, 4], [5, 1]):
        order = torch.randperm(6, generator=generator)
        total = torch.zeros((), dtype=torch.float64)
        for rows in order.split(sizes):
            losses = maths.ppo_surrogate(logprobs[rows], old[rows], advantages[rows], mask[rows]).losses_BT
            total = total + maths.aggregate_sum(losses, mask[rows], aggregation, norm_len) / count
        outcomes.append((total, _gradient(total, logprobs)))
    whole = maths.aggregate(maths.ppo_surrogate(logprobs, old, advantages, mask).losses_BT, mask, aggregation, norm_len)
    for total, gradient in outcomes:
        torch.testing.assert_close(total, whole)
        torch.testing.assert_close(gradient, outcomes[0][1])


@few
@given(SEEDS, st.integers(1, 6))
def test_aggregations_agree_where_rows_are_equally_long(seed, length):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mask = maths.response_mask_from_lengths(torch.full((4,), length), 6)
    token, seq_mean, seq_sum, norm = (
        float(maths.aggregate(x, mask, aggregation, length if aggregation == Aggregation.TOKEN_SUM_NORM else None))
        for aggregation in Aggregation
    )
    assert seq_mean == pytest.approx(token)
    assert seq_sum == pytest.approx(length * token)
    assert norm == pytest.approx(token)


@few
@given(SEEDS)
def test_aggregations_weigh_tokens_as_they_say(seed):
    mask = _batch(seed)[3]
    x = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
    lengths, rows = mask.sum(-1), int(mask.any(-1).sum())
    for aggregation, norm_len in AGGREGATIONS.items():
        (weights,) = torch.autograd.grad(maths.aggregate(x, mask, aggregation, norm_len), x)
        assert weights[~mask].eq(0).all()
        for b, t in mask.nonzero().tolist():
            assert float(weights[b, t]) == pytest.approx(
                {
                    Aggregation.TOKEN_MEAN: 1 / int(mask.sum()),
                    Aggregation.SEQ_MEAN_TOKEN_MEAN: 1 / (rows * int(lengths[b])),
                    Aggregation.SEQ_MEAN_TOKEN_SUM: 1 / rows,
                    Aggregation.TOKEN_SUM_NORM: 1 / (len(mask) * 9),
                }[aggregation]
            )


@few
@given(SEEDS, st.floats(0.2, 0.9), st.floats(1.1, 3))
def test_importance_weights_lie_within_their_bounds_or_are_zero(seed, low, high):
    old, sampler, _, mask = (x.detach() for x in _batch(seed, spread=1.0))
    for mode in ImportanceMode:
        weights = maths.is_weights(old, sampler, mask, mode, low, high)
        assert weights[~mask].eq(0).all()
        live = weights[mask]
        if mode == ImportanceMode.SEQ_GEO_FILTER_TOKEN_WEIGHT:
            free = maths.is_weights(old, sampler, mask, ImportanceMode.TOKEN_MASK)[mask]
            assert ((live == 0) | (live == free)).all()
        else:
            within = (live >= low - 1e-12) & (live <= high + 1e-12)
            assert (within | ((live == 0) & ("truncate" not in mode.value))).all()
    one = [x[:, :1] for x in (old, sampler, mask)]  # one token: every level is the same level
    token = maths.is_weights(*one, ImportanceMode.TOKEN_MASK, low, high)
    for mode in (ImportanceMode.SEQ_MASK, ImportanceMode.SEQ_GEO_MASK, ImportanceMode.SEQ_GEO_FILTER_TOKEN_WEIGHT):
        assert torch.equal(maths.is_weights(*one, mode, low, high), token)
