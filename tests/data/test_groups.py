"""Judged pairs in groups: rankings, prompts together, the limit and its rules, bootstrap weights."""

from __future__ import annotations

import pytest

from tether.data.groups import Cut, JudgedPair, TokenizedGroup, as_pairs, bootstrap_weight, by_prompt, limit_groups
from tether.errors import DataError
from tether.records import ranking_from_row, read_judgements
from tether.text.chat import sampled_example


def row(*answer: int, prompt: int = 2):
    return sampled_example([1] * prompt, answer)


def group(*answers, key="p", pairs=((0, 1),)):
    return TokenizedGroup(tuple(answers), tuple(JudgedPair(i, j) for i, j in pairs), key)


# -- rankings ----------------------------------------------------------------------------------------------------------------


def test_a_ranking_is_read_with_its_ties():
    told = ranking_from_row({"prompt": "q", "answers": ["a", "b", "c", "d"], "ranking": [2, [0, 3], 1]})
    assert told.places == (2, 4, 1, 2)


@pytest.mark.parametrize("ranking", [[0, 1], [0, 1, 1], [1, 2, 3], [0, [1, "2"]], "012", [0, 1, True], None])
def test_a_ranking_that_is_none_is_refused(ranking):
    with pytest.raises(DataError, match=r"`ranking`"):
        ranking_from_row({"prompt": "q", "answers": ["a", "b", "c"], "ranking": ranking})


@pytest.mark.parametrize("answers", ["ab", ["a"], [], 3])
def test_answers_must_be_two_or_more(answers):
    with pytest.raises(DataError, match=r"`answers`"):
        ranking_from_row({"prompt": "q", "answers": answers, "ranking": [0]})


def test_a_file_may_hold_both_and_names_all_bad_rows():
    good = [{"prompt": "q", "chosen": "a", "rejected": "b", "label": 0.5}, {"prompt": "q", "answers": ["a", "b"], "ranking": [1, 0]}]
    one, two = read_judgements(good, "f")
    assert (one.label, two.places) == (0.5, (2, 1))
    bad = [*good, {"prompt": "q", "chosen": "a", "rejected": "b", "label": True}, {"prompt": "q", "answers": ["a", "b"]}]
    with pytest.raises(DataError, match=r"(?s)row 3: .*`label`.*row 4: .*`ranking` is missing"):
        read_judgements(bad, "f")


# -- groups ------------------------------------------------------------------------------------------------------------------


def test_pairs_of_a_prompt_come_together_and_an_answer_is_kept_once():
    a, b, c = row(5), row(6), row(7)
    (one, two) = by_prompt([group(a, b, key="p"), group(c, b, key="q"), group(a, c, key="p")])
    assert one == group(a, b, c, key="p", pairs=((0, 1), (0, 2)))
    assert two.answers == (c, b)
    assert [(g.answers, g.key) for g in as_pairs([one])] == [((a, b), "p"), ((a, c), "p")]


def test_case_e5_answers_that_differ_past_the_limit_are_dropped_and_counted():
    """Prompt of 10 tokens, answers that differ at position 11 only, limit 8: the pair is gone, counter 1, the other stays."""
    same, good = group(row(5, prompt=10), row(6, prompt=10)), group(row(5), row(7), key="q")
    told = limit_groups([same, good], 8, Cut.RIGHT)
    assert told.groups == (good,)
    assert (told.report.num_identical, told.report.num_dropped) == (1, 1)
    assert "1 with identical sides" in str(told.report)


def test_case_h1_an_answer_that_is_cut_away_goes_with_its_pair():
    """Prompt 8, limit 8: no answer token is left of one side; the batch is never empty of answers."""
    lost, good = group(row(5, 6, 7, prompt=8), row(5, prompt=7)), group(row(5), row(7), key="q")
    told = limit_groups([lost, good], 8, Cut.RIGHT)
    assert (told.groups, told.report.num_no_answer) == ((good,), 1)


def test_case_e5_in_a_ranking_counts_pairs_and_drops_the_answer_that_no_pair_names():
    """Answers 5 6 and 5 7 are the same at four tokens; both still differ from 8."""
    ranking = group(row(5, 9, 6), row(5, 9, 7), row(8), pairs=((0, 1), (0, 2), (1, 2)))
    told = limit_groups([ranking], 4, Cut.RIGHT)
    assert (told.report.num_identical, told.report.num_rows, told.report.num_cut, told.report.num_kept) == (1, 3, 2, 2)
    (only,) = limit_groups([group(row(5, 9, 6), row(5, 9, 7), row(8), pairs=((0, 1), (0, 2)))], 4, Cut.RIGHT).groups
    assert len(only.answers) == 2
    with pytest.raises(DataError, match="no pairs left"):
        limit_groups([group(row(5, 9, 6), row(5, 9, 7))], 4, Cut.RIGHT)


def test_the_three_rules_of_the_limit():
    pair = group(row(5, 6, 7), row(8, 9))
    right = limit_groups([pair], 4, Cut.RIGHT).groups[0]
    left = limit_groups([pair], 4, Cut.LEFT).groups[0]
    assert [answer.token_ids for answer in right.answers] == [(1, 1, 5, 6), (1, 1, 8, 9)]
    assert [answer.token_ids for answer in left.answers] == [(1, 5, 6, 7), (1, 1, 8, 9)]
    with pytest.raises(DataError, match=r"row 2: .*5 tokens, the limit is 4"):
        limit_groups([group(row(5), row(6)), pair], 4, Cut.ERROR)


def test_bootstrap_weights_are_exponential_and_follow_from_their_arguments():
    drawn = [bootstrap_weight(3, head, f"p{i}") for head in range(4) for i in range(2000)]
    assert drawn[7] == bootstrap_weight(3, 0, "p7") != bootstrap_weight(4, 0, "p7")
    mean = sum(drawn) / len(drawn)
    assert mean == pytest.approx(1, abs=0.05)
    assert sum((w - mean) ** 2 for w in drawn) / len(drawn) == pytest.approx(1, abs=0.15)
    assert min(drawn) > 0
