"""The order of the items as a pure function of scores and seed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.collect.judgement import Item
from tether.collect.select import disagreement, in_random_share, place_items, preference_probability, uncertainty
from tether.collect.settings import Settings, Strategy

ITEMS = [Item(f"i{i}", f"p{i // 3}", (f"a{i}", f"b{i}")) for i in range(12)]
FINITE = st.floats(-50, 50)


def ordered(placed):
    return [one.item_id for one in sorted(placed, key=lambda one: one.place)]


def test_values_by_hand():
    assert preference_probability(0.0, math.log(3)) == pytest.approx(0.25)
    assert preference_probability(-800.0, 800.0) == 0.0  # no overflow
    assert uncertainty(("a", "b"), {"a": math.log(3), "b": 0.0}) == pytest.approx(0.75 * 0.25)
    # p(a>b) = 1/2, p(a>c) = p(b>c) = 3/4
    assert uncertainty(("a", "b", "c"), {"a": 0.0, "b": 0.0, "c": -math.log(3)}) == pytest.approx((0.25 + 2 * 0.1875) / 3)
    assert disagreement(("a", "b"), [{"a": 900.0, "b": 0.0}, {"a": 0.0, "b": 900.0}]) == pytest.approx(0.25)
    assert disagreement(("a", "b"), [{"a": math.log(3), "b": 0.0}, {"a": 0.0, "b": 0.0}]) == pytest.approx(0.125**2)


@given(FINITE, FINITE)
def test_probabilities_of_both_sides_add_up(a, b):
    assert preference_probability(a, b) + preference_probability(b, a) == pytest.approx(1.0)


def test_uncertainty_reads_the_newest_scorer_and_puts_the_unscored_last():
    old = {f"a{i}": 3.0 + i % 5 for i in range(12)} | {f"b{i}": 0.0 for i in range(12)}
    new = {f"a{i}": abs(i - 6) / 2 for i in range(10)} | {f"b{i}": 0.0 for i in range(10)}
    placed = place_items(ITEMS, {"old": old, "new": new}, Settings(strategy=Strategy.UNCERTAINTY))
    assert ordered(placed)[0] == "i6"
    assert set(ordered(placed)[:3]) == {"i5", "i6", "i7"}
    # Items 10 and 11 are unknown to the newest scorer: the newest that knows them counts.
    assert {one.way for one in placed} == {"uncertainty"}
    alone = place_items(ITEMS, {"new": new}, Settings(strategy=Strategy.UNCERTAINTY))
    assert set(ordered(alone)[-2:]) == {"i10", "i11"}
    assert {one.way for one in alone if one.item_id in ("i10", "i11")} == {"unscored"}


def test_disagreement_needs_two_scorers():
    one = {name: 1.0 for i in range(12) for name in (f"a{i}", f"b{i}")}
    chosen = Settings(strategy=Strategy.DISAGREEMENT)
    assert {placed.way for placed in place_items(ITEMS, {"x": one}, chosen)} == {"unscored"}
    assert ordered(place_items(ITEMS, {"x": one, "y": one | {"a4": 9.0}}, chosen))[0] == "i4"


def test_strata_give_every_prompt_its_turn():
    scores = {f"a{i}": i / 4 for i in range(12)} | {f"b{i}": 0.0 for i in range(12)}  # prompt 0 has the three most uncertain items
    order = ordered(place_items(ITEMS, {"m": scores}, Settings(strategy=Strategy.UNCERTAINTY, stratified=True)))
    assert order == ["i0", "i3", "i6", "i9", "i1", "i4", "i7", "i10", "i2", "i5", "i8", "i11"]
    plain = place_items(ITEMS, {}, Settings(stratified=True, seed=8))
    assert [sorted(int(item[1:]) // 3 for item in ordered(plain)[at : at + 4]) for at in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
    assert {one.way for one in plain} == {"stratified"}


@settings(max_examples=40, deadline=None)
@given(st.permutations(ITEMS), st.integers(0, 5), st.sampled_from(Strategy), st.booleans(), st.lists(FINITE, min_size=24, max_size=24))
def test_the_order_depends_on_the_contents_alone(shuffled, seed, strategy, stratified, values):
    chosen = Settings(strategy=strategy, stratified=stratified, seed=seed)
    names = [f"{side}{i}" for i in range(12) for side in "ab"]
    scorers = {"x": dict(zip(names, values, strict=True)), "y": dict(zip(names, reversed(values), strict=True))}
    placed = place_items(shuffled, scorers, chosen)
    assert ordered(placed) == ordered(place_items(ITEMS, scorers, chosen))
    assert sorted(one.item_id for one in placed) == sorted(item.item_id for item in ITEMS)
    assert all(-1 <= one.place < 1 for one in placed)


def test_the_random_share_is_a_share_and_grows_without_changing_sides():
    names = [f"item {i}" for i in range(3000)]
    sets = [{n for n in names if in_random_share(n, Settings(strategy=Strategy.UNCERTAINTY, random_share=share))} for share in (0.1, 0.3)]
    assert 230 <= len(sets[0]) <= 370
    assert 800 <= len(sets[1]) <= 1000
    assert sets[0] < sets[1]
    assert all(in_random_share(n, Settings()) for n in names[:10])
