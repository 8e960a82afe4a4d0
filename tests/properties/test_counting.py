"""Laws of what counts: best of n, pass@k, merged moments; each against brute force."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths

few = settings(max_examples=20, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)


@few
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9)), min_size=1, max_size=7), st.data())
def test_bon_unbiased_is_the_mean_over_all_subsets(samples, data):
    proxy, gold = torch.tensor(samples, dtype=torch.float64).unbind(-1)
    n = data.draw(st.integers(1, len(samples)))
    picks = []
    for subset in itertools.combinations(range(len(samples)), n):
        best = max(subset, key=lambda i: (samples[i][0], -i))
        picks.append(samples[best][1])
    assert maths.bon_unbiased(proxy, gold, n) == pytest.approx(sum(picks) / len(picks))


@few
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9)), min_size=1, max_size=9))
def test_bon_unbiased_at_its_ends_is_the_mean_and_the_selected(samples):
    proxy, gold = torch.tensor(samples, dtype=torch.float64).unbind(-1)
    assert maths.bon_unbiased(proxy, gold, 1) == pytest.approx(float(gold.mean()), abs=1e-12)
    assert maths.bon_unbiased(proxy, gold, len(samples)) == float(gold[maths.bon_select(proxy)])


@few
@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(num_samples, data):
    right = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    subsets = list(itertools.combinations(range(num_samples), k))
    share = sum(any(i < right for i in subset) for subset in subsets) / len(subsets)
    assert maths.pass_at_k(num_samples, right, k) == pytest.approx(share)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_bon_policy_by_enumeration(n):
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    rewards = torch.tensor([0.0, 2.0, 1.0, 3.0], dtype=torch.float64)
    expected = torch.zeros(4, dtype=torch.float64)
    for drawn in itertools.product(range(4), repeat=n):
        expected[max(drawn, key=lambda a: float(rewards[a]))] += probs[list(drawn)].prod()
    out = maths.bon_kl(probs, rewards, n)
    torch.testing.assert_close(out.policy_A, expected)
    exact = torch.distributions.kl_divergence(*(torch.distributions.Categorical(probs=p) for p in (expected, probs)))
    assert out.exact_kl == pytest.approx(float(exact))
    assert out.exact_kl <= out.kl_bound + 1e-12


@few
@given(SEEDS, st.integers(1, 9))
def test_bon_kl_is_never_above_its_bound(seed, n):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(torch.randn(5, generator=generator, dtype=torch.float64), -1)
    rewards = torch.randint(4, (5,), generator=generator).double()  # with ties
    out = maths.bon_kl(probs, rewards, n)
    assert -1e-12 <= out.exact_kl <= out.kl_bound + 1e-12
    assert float(out.policy_A.sum()) == pytest.approx(1)
    assert out.win_rate_bound == n / (n + 1)


@few
@given(SEEDS, st.integers(-1000, 1000))
def test_moments_merge_in_any_order_and_tree(seed, offset):
    generator = torch.Generator().manual_seed(seed)
    x = offset + torch.randn(4, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 6, generator=generator) < 0.7
    mask[2] = False
    mask[0, :2] = True
    rows = [maths.moments(x[row], mask[row]) for row in torch.randperm(4, generator=generator).tolist()]
    chain = rows[0] + rows[1] + rows[2] + rows[3]
    tree = (rows[3] + rows[0]) + (rows[2] + rows[1])
    live = x[mask]
    for merged in (chain, tree, maths.moments(x, mask)):
        assert merged.count == len(live)
        assert merged.mean == pytest.approx(float(live.mean()), rel=1e-12)
        assert merged.variance == pytest.approx(float(live.var(correction=0)), rel=1e-9)
        assert merged.sample_std == pytest.approx(float(live.std()), rel=1e-9)


@few
@given(SEEDS, st.sampled_from([0, 1]))
def test_a_shard_whitened_with_the_moments_of_all_is_its_part_of_the_whole(seed, ddof):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 4, generator=generator) < 0.8
    x = torch.where(mask, x, math.nan)
    seen = maths.moments(x[3:], mask[3:]) + maths.moments(x[:3], mask[:3])
    shard = maths.whiten_with(x[:3], mask[:3], seen, ddof=ddof)
    torch.testing.assert_close(shard, maths.whiten(x, mask, ddof=ddof)[:3])


@few
@given(SEEDS, st.sampled_from([0, 1]))
def test_whitened_is_mean_zero_and_std_one_over_live_positions(seed, ddof):
    generator = torch.Generator().manual_seed(seed)
    x = 7 + 3 * torch.randn(5, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 6, generator=generator) < 0.8
    live = maths.whiten(torch.where(mask, x, math.inf), mask, ddof=ddof, eps=0.0)[mask]
    assert float(live.mean()) == pytest.approx(0, abs=1e-12)
    assert float(live.std(correction=ddof)) == pytest.approx(1)
    scaled = maths.scale_only_whiten(x, mask, ddof=ddof, eps=0.0)[mask]
    assert float(scaled.mean()) == pytest.approx(float(x[mask].mean()))
    assert float(scaled.std(correction=ddof)) == pytest.approx(1)


@few
@given(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=5), st.integers(1, 3))
def test_ngram_shares_by_brute_force(texts, n):
    stats = maths.ngram_stats(texts, n)
    pooled = []
    for text, share in zip(texts, stats.repeat_share_B, strict=True):
        grams = [tuple(text[i : i + n]) for i in range(len(text)) if len(text[i : i + n]) == n]
        repeats = sum(gram in grams[:i] for i, gram in enumerate(grams))
        assert share == pytest.approx(repeats / len(grams) if grams else 0)
        pooled += grams
    top = max((pooled.count(gram) for gram in pooled), default=0)
    assert stats.pooled_top_share == pytest.approx(top / len(pooled) if pooled else 0)


@few
@given(st.integers(501, 999).filter(lambda right: right % 50))  # not on the edge of a bin
def test_ece_is_zero_for_calibrated_scores_and_ignores_the_side(right):
    gap = math.log(right / (1000 - right))
    gaps = torch.tensor([gap] * right + [-gap] * (1000 - right), dtype=torch.float64)
    out = maths.pair_metrics(gaps, torch.zeros_like(gaps))
    assert out.ece == pytest.approx(0, abs=1e-9)
    assert out.accuracy == pytest.approx(right / 1000)
