"""Limits that are never silent, and held-out prompts that were trained on."""

from __future__ import annotations

import pytest

from tether.data.lengths import LengthPolicy, TokenizedPair, limit_examples, limit_pairs, limit_prompts
from tether.data.overlap import overlap_warnings, prompt_overlap, refuse_overlap
from tether.errors import DataError
from tether.text.chat import sampled_example
from tether.types import Message

PROMPTS = [list(range(n)) for n in (7, 8, 9)]


def test_h4_filter_drops_and_counts():
    limited = limit_prompts(PROMPTS, 8, LengthPolicy.FILTER)
    assert limited.kept == (0, 1)
    assert [len(ids) for ids in limited.prompt_ids] == [7, 8]
    assert (limited.report.num_kept, limited.report.num_dropped, limited.report.num_cut) == (2, 1, 0)
    assert "1 dropped" in str(limited.report)


def test_h4_left_keeps_the_last_tokens():
    limited = limit_prompts(PROMPTS, 8, LengthPolicy.LEFT)
    assert limited.prompt_ids == (tuple(range(7)), tuple(range(8)), tuple(range(1, 9)))
    assert (limited.report.num_cut, limited.report.num_dropped) == (1, 0)
    assert "1 cut" in str(limited.report)


@pytest.mark.parametrize("policy", [LengthPolicy.ERROR, "error"])
def test_h4_error_names_the_row(policy):
    with pytest.raises(
        DataError, match=r"(?s)p\.jsonl: 1 of 3 rows.*row 3: the prompt has 9 tokens, the limit is 8"
    ):
        limit_prompts(PROMPTS, 8, policy, source="p.jsonl")
    assert limit_prompts(PROMPTS, 9, policy).report.num_dropped == 0


def test_h4_nothing_left_and_useless_limits_are_errors():
    with pytest.raises(DataError, match="no rows left"):
        limit_prompts(PROMPTS, 3, LengthPolicy.FILTER)
    with pytest.raises(DataError, match="at least 1"):
        limit_prompts(PROMPTS, 0, LengthPolicy.LEFT)


def test_h1_a_row_without_answer_tokens_is_dropped_and_counted():
    lost, cut, whole = (sampled_example([1] * n, [2] * 3) for n in (8, 7, 5))
    limited = limit_examples([lost, cut, whole], 8)
    assert limited.kept == (1, 2)
    assert [e.num_live for e in limited.examples] == [1, 3]
    assert (limited.report.num_no_answer, limited.report.num_cut, limited.report.num_dropped) == (1, 1, 1)
    assert "1 dropped" in str(limited.report)
    with pytest.raises(DataError, match="no rows left"):
        limit_examples([lost, lost], 8)


def test_e5_pair_identical_after_the_cut_is_dropped():
    prompt = list(range(10))
    same = TokenizedPair(sampled_example(prompt, [5, 6]), sampled_example(prompt, [5, 7]))
    good = TokenizedPair(sampled_example([1], [5, 6]), sampled_example([1], [7, 7]), margin=2.0)
    limited = limit_pairs([same, good], 8)
    assert limited.kept == (1,)
    assert limited.pairs == (good,)
    assert (limited.report.num_identical, limited.report.num_dropped) == (1, 1)
    assert "1 with identical sides" in str(limited.report)


def test_e5_difference_behind_the_cut_or_a_lost_side():
    late = TokenizedPair(sampled_example([1] * 6, [5, 5, 6]), sampled_example([1] * 6, [5, 5, 7]))
    one_side = TokenizedPair(sampled_example([1] * 6, [5, 5]), sampled_example([1] * 9, [5]))
    good = TokenizedPair(sampled_example([1] * 6, [5, 5, 6]), sampled_example([1] * 6, [5, 7, 7]))
    report = limit_pairs([late, one_side, good], 8).report
    assert (report.num_identical, report.num_no_answer, report.num_cut, report.num_kept) == (1, 1, 1, 1)


def test_pairs_equal_without_any_cut_are_dropped_too():
    same = TokenizedPair(sampled_example([1], [5]), sampled_example([1], [5]))
    with pytest.raises(DataError, match="identical"):
        limit_pairs([same], 8)


def test_overlap_names_both_rows():
    chat = (Message("user", "b"),)
    found = prompt_overlap(["a", chat, "c"], ["x", "b", "c "])
    assert [(o.held_out_row, o.training_row, o.beginning) for o in found] == [(2, 2, "b"), (3, 3, "c")]
    assert overlap_warnings(["a"], ["b"]) == []
    with pytest.raises(DataError, match=r"(?s)1 of 2 held-out prompts.*held-out row 1 = training row 2"):
        refuse_overlap(["b", "a"], ["a", "c"])
    refuse_overlap(["a"], ["b"])
