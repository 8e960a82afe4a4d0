"""Public faults of other libraries, as inputs and right answers: the whole row, and other inputs of the same kind."""

import itertools

import pytest
import torch

from tether import maths
from tether.maths import Aggregation, EpsMode, ImportanceMode, KLEstimator, StdKind

NAN, INF = float("nan"), float("inf")


def _ids(rewards: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(rewards), dtype=torch.long)


# Every estimator as (rewards, group ids, lengths) -> advantages of the rows, with its default eps and without one.
def _by_token(function):
    """Row advantages from an estimator of token advantages: the first of a row, which must be the same along it."""

    def rows(rewards, ids, lengths):
        mask = maths.response_mask_from_lengths(lengths, int(lengths.max()))
        advantages = function(rewards, ids, mask)
        torch.testing.assert_close(advantages, maths.broadcast_to_tokens(advantages[:, 0], mask))
        return advantages[:, 0]

    return rows


def _reinforce_pp(rewards, _ids_B, mask, eps=1e-8):
    zeros = torch.zeros(mask.shape, dtype=rewards.dtype)
    return maths.reinforce_pp_advantages(rewards, zeros, zeros, mask, 0.1, eps=eps)


GROUPED = {
    "grpo": lambda r, g, n: maths.grpo_advantages(r, g),
    "grpo_sample_no_eps": lambda r, g, n: maths.grpo_advantages(r, g, StdKind.SAMPLE, 0.0),
    "grpo_eps_in_the_root": lambda r, g, n: maths.grpo_advantages(r, g, eps_mode=EpsMode.VAR),
    "dr_grpo": lambda r, g, n: maths.grpo_advantages(r, g, StdKind.NONE),
    "rloo": lambda r, g, n: maths.rloo_advantages(r, g),
    "rloo_population": lambda r, g, n: maths.rloo_advantages(r, g, StdKind.POPULATION, 0.0),
    "rloo_sample": lambda r, g, n: maths.rloo_advantages(r, g, StdKind.SAMPLE),
    "batch_std": lambda r, g, n: maths.grpo_batch_std_advantages(r, g),
    "batch_std_no_eps": lambda r, g, n: maths.grpo_batch_std_advantages(r, g, 0, 0.0),
    "opo": lambda r, g, n: maths.opo_advantages(r, n, g),
    "gdpo": lambda r, g, n: maths.gdpo_advantages(torch.stack([r, r], -1), g, torch.ones(2)),
    "gdpo_no_eps": lambda r, g, n: maths.gdpo_advantages(r[:, None], g, torch.ones(1), 1, 0.0),
    "sum_then_normalize": lambda r, g, n: maths.sum_then_normalize_advantages(r[:, None], g, torch.ones(1)),
    "reinforce_pp_baseline": _by_token(maths.reinforce_pp_baseline_advantages),
    "reinforce_pp_baseline_no_eps": _by_token(
        lambda r, g, m: maths.reinforce_pp_baseline_advantages(r, g, m, eps=0.0)
    ),
}
# These know no groups: the whole batch is one.
UNGROUPED = {
    "reinforce_pp": _by_token(_reinforce_pp),
    "reinforce_pp_no_eps": _by_token(lambda r, g, m: _reinforce_pp(r, g, m, eps=0.0)),
    "process": lambda r, g, n: maths.process_advantages(
        [[float(x)] for x in r], [[0]] * len(r), torch.ones(len(r), 1).bool(), dtype=r.dtype
    )[:, 0],
}
NORMALISED = ["grpo", "grpo_sample_no_eps", "grpo_eps_in_the_root", "rloo_population", "rloo_sample"]

NEAR_TIES = [
    [1.0, 0, 0, 0],
    [0.0, 1, 1, 1],
    [1.0, 1, 1, 1 - 1e-6],
    [0.0, 0, 1e-9, 0],
    [1e6 + 1, 1e6, 1e6, 1e6],
    [-1e-3, *([0.0] * 63)],
    [3.0, *([-2.0] * 15)],
    [5.0, 2.0],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_leave_one_out_does_not_explode(dtype):
    """D1"""
    rewards = torch.tensor([1.0, 0, 0, 0], dtype=dtype)
    assert maths.rloo_advantages(rewards, _ids(rewards)).tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    for near_tie, name in itertools.product(NEAR_TIES, NORMALISED):
        rewards = torch.tensor(near_tie, dtype=dtype)
        advantages = GROUPED[name](rewards, _ids(rewards), torch.ones(len(rewards)).long())
        assert torch.isfinite(advantages).all(), (name, near_tie)
        assert advantages.abs().max() <= 10, (name, near_tie)


ZERO_SPREAD = [[0.3] * 4, [0.1 + 0.2, 0.3], [0.3] * 6, [-7.1] * 9, [0.0, 0.0], [1e9 + 0.1] * 5, [0.7]]


@pytest.mark.parametrize("estimate", [*GROUPED.values(), *UNGROUPED.values()], ids=[*GROUPED, *UNGROUPED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_spread_is_exactly_zero_and_counted(estimate, dtype):
    """D3"""
    for row in ZERO_SPREAD:
        rewards = torch.tensor(row, dtype=dtype)
        lengths = torch.arange(1, len(row) + 1)
        advantages = estimate(rewards, _ids(rewards), lengths)
        assert advantages.tolist() == [0.0] * len(row)
        assert maths.dead_groups(rewards, _ids(rewards)) == (1, 1)
        assert maths.dynamic_sampling(rewards[None]).dead_fraction == 1
        logprobs = torch.zeros(len(row), 1, dtype=dtype, requires_grad=True)
        out = maths.ppo_surrogate(logprobs, logprobs.detach(), advantages[:, None], torch.ones(len(row), 1).bool())
        out.losses_BT.sum().backward()
        assert out.losses_BT.abs().max() == 0
        assert logprobs.grad.abs().max() == 0


def test_the_share_of_dead_groups_is_a_count_of_groups_and_not_of_rows():
    """D3"""
    rewards = torch.tensor([0.3] * 4 + [1.0, 0.0] + [0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    assert maths.dead_groups(rewards, torch.tensor([0] * 4 + [1] * 2 + [2] * 3)) == (2, 3)


@pytest.mark.parametrize("estimate", GROUPED.values(), ids=GROUPED)
def test_groups_are_known_by_id_whatever_the_order_of_arrival(estimate):
    """D5"""
    rewards, ids = torch.tensor([1.0, 0, 1, 0]), torch.tensor([1, 2, 1, 2])  # tiled p1 p2 p1 p2
    for order in map(torch.tensor, itertools.permutations(range(4))):
        advantages = estimate(rewards[order], ids[order], torch.tensor([2, 3, 5, 7])[order])
        assert advantages.tolist() == [0, 0, 0, 0]
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(9, generator=generator)
    rewards[3] = NAN
    ids, lengths = torch.tensor([70, -3, 5, 70, -3, 5, 70, 5, 5]), torch.randint(1, 6, (9,), generator=generator)
    straight = estimate(rewards, ids, lengths)
    assert straight.abs().max() > 0.1
    for _ in range(5):
        order = torch.randperm(9, generator=generator)
        shuffled = estimate(rewards[order], ids[order], lengths[order])
        torch.testing.assert_close(shuffled, straight[order], rtol=1e-5, atol=1e-6)


def _trained(features, mask, aggregation, norm_len, split):
    """Loss and gradient of a shared weight, the batch accumulated in parts: sums over one count of the whole."""
    weight = torch.ones(features.shape[-1], requires_grad=True)
    count = maths.aggregate_count(mask, aggregation)
    total = 0.0
    for x, live in zip(features.split(split), mask.split(split), strict=True):
        losses = torch.where(live, (x * weight).sum(-1).square(), NAN)
        part = maths.aggregate_sum(losses, live, aggregation, norm_len) / count
        part.backward()
        total += part.item()
    return total, weight.grad


def test_token_mean_is_the_same_for_any_split():
    """D7"""
    mask = maths.response_mask_from_lengths(torch.tensor([2, 6]), 6)
    features = torch.tensor([[1.0], [3.0**0.5]]).expand(2, 6)[..., None]  # losses 1 and 3 per token
    for split in ([2], [1, 1]):
        loss, gradient = _trained(features, mask, Aggregation.TOKEN_MEAN, None, split)
        assert loss == pytest.approx(2.5, abs=1e-6)
        assert gradient.tolist() == pytest.approx([5.0], abs=1e-6)  # 2 (2 * 1 + 6 * 3) / 8


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_every_aggregation_is_the_same_for_any_split(aggregation):
    """D7"""
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(6, 7, generator=generator) > torch.tensor([0.0, 0.9, 0.5, 1.0, 0.2, 0.7])[:, None]
    assert not mask[3].any()
    features = 0.3 * torch.randn(6, 7, 3, generator=generator)
    norm_len = 7 if aggregation == Aggregation.TOKEN_SUM_NORM else None
    loss, gradient = _trained(features, mask, aggregation, norm_len, [6])
    for split in ([1] * 6, [3, 3], [2, 4], [5, 1]):
        part_loss, part_gradient = _trained(features, mask, aggregation, norm_len, split)
        assert part_loss == pytest.approx(loss, abs=1e-6)
        torch.testing.assert_close(part_gradient, gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("garbage", [100.0, -1e30, NAN, INF, -INF])
def test_values_in_pads_stay_out_of_the_recursion(garbage):
    """F1"""
    ended = torch.tensor([True])

    def advantages(mask, rewards, values, **options):
        mask = torch.tensor([mask]).bool()
        rewards, values = torch.tensor([rewards]), torch.tensor([values])
        values = torch.where(mask, values, garbage)
        out = maths.gae(rewards, values, mask, 1.0, 0.95, options.pop("terminated", ended), **options)
        assert out.returns_BT[~mask].abs().sum() == 0
        return out.advantages_BT[0].tolist()

    assert advantages([1, 1, 0], [0.0, 1, 0], [0.0, 0, 0]) == pytest.approx([0.95, 1, 0])
    assert advantages([1, 1, 0], [0.0, 1, garbage], [0.0, 0, 0]) == pytest.approx([0.95, 1, 0])
    assert advantages([0, 1, 1], [garbage, 0, 1], [0.0, 0, 0]) == pytest.approx([0, 0.95, 1])
    assert advantages([1, 0, 1], [0.0, garbage, 1], [0.0, 0, 0]) == pytest.approx([0.95, 0, 1])
    assert advantages([0, 0, 0], [garbage] * 3, [0.0] * 3) == [0, 0, 0]
    # cut at the length limit: V = 2 stands after the last live token and nowhere else; a done in a pad ends nothing
    truncated = {"terminated": ~ended, "bootstrap_values_B": torch.tensor([2.0])}
    assert advantages([1, 1, 0], [0.0, 1, 0], [0.0] * 3, **truncated) == pytest.approx([2.85, 3, 0])
    padded_done = {**truncated, "dones_BT": torch.tensor([[False, False, True]])}
    assert advantages([1, 1, 0], [0.0, 1, 0], [0.0] * 3, **padded_done) == pytest.approx([2.85, 3, 0])


LOSSES = {
    "ppo": lambda x, o, a, m: maths.ppo_surrogate(x, o, a, m),
    "ppo_unclipped": lambda x, o, a, m: maths.ppo_surrogate(x, o, a, m, INF, INF),
    "ppo_dual": lambda x, o, a, m: maths.ppo_surrogate(x, o, a, m, dual_clip=3.0),
    "grpo": lambda x, o, a, m: maths.grpo_loss(x, o, o, a, m),
    "grpo_corrected": lambda x, o, a, m: maths.grpo_loss_ratio_corrected(x, o, o, a, m),
    "gspo": lambda x, o, a, m: maths.gspo(x, o, a[:, 0], m),
    "gspo_token": lambda x, o, a, m: maths.gspo_token(x, o, a, m),
    "gmpo": lambda x, o, a, m: maths.gmpo(x, o, a[:, 0], m),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_nan_in_a_pad_is_nothing_and_a_live_one_is_reported(loss, bad, slot):
    """M2"""
    mask = torch.tensor([[True, False]])
    inputs = [torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2)]
    inputs[slot][0, 1] = bad
    new, old, advantages = inputs
    new.requires_grad_()
    total = maths.aggregate(loss(new, old, advantages, mask).losses_BT, mask, Aggregation.TOKEN_MEAN)
    total.backward()
    assert total.item() == -1
    assert new.grad.tolist() == [[-1.0, 0.0]]
    for estimator in KLEstimator:
        assert maths.kl_tokens(new.detach(), old, mask, estimator).tolist() == [[0.0, 0.0]]
    assert vars(maths.kl_units(new.detach(), old, mask)) == dict.fromkeys(vars(maths.kl_units(new, old, mask)), 0)
    stats = maths.policy_stats(new.detach(), old, advantages, mask).means()
    assert (stats.approx_kl_k1, stats.approx_kl_k2, stats.approx_kl_k3, stats.ratio_mean) == (0, 0, 0, 1)
    for mode in ImportanceMode:
        assert maths.is_weights(new, old, mask, mode, 0.5, 2.0).tolist() == [[1.0, 0.0]]
    inputs[slot].data[0, 0] = bad
    name = ("logprobs", "old_logprobs", "advantages")[slot]
    with pytest.raises(maths.NonFiniteError, match=f"^{name} is {bad} at row 0"):
        loss(*inputs, mask)
