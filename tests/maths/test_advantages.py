"""Group advantages."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths
from tether.maths import StdKind

NAN, INF = float("nan"), float("inf")


def _group(*rewards: float, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(rewards, dtype=dtype), torch.zeros(len(rewards), dtype=torch.long)


ESTIMATORS = {
    "grpo": maths.grpo_advantages,
    "grpo_sample": lambda r, g: maths.grpo_advantages(r, g, StdKind.SAMPLE, 0.0),
    "dr_grpo": lambda r, g: maths.grpo_advantages(r, g, StdKind.NONE),
    "rloo": maths.rloo_advantages,
    "rloo_std": lambda r, g: maths.rloo_advantages(r, g, StdKind.POPULATION, 0.0),
    "batch_std": maths.grpo_batch_std_advantages,
    "opo": lambda r, g: maths.opo_advantages(r, torch.arange(1, len(r) + 1), g),
}
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


def test_case_D1_leave_one_out_by_hand():
    advantages = maths.rloo_advantages(*_group(1, 0, 0, 0))
    assert advantages.tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("std", [StdKind.POPULATION, StdKind.SAMPLE])
def test_case_D1_normalised_leave_one_out_stays_small(std):
    advantages = maths.rloo_advantages(*_group(1, 0, 0, 0), std, 1e-6)
    assert torch.isfinite(advantages).all()
    assert advantages.abs().max() <= 10


@every_estimator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "rewards", [(0.3, 0.3, 0.3, 0.3), (0.1 + 0.2, 0.3), (0.7,), (-2.0, -2.0), (0.0, 0.0)]
)
def test_case_D3_no_spread_gives_exact_zeros(estimate, rewards, dtype):
    assert estimate(*_group(*rewards, dtype=dtype)).tolist() == [0.0] * len(rewards)


def test_case_D3_dead_groups_are_counted():
    rewards, ids = torch.tensor([1.0, 1, 0, 1, NAN]), torch.tensor([0, 0, 1, 1, 2])
    assert maths.dead_groups(rewards, ids) == (2, 3)
    sampled = maths.dynamic_sampling(torch.tensor([[1.0, 0.0], [0.1 + 0.2, 0.3], [NAN, 1.0]]))
    assert sampled.keep_P.tolist() == [True, False, False]
    assert sampled.dead_fraction == pytest.approx(2 / 3)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_case_D5_groups_are_known_by_id_not_by_place(order):
    rewards, ids = torch.tensor([1.0, 0, 1, 0]), torch.tensor([7, 3, 7, 3])  # tiled p1 p2 p1 p2
    order = torch.tensor(order)
    assert maths.grpo_advantages(rewards[order], ids[order]).tolist() == [0, 0, 0, 0]


@every_estimator
def test_case_D5_shuffling_rows_shuffles_the_result(estimate):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(12, generator=generator, dtype=torch.float64)
    rewards[4] = NAN
    ids = torch.arange(12) % 3
    order = torch.randperm(12, generator=generator)
    if estimate is ESTIMATORS["opo"]:
        lengths = torch.arange(1, 13)
        straight = maths.opo_advantages(rewards, lengths, ids)[order]
        shuffled = maths.opo_advantages(rewards[order], lengths[order], ids[order])
    else:
        straight, shuffled = estimate(rewards, ids)[order], estimate(rewards[order], ids[order])
    torch.testing.assert_close(shuffled, straight, rtol=1e-12, atol=1e-14)


@every_estimator
def test_an_unscorable_row_changes_nothing_for_the_others(estimate):
    with_nan = estimate(*_group(1, 0, 0.5, NAN))
    assert with_nan[3] == 0
    assert with_nan[:3].tolist() == pytest.approx(estimate(*_group(1, 0, 0.5)).tolist())


def test_standardised_group_has_mean_zero_and_variance_one():
    advantages = maths.grpo_advantages(*_group(3, -1, 0.5, 8, 2), eps=0.0)
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-15)
    assert float(advantages.var(correction=0)) == pytest.approx(1)


def test_group_of_two_leave_one_out_is_the_difference():
    assert maths.rloo_advantages(*_group(5, 2)).tolist() == [3, -3]


def test_binary_rewards_by_hand():
    advantages = maths.grpo_advantages(*_group(1, 0, 0, 0), eps=0.0)
    assert advantages.tolist() == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=9), st.integers(-5, 5), st.integers(1, 7))
def test_standardised_advantages_ignore_shift_and_scale(rewards, shift, scale):
    plain = maths.grpo_advantages(*_group(*map(float, rewards)), eps=0.0)
    moved = maths.grpo_advantages(*_group(*(float(r * scale + shift) for r in rewards)), eps=0.0)
    torch.testing.assert_close(moved, plain, rtol=1e-9, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, NAN, 0.1 + 0.2, 0.3]), min_size=1, max_size=10), st.data())
def test_centred_advantages_sum_to_zero_in_every_group(rewards, data):
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(rewards), max_size=len(rewards))))
    advantages = maths.grpo_advantages(torch.tensor(rewards, dtype=torch.float64), ids, StdKind.NONE)
    for group in ids.unique():
        assert abs(float(advantages[ids == group].sum())) < 1e-12


def test_infinite_reward_is_refused():
    with pytest.raises(maths.NonFiniteError, match="rewards is inf at row 1"):
        maths.grpo_advantages(*_group(0, float("inf")))


def test_opo_by_hand():
    rewards, ids = _group(1, 0)
    assert maths.opo_advantages(rewards, torch.tensor([1, 3]), ids).tolist() == pytest.approx([0.75, -0.25])


def test_mixed_reward_by_hand():
    total = maths.mixed_reward(torch.tensor([[1.0, NAN], [NAN, NAN], [1, 3]]), torch.tensor([2.0, 1.0]))
    assert total[0] == 2
    assert total[1].isnan()
    assert total[2] == 5


def test_gdpo_unscorable_rows_are_zero_and_left_out():
    rewards = torch.tensor([[0.0], [1.0], [NAN], [0.0], [1.0]])
    ids = torch.tensor([0, 0, 0, 1, 1])
    advantages = maths.gdpo_advantages(rewards, ids, torch.ones(1), ddof=0, eps=0.0)
    assert advantages.tolist() == pytest.approx([-1, 1, 0, -1, 1])


def test_overlong_penalty_by_hand():
    penalty = maths.overlong_penalty(torch.tensor([80, 90, 100, 120]), 100, 20)
    assert penalty.tolist() == pytest.approx([0, -0.5, -1, -1])
    with pytest.raises(ValueError, match="cache"):
        maths.overlong_penalty(torch.tensor([1]), 100, 0)


def test_process_advantages_by_hand_and_bad_steps():
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert maths.process_advantages([[0.0, 2.0]], [[0, 1]], mask).tolist() == [[0.0, 1.0]]
    assert maths.process_advantages([[1.0, 1.0]], [[0, 1]], mask).tolist() == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="row 0"):
        maths.process_advantages([[1.0]], [[2]], mask)


def test_remax_skips_unscorable_rows():
    advantages = maths.remax_advantages(torch.tensor([1.0, NAN, 0.0]), torch.tensor([0.5, 0.5, NAN]))
    assert advantages.tolist() == [0.5, 0, 0]


def test_reinforce_pp_whitens_over_all_live_tokens():
    zeros, mask = torch.zeros(2, 2), torch.tensor([[True, False], [True, True]])
    advantages = maths.reinforce_pp_advantages(torch.tensor([2.0, -1.0]), zeros, zeros, mask, 0.1)
    # tokens 2, -1, -1: mean 0, population variance 2
    assert advantages[0].tolist() == pytest.approx([2**0.5, 0])
    assert advantages[1].tolist() == pytest.approx([-(2**-0.5), -(2**-0.5)])


def test_reinforce_pp_baseline_keeps_unscorable_rows_out():
    rewards, ids = torch.tensor([1.0, 0.0, NAN]), torch.zeros(3, dtype=torch.long)
    mask = torch.tensor([[True], [True], [True]])
    advantages = maths.reinforce_pp_baseline_advantages(rewards, ids, mask)
    assert advantages.flatten().tolist() == pytest.approx([1, -1, 0], abs=1e-6)


@every_estimator
@pytest.mark.parametrize("rewards", [(0.3, 0.3), (0.1 + 0.2, 0.3), (0.7,), (NAN, NAN), (0.7, NAN)])
def test_no_spread_gives_zeros_without_eps_too(estimate, rewards):
    estimate = {
        maths.grpo_advantages: lambda r, g: maths.grpo_advantages(r, g, eps=0.0),
        maths.grpo_batch_std_advantages: lambda r, g: maths.grpo_batch_std_advantages(r, g, eps=0.0),
    }.get(estimate, estimate)
    assert estimate(*_group(*rewards)).tolist() == [0.0] * len(rewards)


@every_estimator
def test_advantages_are_detached(estimate):
    rewards, ids = _group(1, 0, 0.5)
    assert not estimate(rewards.requires_grad_(), ids).requires_grad


def test_batch_std_by_hand():
    rewards, ids = torch.tensor([0.0, 2, 5, 5]), torch.tensor([0, 0, 1, 1])
    advantages = maths.grpo_batch_std_advantages(rewards, ids, 0, 0.0)
    assert advantages.tolist() == pytest.approx([-0.471405, 0.471405, 0, 0], abs=1e-6)


def test_remax_subtracts_in_full_precision_and_refuses_infinity():
    half = torch.tensor([100.5], dtype=torch.bfloat16), torch.tensor([0.375], dtype=torch.bfloat16)
    assert maths.remax_advantages(*half).tolist() == [100.125]  # bfloat16 would say 100
    for rewards, greedy, name in (([1.0, INF], [0.0, 0.0], "rewards"), ([1.0, 0.0], [0.0, INF], "greedy_rewards")):
        with pytest.raises(maths.NonFiniteError, match=f"^{name} is inf at row 1"):
            maths.remax_advantages(torch.tensor(rewards), torch.tensor(greedy))


def test_an_infinite_component_is_refused_whatever_its_weight():
    with pytest.raises(maths.NonFiniteError, match="rewards is inf at row 0, column 1"):
        maths.mixed_reward(torch.tensor([[1.0, INF]]), torch.tensor([1.0, 0.0]))
