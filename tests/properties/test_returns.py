"""Laws of returns and generalised advantage estimation. Axes: B sequences, T tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths

NAN = float("nan")
few = settings(max_examples=15, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)
SHARES = st.floats(0, 1)


def _batch(seed: int, rows: int = 4, columns: int = 7):
    """Rewards and values (NaN in pads), masks with gaps and an empty row, bootstraps, ends."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < 0.7
    mask[-1] = False
    rewards, values = (
        torch.where(mask, torch.randn(rows, columns, generator=generator, dtype=torch.float64), NAN) for _ in range(2)
    )
    terminated = torch.rand(rows, generator=generator) < 0.5
    bootstrap = torch.where(terminated, NAN, torch.randn(rows, generator=generator, dtype=torch.float64))
    return rewards, values, mask, terminated, bootstrap, generator


def _assert_same(actual: maths.GAEResult, expected: maths.GAEResult) -> None:
    torch.testing.assert_close(actual.advantages_BT, expected.advantages_BT)
    torch.testing.assert_close(actual.returns_BT, expected.returns_BT)


def _ended(mask):
    return torch.ones(len(mask), dtype=torch.bool)


@few
@given(SEEDS)
def test_lambda_one_is_reward_to_go_minus_value(seed):
    rewards, values, mask, *_ = _batch(seed)
    result = maths.gae(rewards, values, mask, 1.0, 1.0, _ended(mask))
    to_go = maths.reward_to_go(rewards, mask)
    torch.testing.assert_close(result.advantages_BT, to_go - maths.select(values, mask))
    torch.testing.assert_close(result.returns_BT, to_go)


@few
@given(SEEDS, SHARES)
def test_lambda_zero_is_the_one_step_error(seed, gamma):
    rewards, values, mask, terminated, bootstrap, _ = _batch(seed)
    result = maths.gae(rewards, values, mask, gamma, 0.0, terminated, bootstrap)
    for row in range(len(mask)):
        live = mask[row].nonzero().flatten().tolist()
        last = 0.0 if terminated[row] else float(bootstrap[row])
        for t, after in zip(live, [*live[1:], None][: len(live)], strict=True):
            following = last if after is None else float(values[row, after])
            error = float(rewards[row, t]) + gamma * following - float(values[row, t])
            assert float(result.advantages_BT[row, t]) == pytest.approx(error)


@few
@given(SEEDS, SHARES, SHARES)
def test_a_bootstrap_is_the_same_as_its_discounted_value_in_the_last_reward(seed, gamma, lam):
    rewards, values, mask, terminated, bootstrap, _ = _batch(seed)
    folded = rewards.clone()
    for row, column in enumerate(maths.last_live_index(mask).tolist()):
        if column >= 0 and not terminated[row]:
            folded[row, column] += gamma * bootstrap[row]
    direct = maths.gae(rewards, values, mask, gamma, lam, terminated, bootstrap)
    _assert_same(direct, maths.gae(folded, values, mask, gamma, lam, _ended(mask)))


@few
@given(SEEDS, SHARES, SHARES)
def test_a_sequence_with_gaps_is_the_sequence_with_them_cut_out(seed, gamma, lam):
    rewards, values, mask, terminated, bootstrap, _ = _batch(seed)
    gapped = maths.gae(rewards, values, mask, gamma, lam, terminated, bootstrap)
    to_go = maths.reward_to_go(rewards, mask, gamma)
    for row in range(len(mask)):
        live = mask[row]
        dense = torch.ones(1, int(live.sum()), dtype=torch.bool)
        cut = maths.gae(
            rewards[row, live][None], values[row, live][None], dense, gamma, lam,
            terminated[row : row + 1], bootstrap[row : row + 1],
        )  # fmt: skip
        torch.testing.assert_close(gapped.advantages_BT[row, live], cut.advantages_BT[0])
        torch.testing.assert_close(gapped.returns_BT[row, live], cut.returns_BT[0])
        torch.testing.assert_close(to_go[row, live], maths.reward_to_go(rewards[row, live][None], dense, gamma)[0])


@few
@given(SEEDS, SHARES, SHARES)
def test_packed_rows_are_the_rows_apart(seed, gamma, lam):
    rewards, values, mask, terminated, bootstrap, _ = _batch(seed)
    dones = torch.zeros_like(mask)
    for row, column in enumerate(maths.last_live_index(mask).tolist()):
        dones[row, column] = column >= 0
    packed = maths.gae(
        rewards.view(1, -1), values.view(1, -1), mask.view(1, -1), gamma, lam,
        torch.tensor([False]), None, dones.view(1, -1),
    )  # fmt: skip
    apart = maths.gae(rewards, values, mask, gamma, lam, _ended(mask))
    torch.testing.assert_close(packed.advantages_BT.view_as(mask), apart.advantages_BT)
    torch.testing.assert_close(packed.returns_BT.view_as(mask), apart.returns_BT)
    nothing_done = maths.gae(rewards, values, mask, gamma, lam, terminated, bootstrap, torch.zeros_like(mask))
    _assert_same(nothing_done, maths.gae(rewards, values, mask, gamma, lam, terminated, bootstrap))


@few
@given(SEEDS, SHARES)
def test_an_unfinished_last_episode_of_a_packed_row_is_bootstrapped(seed, lam):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 1, 5, generator=generator, dtype=torch.float64).unbind()
    live, value = torch.ones(1, 5, dtype=torch.bool), torch.tensor([2.5], dtype=torch.float64)
    dones = torch.tensor([[False, True, False, False, False]])
    truncated = torch.tensor([False])
    packed = maths.gae(rewards, values, live, 0.9, lam, truncated, value, dones)
    head = maths.gae(rewards[:, :2], values[:, :2], live[:, :2], 0.9, lam, ~truncated)
    tail = maths.gae(rewards[:, 2:], values[:, 2:], live[:, 2:], 0.9, lam, truncated, value)
    torch.testing.assert_close(packed.advantages_BT, torch.cat([head.advantages_BT, tail.advantages_BT], -1))


@few
@given(SEEDS, SHARES, SHARES)
def test_permuting_rows_permutes_results(seed, gamma, lam):
    rewards, values, mask, terminated, bootstrap, generator = _batch(seed)
    order = torch.randperm(len(mask), generator=generator)
    straight = maths.gae(rewards, values, mask, gamma, lam, terminated, bootstrap)
    shuffled = maths.gae(
        rewards[order], values[order], mask[order], gamma, lam, terminated[order], bootstrap[order]
    )
    assert torch.equal(shuffled.advantages_BT, straight.advantages_BT[order])


@few
@given(SEEDS, SHARES, SHARES)
def test_one_lambda_is_the_same_lambda_for_every_row_and_decoupling_takes_both(seed, gamma, lam):
    rewards, values, mask, terminated, bootstrap, _ = _batch(seed)
    common = (rewards, values, mask, gamma)
    one = maths.gae(*common, lam, terminated, bootstrap)
    lam_B = torch.full((len(mask),), lam, dtype=torch.float64)
    _assert_same(maths.gae(*common, lam_B, terminated, bootstrap), one)
    critic = maths.gae(*common, 1.0, terminated, bootstrap)
    both = maths.decoupled_gae(*common, lam_B, 1.0, terminated, bootstrap)
    torch.testing.assert_close(both.advantages_BT, one.advantages_BT)
    torch.testing.assert_close(both.returns_BT, critic.returns_BT)


@few
@given(SEEDS, SHARES)
def test_a_perfect_critic_leaves_no_advantage(seed, lam):
    rewards, _, mask, *_ = _batch(seed)
    values = maths.reward_to_go(rewards, mask, 0.9)
    result = maths.gae(rewards, values, mask, 0.9, lam, _ended(mask))
    torch.testing.assert_close(result.advantages_BT, torch.zeros_like(values), rtol=0, atol=1e-12)


@few
@given(SEEDS, st.floats(0, 2))
def test_shaped_rewards_sum_to_the_score_minus_the_kl(seed, beta):
    logprobs, ref, mask, _, _, generator = _batch(seed)
    scores = torch.randn(len(mask), generator=generator, dtype=torch.float64)
    rewards = maths.shaped_rewards(scores, logprobs, ref, mask, beta)
    kl = maths.kl_tokens(logprobs, ref, mask, maths.KLEstimator.K1).sum(-1)
    expected = torch.where(mask.any(-1), scores, 0.0) - beta * kl
    torch.testing.assert_close(rewards.sum(-1), expected)
    # without a tether the score is paid at one token alone, the last live one
    paid = maths.shaped_rewards(scores, logprobs, ref, mask, 0.0)
    for row, column in enumerate(maths.last_live_index(mask).tolist()):
        assert paid[row].nonzero().flatten().tolist() == [column][: column + 1]
