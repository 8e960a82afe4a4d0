"""Repetition, collapse, lengths: what is refused and what is empty (values: test_small_worlds.py)."""

import pytest
import torch

from tether import maths


def test_texts_too_short_have_no_ngrams():
    stats = maths.ngram_stats([[1], []], 2)
    assert (stats.repeat_share_B, stats.pooled_top_share) == ([0.0, 0.0], 0.0)


def test_bigrams_by_hand():
    # 1 2, 2 1, 1 2 | 1 2: one of three repeats; 1 2 is three of the four
    stats = maths.ngram_stats([[1, 2, 1, 2], [1, 2]], 2)
    assert stats.repeat_share_B == pytest.approx([1 / 3, 0])
    assert stats.pooled_top_share == 0.75


def test_what_has_no_statistics_is_refused():
    with pytest.raises(ValueError, match="n must be at least 1"):
        maths.ngram_stats([[1]], 0)
    with pytest.raises(ValueError, match="no outputs"):
        maths.distinct_share([])
    with pytest.raises(ValueError, match="no rows"):
        maths.length_stats(torch.zeros(0, 2).long(), torch.zeros(0, 2).bool(), {1}, 2)


def test_distinct_share_by_hand():
    assert maths.distinct_share([[1, 2], [1, 2], [3]]) == pytest.approx(2 / 3)


def test_the_end_is_the_last_live_token_and_not_a_pad():
    # pad id = end id 2; an end in the middle is no end; a gap before the last token
    ids = torch.tensor([[5, 6, 2], [5, 2, 6], [5, 9, 2], [2, 2, 2]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 0, 0]]).bool()
    stats = maths.length_stats(ids, mask, {2}, 3)
    assert (stats.eos_rate, stats.truncated_rate, stats.mean_length) == (0.25, 0.25, 1.75)
    assert stats.num_rows == 4


def test_a_batch_without_columns_has_no_ends():
    stats = maths.length_stats(torch.zeros(2, 0).long(), torch.zeros(2, 0).bool(), {2}, 3)
    assert (stats.eos_rate, stats.truncated_rate, stats.mean_length) == (0, 0, 0)
