"""Judgements to columns: signs, sides, repeats, rankings, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.stats.votes import read_votes
from tether.errors import DataError

ITEM = Item("i", "p", ("b", "a"))  # ids out of order: the unit is (a, b)
LENGTHS = {"a": "four", "b": "twelve chars"}


def judged(judgement_id="j", choice=Choice.FIRST, shown=("b", "a"), annotator="ann", item="i", **more):
    return Judgement(judgement_id, item, annotator, choice, shown, **more)


def test_outcome_side_and_length_are_those_of_the_units_first_answer():
    votes = read_votes([judged(strength=Strength.MUCH), judged("k", Choice.SECOND, ("a", "b"), "bob")], [ITEM], LENGTHS)
    assert votes.unit_answers == (("a", "b"),)
    assert votes.outcome.tolist() == [-1, 1]  # b won, then a
    assert votes.side.tolist() == [-1, 1]  # a stood right, then left
    assert votes.length_ratio == pytest.approx([math.log(4 / 12)] * 2)
    assert votes.strength.tolist() == [1, -1]
    assert votes.annotators == ("ann", "bob")


def test_ties_both_bad_and_skips():
    votes = read_votes(
        [judged("1", Choice.TIE), judged("2", Choice.BOTH_BAD, annotator="bob"), judged("3", Choice.SKIP, annotator="cy", reason=" no ")],
        [ITEM], {},
    )  # fmt: skip
    assert votes.outcome.tolist() == [0, 0]
    assert votes.both_bad.tolist() == [False, True]
    assert votes.skip_reasons == {"no": 1}
    assert np.isnan(votes.length_ratio).all()
    assert len(votes.ids) == 3


def test_a_ranking_is_its_pairs():
    item = Item("r", "p", ("a", "b", "c"))
    ranking = judged("j", Choice.RANKED, ("c", "a", "b"), item="r", ranking=(("b",), ("a", "c")))
    votes = read_votes([ranking], [item], {"a": 1, "b": 2, "c": 4})
    assert dict(zip(votes.unit_answers, votes.outcome.tolist(), strict=True)) == {("a", "b"): -1, ("a", "c"): 0, ("b", "c"): 1}
    assert votes.side.tolist() == [1, -1, -1]
    assert votes.ranked.all()


def test_two_items_of_the_same_answers_are_one_unit_and_a_repeat_is_found_by_its_time():
    again = Item("again", "p", ("a", "b"))
    later = judged("late", Choice.SECOND, ("a", "b"), item="again", made_at="2026-01-02T00:00:00")
    earlier = judged("early", made_at="2026-01-01T00:00:00")
    votes = read_votes([later, earlier], [ITEM, again], {})
    assert votes.num_units == 1
    assert dict(zip((votes.ids[j] for j in votes.judgement), votes.occasion.tolist(), strict=True)) == {"early": 0, "late": 1}
    assert votes.first_votes().tolist() == [True, False]


def test_withdrawn_counts_nowhere_and_gold_is_apart():
    gold = Item("g", "p", ("a", "b"), Choice.FIRST)
    votes = read_votes(
        [judged(withdrawn_at="2026"), judged("1", Choice.FIRST, ("a", "b"), item="g"), judged("2", Choice.TIE, ("a", "b"), "bob", "g")],
        [ITEM, gold], {},
    )  # fmt: skip
    assert votes.num_withdrawn == 1
    assert votes.gold_hit.tolist() == [1.0, 0.0]
    assert not votes.first_votes().any()


def test_items_that_a_strategy_chose_are_marked():
    votes = read_votes([judged(), judged("k", item="h", shown=("c", "d"))], [ITEM, Item("h", "q", ("c", "d"))], {}, random_items=["h"])
    assert votes.random.tolist() == [False, True]


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        ([judged(), judged()], "judgement 'j' occurs twice"),
        ([judged(item="x")], "of item 'x', which is not among the items"),
        ([judged(shown=("b", "c"))], "shown"),
        ([judged(choice=Choice.SKIP)], "reason"),
    ],
)
def test_what_does_not_fit_is_refused(judgements, message):
    with pytest.raises(DataError, match=message):
        read_votes(judgements, [ITEM], {})


def test_nothing_is_fine():
    votes = read_votes([], [], {})
    assert votes.num_units == 0
    assert votes.unit.shape == (0,)
