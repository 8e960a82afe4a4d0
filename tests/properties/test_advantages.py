"""Laws of group advantages. Axes: B rows, G rows of one group, A actions."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths
from tether.maths import EpsMode, StdKind

NAN = float("nan")
few = settings(max_examples=10, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)

# (rewards [B], group ids [B], lengths [B]) -> advantages [B]
ESTIMATORS = {
    "grpo": lambda r, g, n: maths.grpo_advantages(r, g),
    "grpo_sample": lambda r, g, n: maths.grpo_advantages(r, g, StdKind.SAMPLE, 1e-4),
    "grpo_root": lambda r, g, n: maths.grpo_advantages(r, g, eps_mode=EpsMode.VAR, eps=0.1),
    "dr_grpo": lambda r, g, n: maths.grpo_advantages(r, g, StdKind.NONE),
    "rloo": lambda r, g, n: maths.rloo_advantages(r, g),
    "rloo_std": lambda r, g, n: maths.rloo_advantages(r, g, StdKind.SAMPLE),
    "batch_std": lambda r, g, n: maths.grpo_batch_std_advantages(r, g),
    "opo": lambda r, g, n: maths.opo_advantages(r, n, g),
    "gdpo": lambda r, g, n: maths.gdpo_advantages(torch.stack([r, r.square()], -1), g, torch.tensor([1.0, 0.5])),
    "sum_then_normalize": lambda r, g, n: maths.sum_then_normalize_advantages(
        torch.stack([r, r.square()], -1), g, torch.tensor([1.0, 0.5])
    ),
    "reinforce_pp_baseline": lambda r, g, n: maths.reinforce_pp_baseline_advantages(
        r, g, maths.response_mask_from_lengths(n, 6)
    )[:, 0],
}
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


def _batch(seed: int, rows: int = 9, groups: int = 3):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, generator=generator, dtype=torch.float64)
    rewards[torch.rand(rows, generator=generator) < 0.15] = NAN
    ids = torch.randint(groups, (rows,), generator=generator) * 17 - 5
    lengths = torch.randint(1, 7, (rows,), generator=generator)
    return rewards, ids, lengths, generator


@every_estimator
@few
@given(SEEDS)
def test_permuting_rows_permutes_advantages(estimate, seed):
    rewards, ids, lengths, generator = _batch(seed)
    order = torch.randperm(len(rewards), generator=generator)
    shuffled = estimate(rewards[order], ids[order], lengths[order])
    torch.testing.assert_close(shuffled, estimate(rewards, ids, lengths)[order], rtol=1e-9, atol=1e-12)


@every_estimator
@few
@given(SEEDS)
def test_names_and_order_of_the_groups_do_not_matter(estimate, seed):
    rewards, ids, lengths, _ = _batch(seed)
    renamed = estimate(rewards, 1000 - 3 * ids, lengths)
    torch.testing.assert_close(renamed, estimate(rewards, ids, lengths), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "estimate",
    [ESTIMATORS[name] for name in ("grpo", "grpo_sample", "dr_grpo", "rloo", "rloo_std", "opo", "sum_then_normalize")],
)
@few
@given(SEEDS)
def test_a_group_knows_nothing_of_the_others(estimate, seed):
    rewards, ids, lengths, _ = _batch(seed)
    together = estimate(rewards, ids, lengths)
    for group in ids.unique():
        alone = ids == group
        torch.testing.assert_close(estimate(rewards[alone], ids[alone], lengths[alone]), together[alone])


@few
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True), st.sampled_from([0, 1]))
def test_standardised_is_mean_zero_and_std_one(rewards, ddof):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    ids = torch.zeros(len(rewards), dtype=torch.long)
    std = StdKind.SAMPLE if ddof else StdKind.POPULATION
    for advantages in (
        maths.grpo_advantages(rewards, ids, std, 0.0),
        maths.grpo_batch_std_advantages(rewards, ids, ddof, 0.0),
        maths.gdpo_advantages(rewards[:, None], ids, torch.ones(1), ddof, 0.0),
    ):
        assert float(advantages.mean()) == pytest.approx(0, abs=1e-12)
        assert float(advantages.std(correction=ddof)) == pytest.approx(1)


@few
@given(SEEDS)
def test_whitened_token_advantages_are_mean_zero_and_std_one_over_live_tokens(seed):
    _, ids, lengths, generator = _batch(seed, rows=6, groups=1)
    mask = maths.response_mask_from_lengths(lengths, 6)
    zeros = torch.zeros(6, 6, dtype=torch.float64)
    scores = torch.randn(6, generator=generator, dtype=torch.float64)
    live = maths.reinforce_pp_advantages(scores, zeros, zeros, mask, 0.1, eps=0.0)[mask]
    assert float(live.mean()) == pytest.approx(0, abs=1e-12)
    assert float(live.std(correction=0)) == pytest.approx(1)
    baseline = maths.reinforce_pp_baseline_advantages(scores, ids, mask, ddof=1, eps=0.0)[mask]
    assert float(baseline.mean()) == pytest.approx(0, abs=1e-12)
    assert float(baseline.std()) == pytest.approx(1)


@few
@given(st.integers(-99, 99), st.integers(-99, 99))
def test_leave_one_out_of_two_is_their_difference(first, second):
    rewards = torch.tensor([first, second], dtype=torch.float64)
    assert maths.rloo_advantages(rewards, torch.zeros(2).long()).tolist() == [first - second, second - first]


@few
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12))
def test_the_mean_with_oneself_shrinks_leave_one_out(rewards):
    size = len(rewards)
    rewards, ids = torch.tensor(rewards, dtype=torch.float64), torch.zeros(size, dtype=torch.long)
    centred = maths.grpo_advantages(rewards, ids, StdKind.NONE)
    torch.testing.assert_close(centred * size, maths.rloo_advantages(rewards, ids) * (size - 1))


@few
@given(st.lists(st.integers(-50, 50), min_size=3, max_size=10), st.integers(1, 9))
def test_length_weighted_baseline_of_equal_lengths_is_the_mean(rewards, length):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    ids = torch.zeros(len(rewards), dtype=torch.long)
    opo = maths.opo_advantages(rewards, torch.full_like(ids, length), ids)
    torch.testing.assert_close(opo, maths.grpo_advantages(rewards, ids, StdKind.NONE), rtol=1e-9, atol=1e-12)


@few
@given(SEEDS)
def test_length_weighted_advantages_sum_to_zero_by_length(seed):
    rewards, ids, lengths, _ = _batch(seed)
    advantages = maths.opo_advantages(rewards, lengths, ids)
    for group in ids.unique():
        assert float((advantages * lengths)[ids == group].sum()) == pytest.approx(0, abs=1e-10)


@few
@given(SEEDS, st.floats(0.01, 100), st.floats(-10, 10))
def test_standardised_advantages_ignore_shift_and_scale(seed, scale, shift):
    rewards, ids, _, _ = _batch(seed)
    moved = maths.grpo_advantages(scale * rewards + shift, ids, eps=0.0)
    torch.testing.assert_close(moved, maths.grpo_advantages(rewards, ids, eps=0.0), rtol=1e-7, atol=1e-9)


def _expected_gradient(logits, rewards, size, estimate):
    """E over all groups of `size` answers of 1/G sum_i A_i grad log pi(a_i), by enumeration."""
    logprobs = torch.log_softmax(logits, -1)
    total = torch.zeros(())
    for group in itertools.product(range(len(rewards)), repeat=size):
        drawn = torch.tensor(group)
        advantages = estimate(rewards[drawn], torch.zeros(size, dtype=torch.long))
        probability = logprobs[drawn].sum().exp().detach()
        total = total + probability * (advantages * logprobs[drawn]).sum() / size
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("size", [2, 3])
def test_leave_one_out_is_the_true_gradient_and_the_group_mean_a_shrunk_one(size):
    logits = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([1.0, 0.0, -2.5], dtype=torch.float64)
    (exact,) = torch.autograd.grad((torch.softmax(logits, -1) * rewards).sum(), logits)
    torch.testing.assert_close(_expected_gradient(logits, rewards, size, maths.rloo_advantages), exact)
    centred = _expected_gradient(logits, rewards, size, lambda r, g: maths.grpo_advantages(r, g, StdKind.NONE))
    torch.testing.assert_close(centred, exact * (size - 1) / size)
    standardised = _expected_gradient(logits, rewards, size, maths.grpo_advantages)
    share = standardised / exact
    assert share.max() - share.min() > 0.01  # another vector, not a shorter one


@few
@given(st.integers(1, 9), st.integers(2, 10))
def test_binary_rewards(right, size):
    right = min(right, size - 1)
    rewards = torch.tensor([1.0] * right + [0.0] * (size - right), dtype=torch.float64)
    advantages = maths.grpo_advantages(rewards, torch.zeros(size).long(), eps=0.0)
    p = right / size
    assert float(advantages[0]) == pytest.approx(math.sqrt((1 - p) / p))
    assert float(advantages[-1]) == pytest.approx(-math.sqrt(p / (1 - p)))


@few
@given(SEEDS)
def test_process_advantage_of_one_final_step_is_the_outcome_advantage(seed):
    _, _, lengths, generator = _batch(seed, rows=5)
    rewards = torch.randn(5, generator=generator, dtype=torch.float64)
    mask = maths.response_mask_from_lengths(lengths, 6)
    steps = [[float(reward)] for reward in rewards]
    ends = [[int(length) - 1] for length in lengths]
    advantages = maths.process_advantages(steps, ends, mask, dtype=torch.float64)
    outcome = maths.grpo_advantages(rewards, torch.zeros(5).long(), eps=0.0)
    torch.testing.assert_close(advantages, maths.broadcast_to_tokens(outcome, mask))


@few
@given(SEEDS)
def test_dynamic_sampling_keeps_what_has_an_advantage(seed):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(2, (7, 3), generator=generator).double()
    out = maths.dynamic_sampling(rewards)
    ids = torch.arange(7).repeat_interleave(3)
    alive = maths.rloo_advantages(rewards.flatten(), ids).view(7, 3).ne(0).any(-1)
    assert out.keep_P.tolist() == alive.tolist()
    dead, groups = maths.dead_groups(rewards.flatten(), ids)
    assert out.dead_fraction == pytest.approx(dead / groups)
