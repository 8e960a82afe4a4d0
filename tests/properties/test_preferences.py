"""Laws of reward model and preference losses. Axes: B pairs, K ranked answers."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths
from tether.maths import PreferenceKind

few = settings(max_examples=15, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)
SCORES = st.lists(st.floats(-30, 30), min_size=2, max_size=6)


def _double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _pairs(seed: int, rows: int = 4) -> maths.PreferencePairs:
    generator = torch.Generator().manual_seed(seed)
    sums = -0.5 - 20 * torch.rand(4, rows, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 30, (2, rows), generator=generator).double()
    return maths.PreferencePairs(*sums, *lengths)


def _swapped(pairs: maths.PreferencePairs) -> maths.PreferencePairs:
    return maths.PreferencePairs(
        pairs.rejected_logprobs_B, pairs.chosen_logprobs_B, pairs.ref_rejected_logprobs_B,
        pairs.ref_chosen_logprobs_B, pairs.rejected_lengths_B, pairs.chosen_lengths_B,
    )  # fmt: skip


@few
@given(st.lists(st.floats(-900, 900), min_size=1, max_size=5), st.floats(0.01, 3))
def test_dpo_without_smoothing_is_cdpo_and_robust(margins, beta):
    margin = _double(margins)
    plain = maths.dpo_loss(margin, beta)
    torch.testing.assert_close(maths.dpo_loss(margin, beta, 0.0), plain, rtol=0, atol=0)
    torch.testing.assert_close(maths.robust_dpo_loss(margin, beta, 0.0), plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(maths.dpo_loss(margin, beta, 1e-9), plain, rtol=1e-5, atol=1e-5)


@few
@given(SEEDS, st.floats(0.05, 0.45))
def test_smoothing_mixes_the_loss_with_that_of_the_swapped_pair(seed, smoothing):
    pairs = _pairs(seed)
    right = maths.preference_loss(pairs, PreferenceKind.DPO, 0.1)
    wrong = maths.preference_loss(_swapped(pairs), PreferenceKind.DPO, 0.1)
    mixed = maths.preference_loss(pairs, PreferenceKind.CDPO, 0.1, smoothing)
    torch.testing.assert_close(mixed, right + smoothing * (wrong - right))
    robust = [maths.preference_loss(p, PreferenceKind.ROBUST, 0.1, smoothing) for p in (pairs, _swapped(pairs))]
    torch.testing.assert_close((1 - smoothing) * robust[0] + smoothing * robust[1], right)


@few
@given(SEEDS)
def test_a_policy_equal_to_the_reference_has_margin_zero(seed):
    pairs = _pairs(seed)
    same = maths.PreferencePairs(
        pairs.chosen_logprobs_B, pairs.rejected_logprobs_B, pairs.chosen_logprobs_B, pairs.rejected_logprobs_B,
        pairs.chosen_lengths_B, pairs.rejected_lengths_B,
    )  # fmt: skip
    for kind, value in (
        (PreferenceKind.DPO, math.log(2)), (PreferenceKind.HINGE, 1.0),
        (PreferenceKind.IPO, 25.0), (PreferenceKind.IPO_AVG, 25.0),
    ):  # fmt: skip
        assert maths.preference_loss(same, kind, 0.1).tolist() == pytest.approx([value] * 4)
    assert maths.implicit_rewards(same, 0.1).accuracy == 0.5


@few
@given(SEEDS, st.floats(-50, 50))
def test_a_constant_in_the_reference_of_a_prompt_cancels(seed, shift):
    pairs = _pairs(seed)
    moved = maths.PreferencePairs(
        pairs.chosen_logprobs_B, pairs.rejected_logprobs_B, pairs.ref_chosen_logprobs_B + shift,
        pairs.ref_rejected_logprobs_B + shift, pairs.chosen_lengths_B, pairs.rejected_lengths_B,
    )  # fmt: skip
    for kind in (PreferenceKind.DPO, PreferenceKind.HINGE, PreferenceKind.IPO):
        torch.testing.assert_close(
            maths.preference_loss(moved, kind, 0.1), maths.preference_loss(pairs, kind, 0.1), rtol=1e-9, atol=1e-9
        )


@few
@given(SEEDS, st.integers(2, 9))
def test_average_losses_ignore_a_repeated_completion_and_sums_do_not(seed, times):
    pairs = _pairs(seed)
    longer = maths.PreferencePairs(*(times * getattr(pairs, name) for name in vars(pairs)))
    for kind in (PreferenceKind.IPO_AVG, PreferenceKind.SIMPO, PreferenceKind.ORPO):
        torch.testing.assert_close(maths.preference_loss(longer, kind, 0.5), maths.preference_loss(pairs, kind, 0.5))
    margin = maths.log_ratio_margin(longer)
    torch.testing.assert_close(margin, times * maths.log_ratio_margin(pairs))


@few
@given(st.floats(-40, 40), st.floats(-40, 40))
def test_plackett_luce_of_two_is_bradley_terry(first, second):
    scores = _double([first, second])
    nll = maths.plackett_luce_nll(scores, torch.tensor([1, 0]))
    torch.testing.assert_close(nll, maths.bt_loss(scores[1:], scores[:1])[0])


@few
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=4))
def test_plackett_luce_probabilities_of_all_rankings_sum_to_one(scores):
    scores = _double(scores)
    rankings = itertools.permutations(range(len(scores)))
    total = sum(float((-maths.plackett_luce_nll(scores, torch.tensor(ranking))).exp()) for ranking in rankings)
    assert total == pytest.approx(1)


@few
@given(SCORES, st.floats(-500, 500))
def test_a_constant_added_to_the_scores_changes_no_reward_model_loss(scores, shift):
    scores = _double(scores)
    order = torch.arange(len(scores)).flip(0)
    losses = {
        "bt": lambda s: maths.bt_loss(s[:1], s[1:2], 0.5, 0.0, 0.1).sum(),
        "plackett_luce": lambda s: maths.plackett_luce_nll(s, order),
        "instructgpt": lambda s: maths.instructgpt_rm_loss([s, scores]),
        "flattened": lambda s: maths.flattened_pair_loss([s, scores]),
        "rao_kupper": lambda s: maths.rao_kupper(s[0], s[1], 0.3).first,
        "davidson": lambda s: maths.davidson(s[0], s[1], 0.3).tie,
    }
    for loss in losses.values():
        moved = (scores + shift).requires_grad_()
        value = loss(moved)
        torch.testing.assert_close(value.detach(), loss(scores), rtol=1e-9, atol=1e-9)
        (gradient,) = torch.autograd.grad(value, moved)
        assert float(gradient.sum()) == pytest.approx(0, abs=1e-9)  # the bias learns nothing
    assert vars(maths.pair_metrics(scores + shift, scores.flip(0) + shift)) == pytest.approx(
        vars(maths.pair_metrics(scores, scores.flip(0))), abs=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bradley_terry_is_exact_eight_hundred_apart(dtype):
    gap = torch.tensor([800.0, -800.0], dtype=dtype, requires_grad=True)
    losses = maths.bt_loss(gap, torch.zeros(2, dtype=dtype))
    assert losses.tolist() == [0, 800]
    assert torch.autograd.grad(losses.sum(), gap)[0].tolist() == [0, -1]
    mixed = maths.bt_loss(gap, torch.zeros(2, dtype=dtype), label_smoothing=0.25)
    assert mixed.tolist() == [200, 600]
    for loss in (maths.dpo_loss(gap, 1.0), maths.robust_dpo_loss(gap, 1.0, 0.25)):
        assert torch.isfinite(loss).all()
    for out in (maths.rao_kupper(gap, torch.zeros(2, dtype=dtype), 1.0), maths.davidson(gap, torch.zeros_like(gap), 1.0)):
        assert out.first.tolist() == pytest.approx([1, 0])
        assert torch.isfinite(torch.stack(list(vars(out).values()))).all()


@few
@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0, 3))
def test_tie_models_sum_to_one_and_know_no_side(first, second, width):
    a, b = _double(first), _double(second)
    for model in (maths.rao_kupper, maths.davidson):
        out, mirrored = model(a, b, width), model(b, a, width)
        assert float(out.first + out.second + out.tie) == pytest.approx(1)
        assert float(out.first) == pytest.approx(float(mirrored.second))
        assert float(out.tie) >= 0


@few
@given(SEEDS)
def test_prompts_weigh_the_same_and_equal_sizes_make_both_losses_one(seed):
    generator = torch.Generator().manual_seed(seed)
    prompts = list(torch.randn(3, 4, generator=generator, dtype=torch.float64))
    torch.testing.assert_close(maths.instructgpt_rm_loss(prompts), maths.flattened_pair_loss(prompts))
    alone = torch.stack([maths.instructgpt_rm_loss([scores]) for scores in (*prompts, prompts[0][:2])]).mean()
    torch.testing.assert_close(maths.instructgpt_rm_loss([*prompts, prompts[0][:2]]), alone)


@few
@given(SEEDS, st.floats(0.05, 2))
def test_the_linear_fit_is_the_minimum(seed, l2):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    w = maths.linear_bt_fit(features, l2).requires_grad_()
    objective = maths.bt_loss(features @ w, torch.zeros(7).double()).mean() + l2 / 2 * w.square().sum()
    assert torch.autograd.grad(objective, w)[0].abs().max() < 1e-9


@few
@given(SEEDS, st.floats(0.1, 2))
def test_kto_is_bounded_falls_in_the_right_direction_and_weighs_rows(seed, beta):
    generator = torch.Generator().manual_seed(seed)
    log_ratios = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    mismatched = torch.randn(5, generator=generator, dtype=torch.float64)
    desirable = torch.tensor([True, False] * 3)
    out = maths.kto_loss(log_ratios, desirable, mismatched, beta)
    assert float(out.z0) == pytest.approx(max(0.0, float(mismatched.mean())))
    assert ((out.losses_B > 0) & (out.losses_B < 1)).all()
    (gradient,) = torch.autograd.grad(out.losses_B.sum(), log_ratios)
    assert (gradient < 0).tolist() == desirable.tolist()
    weighed = maths.kto_loss(log_ratios, desirable, mismatched, beta, 2.0, 3.0).losses_B
    factors = torch.where(desirable, 2.0, 3.0)
    torch.testing.assert_close(weighed, factors * out.losses_B)


@few
@given(SEEDS)
def test_implicit_rewards_rank_as_the_margin_does(seed):
    pairs = _pairs(seed)
    rewards = maths.implicit_rewards(pairs, 0.3)
    torch.testing.assert_close(rewards.chosen_B - rewards.rejected_B, 0.3 * maths.log_ratio_margin(pairs))
    assert rewards.accuracy + maths.implicit_rewards(_swapped(pairs), 0.3).accuracy == 1
