"""Shaped rewards, returns, GAE."""

import pytest
import torch

from tether import maths

NAN = float("nan")
ENDED = torch.tensor([True])


def _all_live(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool)


def test_case_A3_score_lands_on_the_last_live_token():
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    zeros = torch.zeros(2, 5)
    rewards = maths.shaped_rewards(torch.ones(2), zeros, zeros, mask, 0.1)
    assert rewards.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    assert rewards.sum(-1).tolist() == [1, 1]


def test_case_A3_gae_on_that_row():
    mask = torch.tensor([[1, 1, 1, 0, 0]]).bool()
    rewards = torch.tensor([[0.0, 0, 1, NAN, NAN]])
    values = torch.tensor([[0.1, 0.2, 0.3, NAN, NAN]])
    result = maths.gae(rewards, values, mask, 0.9, 0.5, torch.tensor([True]))
    assert result.advantages_BT[0].tolist() == pytest.approx([0.25325, 0.385, 0.7, 0, 0])


def test_case_F1_values_in_pads_do_not_leak():
    rewards, values = torch.tensor([[0.0, 1, 0]]), torch.tensor([[0.0, 0, 100]])
    mask = torch.tensor([[True, True, False]])
    result = maths.gae(rewards, values, mask, 1.0, 0.95, torch.tensor([True]))
    assert result.advantages_BT[0].tolist() == pytest.approx([0.95, 1, 0])


def _random_batch():
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64).unbind()
    mask = torch.arange(6) < torch.tensor([6, 3, 1, 0])[:, None]
    return rewards, values, mask


def test_lambda_one_is_the_monte_carlo_return():
    rewards, values, mask = _random_batch()
    result = maths.gae(rewards, values, mask, 0.9, 1.0, torch.ones(4).bool())
    torch.testing.assert_close(result.returns_BT, maths.reward_to_go(rewards, mask, 0.9))


def test_lambda_zero_is_the_one_step_error():
    result = maths.gae(
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([[10.0, 20.0]]),
        _all_live(1, 2),
        0.5,
        0.0,
        torch.tensor([True]),
    )
    assert result.advantages_BT.tolist() == [[1.0, -18.0]]


def test_a_gap_is_skipped_not_a_step_of_zero():
    dense = maths.gae(
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([[0.5, 0.25]]),
        _all_live(1, 2),
        0.9,
        0.8,
        torch.tensor([True]),
    )
    gapped = maths.gae(
        torch.tensor([[1.0, NAN, NAN, 2.0]]),
        torch.tensor([[0.5, NAN, NAN, 0.25]]),
        torch.tensor([[True, False, False, True]]),
        0.9,
        0.8,
        torch.tensor([True]),
    )
    assert gapped.advantages_BT[0, [0, 3]].tolist() == dense.advantages_BT[0].tolist()
    assert gapped.returns_BT[0, 1:3].tolist() == [0, 0]


def test_dones_make_a_packed_row_equal_to_two_rows():
    rewards, values = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    dones = torch.tensor([[False, True, False, True]])
    packed = maths.gae(rewards, values, _all_live(1, 4), 0.9, 0.8, torch.tensor([False]), None, dones)
    apart = maths.gae(rewards.view(2, 2), values.view(2, 2), _all_live(2, 2), 0.9, 0.8, torch.ones(2).bool())
    assert packed.advantages_BT.view(2, 2).tolist() == apart.advantages_BT.tolist()


def test_truncated_rows_bootstrap_and_terminated_rows_ignore_it():
    rewards, values = torch.zeros(2, 1), torch.zeros(2, 1)
    result = maths.gae(
        rewards, values, _all_live(2, 1), 0.5, 1.0, torch.tensor([True, False]), torch.tensor([NAN, 4.0])
    )
    assert result.advantages_BT.tolist() == [[0.0], [2.0]]


def test_bootstrap_equals_folding_it_into_the_last_reward():
    rewards, values, mask = _random_batch()
    boot = torch.full((4,), 2.0, dtype=torch.float64)
    truncated = maths.gae(rewards, values, mask, 0.9, 0.8, torch.zeros(4).bool(), boot)
    folded = rewards.clone()
    for row, column in ((0, 5), (1, 2), (2, 0)):
        folded[row, column] += 1.8
    terminated = maths.gae(folded, values, mask, 0.9, 0.8, torch.ones(4).bool())
    torch.testing.assert_close(truncated.advantages_BT, terminated.advantages_BT)


def test_a_needed_bootstrap_must_be_there_and_finite():
    arguments = (torch.zeros(2, 1), torch.zeros(2, 1), _all_live(2, 1), 1.0, 1.0, torch.tensor([True, False]))
    with pytest.raises(ValueError, match="row 1 is truncated"):
        maths.gae(*arguments)
    with pytest.raises(maths.NonFiniteError, match="bootstrap_values is nan at row 1"):
        maths.gae(*arguments, torch.tensor([0.0, NAN]))


def test_a_live_nan_names_the_tensor():
    ones = torch.ones(1, 2)
    bad = torch.tensor([[1.0, NAN]])
    with pytest.raises(maths.NonFiniteError, match="values is nan at row 0, column 1"):
        maths.gae(ones, bad, _all_live(1, 2), 1.0, 1.0, torch.tensor([True]))
    with pytest.raises(maths.NonFiniteError, match="rewards is nan"):
        maths.reward_to_go(bad, _all_live(1, 2))


def test_results_are_detached():
    values = torch.zeros(1, 2, requires_grad=True)
    result = maths.gae(torch.ones(1, 2), values, _all_live(1, 2), 1.0, 1.0, torch.tensor([True]))
    assert not result.advantages_BT.requires_grad
    assert not result.returns_BT.requires_grad


def test_an_empty_row_may_have_a_nan_score():
    zeros, mask = torch.zeros(2, 2), torch.tensor([[True, True], [False, False]])
    rewards = maths.shaped_rewards(torch.tensor([1.0, NAN]), zeros, zeros, mask, 0.1)
    assert rewards.tolist() == [[0, 1], [0, 0]]
    with pytest.raises(maths.NonFiniteError, match="scores is nan at row 0"):
        maths.shaped_rewards(torch.tensor([NAN, 1.0]), zeros, zeros, mask, 0.1)


def test_permuting_rows_permutes_results():
    rewards, values, mask = _random_batch()
    order = torch.tensor([2, 0, 3, 1])
    ended = torch.ones(4).bool()
    straight = maths.gae(rewards, values, mask, 0.9, 0.8, ended)
    permuted = maths.gae(rewards[order], values[order], mask[order], 0.9, 0.8, ended)
    assert torch.equal(permuted.advantages_BT, straight.advantages_BT[order])


def test_decoupled_gae_by_hand():
    result = maths.decoupled_gae(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.2, 0.4]]), _all_live(1, 2), 1.0,
        torch.tensor([0.0]), 1.0, torch.tensor([True]),
    )  # fmt: skip
    assert result.advantages_BT[0].tolist() == pytest.approx([0.2, 0.6])
    assert result.returns_BT[0].tolist() == pytest.approx([1.0, 1.0])


def test_vapo_lambda_by_hand():
    assert maths.vapo_lambda(torch.tensor([40, 10, 200])).tolist() == pytest.approx([0.5, 0.0, 0.9])


def test_vapo_lambda_needs_a_positive_alpha():
    with pytest.raises(ValueError, match="alpha must be positive"):
        maths.vapo_lambda(torch.tensor([40]), 0.0)


def test_batches_without_columns_have_empty_results():
    nothing, mask = torch.zeros(2, 0), torch.zeros(2, 0).bool()
    truncated = torch.tensor([True, False])
    for dones in (None, mask):
        result = maths.gae(nothing, nothing, mask, 1.0, 0.9, truncated, None, dones)
        assert result.advantages_BT.shape == result.returns_BT.shape == (2, 0)
    assert maths.reward_to_go(nothing, mask).shape == (2, 0)
