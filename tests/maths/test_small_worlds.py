"""Best-of-n, votes, text statistics, closed forms, optimiser and memory."""

import itertools
import math

import pytest
import torch

from tether import maths
from tether.maths import ActivationKind, AdamEps, OptimisationKind

NAN = float("nan")


def test_bon_select_skips_nan_and_breaks_ties_low():
    assert maths.bon_select(torch.tensor([NAN, 2.0, 1.0, 2.0])) == 1
    with pytest.raises(ValueError, match="no answer has a score"):
        maths.bon_select(torch.tensor([NAN, NAN]))


def test_bon_unbiased_by_hand_and_by_brute_force():
    proxy, gold = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 6.0, 3.0])
    assert maths.bon_unbiased(proxy, gold, 2) == pytest.approx(4)
    proxy, gold = torch.tensor([0.3, 0.3, -1.0, 2.0, 0.3]), torch.tensor([1.0, 5.0, -2.0, 0.0, 7.0])
    for n in range(1, 6):
        picks = [
            gold[subset[maths.bon_select(proxy[list(subset)])]].item()
            for subset in itertools.combinations(range(5), n)
        ]
        assert maths.bon_unbiased(proxy, gold, n) == pytest.approx(sum(picks) / len(picks))


def test_bon_kl_by_hand():
    out = maths.bon_kl(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), 2)
    assert out.policy_A.tolist() == pytest.approx([0.25, 0.75])
    assert out.exact_kl == pytest.approx(0.130812, abs=1e-6)
    assert out.kl_bound == pytest.approx(0.193147, abs=1e-6)
    assert out.win_rate_bound == pytest.approx(2 / 3)


def test_bon_among_ties_is_the_reference():
    reference = torch.tensor([0.2, 0.8], dtype=torch.float64)
    out = maths.bon_kl(reference, torch.ones_like(reference), 8)
    assert out.policy_A.tolist() == pytest.approx([0.2, 0.8])
    assert out.exact_kl == pytest.approx(0, abs=1e-12)


def test_pass_at_k_by_hand():
    assert maths.pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert maths.pass_at_k(5, 4, 2) == 1
    assert maths.pass_at_k(5, 0, 5) == 0
    with pytest.raises(ValueError, match="expected"):
        maths.pass_at_k(5, 6, 1)


def test_votes_abstain_and_unscorable():
    votes = torch.tensor([[[NAN, 1.0], [0.0, 1.0]], [[NAN, NAN], [1.0, 1.0]], [[NAN, NAN], [NAN, NAN]]])
    reward = maths.principle_vote(votes, torch.tensor([2.0, 1.0]))
    assert reward[0].item() == pytest.approx(0.833333, abs=1e-6)
    assert reward[1].item() == 1
    assert reward[2].isnan()


def test_repetition_and_collapse():
    stats = maths.ngram_stats([[7, 7, 7, 7], [1]], 3)
    assert stats.repeat_share_B == [0.5, 0.0]
    assert stats.pooled_top_share == 1
    collapsed = [list(range(50))] * 100
    assert maths.ngram_stats(collapsed).pooled_top_share == pytest.approx(0.0208, abs=1e-4)
    assert maths.distinct_share(collapsed) == 0.01


def test_lengths_with_several_end_tokens():
    ids, mask = (
        torch.tensor([[9, 3], [9, 2], [9, 9], [3, 0]]),
        torch.tensor([[1, 1], [1, 1], [1, 1], [0, 0]]).bool(),
    )
    stats = maths.length_stats(ids, mask, {2, 3}, 2)
    assert (stats.eos_rate, stats.truncated_rate, stats.mean_length) == (0.5, 0.25, 1.5)


def test_reverse_kl_optimum_by_hand():
    rewards = torch.tensor([0.0, math.log(3)], dtype=torch.float64)
    ref = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert maths.reverse_kl_optimum(rewards, ref, 1.0).tolist() == pytest.approx([0.25, 0.75])
    assert maths.reverse_kl_value(rewards, ref, 1.0) == pytest.approx(math.log(2))


def test_bandit_optima_of_the_labs():
    rewards = torch.tensor([2.0, 5.0, 1.0, 3.0], dtype=torch.float64)
    ref = torch.softmax(torch.tensor([0.5, 0.3, -0.2, 0.1], dtype=torch.float64), -1)
    for beta, forward, reverse in ((0.25, 4.823, 4.999), (1.0, 4.358, 4.621), (5.0, 3.332, 3.315)):
        assert float(maths.forward_kl_optimum(rewards, ref, beta) @ rewards) == pytest.approx(
            forward, abs=1e-3
        )
        assert float(maths.reverse_kl_optimum(rewards, ref, beta) @ rewards) == pytest.approx(
            reverse, abs=1e-3
        )


def test_forward_optimum_at_equal_rewards_is_the_reference():
    ref = torch.tensor([0.2, 0.8], dtype=torch.float64)
    assert maths.forward_kl_optimum(torch.ones(2).double(), ref, 0.7).tolist() == pytest.approx([0.2, 0.8])


def test_length_hack_by_hand():
    out = maths.length_hack(0.2, 0.1, 1.0)
    assert out.beta_critical == pytest.approx(0.448142, abs=1e-6)
    assert out.mean_length_optimum == pytest.approx(8.63, abs=0.01)
    assert maths.length_hack(0.2, 0.1, 0.4).mean_length_optimum == math.inf
    assert maths.length_hack(0.2, 0.0, 1.0).mean_length_optimum == pytest.approx(5)


def test_overoptimisation_by_hand():
    law = maths.Overoptimisation(OptimisationKind.BON, 1.0, 0.25)
    assert law.gold(torch.tensor([0.0, 4.0])).tolist() == [0, 1]
    assert (law.peak_distance, law.peak_gold) == (2, 1)
    fit = maths.fit_overoptimisation(
        torch.tensor([1.0, 4.0]), torch.tensor([0.75, 1.0]), OptimisationKind.BON
    )
    assert (fit.alpha, fit.beta) == pytest.approx((1, 0.25))
    assert maths.Overoptimisation(OptimisationKind.RL, 1.0, 1.0).peak_distance == 1


def test_adam_first_step_in_both_styles():
    assert maths.adam_path([1.0], 0.1, eps=0.0) == pytest.approx([-0.1])
    tensorflow = maths.adam_path([1e-5], 0.1, eps=1e-5, style=AdamEps.TENSORFLOW)
    assert abs(tensorflow[0]) < abs(maths.adam_path([1e-5], 0.1, eps=1e-5)[0])


def test_memory_by_hand():
    assert maths.static_bytes(7_000_000_000) == 112_000_000_000
    assert maths.static_bytes(0, 7_000_000_000) == 14_000_000_000
    assert maths.kv_cache_bytes(32, 32, 128, 1) == 524_288
    assert maths.logits_bytes(1, 32_000) == 320_000
    assert maths.activation_bytes_per_layer(ActivationKind.FULL, 1, 1, 4096, 32) == 139_424


def test_public_names_are_sorted_and_maths_imports_nothing_of_tether():
    assert len(maths.__all__) == len(set(maths.__all__))  # their order is ruff's RUF022
    assert all(name in vars(maths) for name in maths.__all__)
