"""Who gets which item: reservations, overlap, streams, sides; and that the search walks an index."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from small_collection import judge_all, said, small_store

from tether.collect import assign, schema
from tether.collect.adding import GOLD, RANDOM, STRATEGY
from tether.collect.engine import reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Answer
from tether.collect.judgement import Choice, Item
from tether.collect.order import display_order, uniform
from tether.collect.settings import Settings, Strategy
from tether.collect.store import Store


def test_reloading_gives_the_same_and_another_annotator_gets_another(tmp_path):
    with small_store(tmp_path / "x.db", overlap=0.0) as store:
        store.add_annotator("Bo")
        first = store.next_item("a1")
        assert store.next_item("a1") == first
        with Store.open(tmp_path / "x.db") as restarted:
            assert restarted.next_item("a1") == first
        assert store.next_item("a2").item != first.item


def test_an_item_wants_as_many_judgements_as_its_overlap(tmp_path):
    with small_store(tmp_path / "x.db", num_items=20, overlap=0.5, judgements_per_overlap_item=2, gold_share=0.0) as store:
        store.add_annotator("Bo")
        store.add_annotator("Cy")
        done = dict.fromkeys(("a1", "a2", "a3"), 0)
        while sum(_judge_one(store, annotator, done) for annotator in done):  # in turns, until none gets anything
            pass
        states = list(store.item_states())
    assert all(state.judged == state.wanted for state in states)
    assert 4 <= sum(state.wanted == 2 for state in states) <= 16
    assert sum(done.values()) == sum(state.wanted for state in states)


def _judge_one(store: Store, annotator: str, done: dict[str, int]) -> bool:
    shown = store.next_item(annotator)
    if shown is not None:
        store.record(said(shown, annotator))
        done[annotator] += 1
    return shown is not None


def test_a_reservation_that_ran_out_frees_the_item_and_keeps_it_while_nobody_came(tmp_path, monkeypatch):
    with small_store(tmp_path / "x.db", num_items=1, overlap=0.0, reservation_minutes=10) as store:
        store.add_annotator("Bo")
        clock = [1000.0]
        monkeypatch.setattr("tether.collect.store.time.time", lambda: clock[0])
        shown = store.next_item("a1")
        assert store.next_item("a2") is None
        clock[0] += 601
        assert store.next_item("a1") == shown  # late, and still free
        clock[0] += 601
        assert store.next_item("a2").item == shown.item
        assert store.next_item("a1") is None  # Bo has it now
        store.record(said(shown))  # what Ann had on the screen all along is not lost
        assert store.next_item("a2") is None  # the item has its one judgement
        assert len(list(store.judgements())) == 1


def test_a_skip_leaves_the_item_to_others_and_an_undo_gives_it_back(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1, overlap=0.0) as store:
        store.add_annotator("Bo")
        store.record(said(store.next_item("a1"), choice=Choice.SKIP, reason="a language I cannot read"))
        assert store.next_item("a1") is None
        assert store.next_item("a2") is not None
        store.record(said(store.next_item("a2"), "a2"))
        store.undo("a2")
        assert store.next_item("a1") is None  # a skip is live
        assert store.next_item("a2") is not None


def test_gold_items_come_to_everyone_at_their_share(tmp_path):
    with small_store(tmp_path / "x.db", num_items=20, overlap=1.0, judgements_per_overlap_item=2, gold_share=0.3) as store:
        store.add_annotator("Bo")
        store.add_items(Item(f"gold{i}", f"p{i}", (f"a{i}.1", f"a{i}.0"), Choice.SECOND) for i in range(15))
        orders = {annotator: judge_all(store, annotator) for annotator in ("a1", "a2")}
        gold = [state for state in store.item_states() if state.item.gold is not None]
    for order in orders.values():
        assert 2 <= sum(item.startswith("gold") for item in order[:20]) <= 11
    assert all((state.wanted, state.judged) == (None, 0) for state in gold)
    assert {state.chosen_by for state in gold} <= {"gold", None}


def test_the_strategy_leaves_the_random_share_alone(tmp_path):
    """The items of the random share come in random order and in the drawn share of turns, whatever the scores say."""
    settings = {"num_items": 40, "strategy": Strategy.UNCERTAINTY, "random_share": 0.3, "overlap": 0.0, "gold_share": 0.0, "seed": 4}
    with small_store(tmp_path / "x.db", **settings) as store, small_store(tmp_path / "y.db", **settings) as unscored:
        store.set_scores("rm", {f"a{i}.{k}": (i / 5) * k for i in range(40) for k in (0, 1)})  # the larger i, the surer
        order, order_unscored = judge_all(store), judge_all(unscored)
        ways = {state.item.item_id: state for state in store.item_states()}
    random = [item for item in order if ways[item].random]
    chosen = [int(item[1:]) for item in order if not ways[item].random]
    assert random == [item for item in order_unscored if ways[item].random]
    assert chosen == sorted(chosen)
    assert 6 <= len(random) <= 18
    assert 2 <= sum(ways[item].random for item in order[:20]) <= 10
    assert {state.chosen_by for state in ways.values() if state.random} == {"random"}
    assert {state.chosen_by for state in ways.values() if not state.random} == {"uncertainty"}


def test_new_scores_change_what_comes_next(tmp_path):
    settings = {"strategy": Strategy.UNCERTAINTY, "random_share": 0.0, "overlap": 0.0, "gold_share": 0.0}
    with small_store(tmp_path / "x.db", num_items=50, **settings) as store:
        for first in (7, 31):  # the only item whose answers score alike
            store.set_scores("rm", {f"a{i}.{k}": 5.0 * k * (i != first) for i in range(50) for k in (0, 1)})
            shown = store.next_item("a1")
            assert shown.item.item_id == f"i{first}"
            store.record(said(shown))


def test_items_added_later_are_ordered_with_the_others(tmp_path):
    with small_store(tmp_path / "x.db", num_items=2, strategy=Strategy.UNCERTAINTY, random_share=0.0, overlap=0.0) as store:
        store.add_answers([Answer("extra", "p0", "again")])
        store.set_scores("rm", {"a0.0": 0.0, "a0.1": 3.0, "a1.0": 0.0, "a1.1": 4.0, "extra": 3.0})
        store.add_items([Item("tight", "p0", ("a0.1", "extra"))])
        assert judge_all(store) == ["tight", "i0", "i1"]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sides_are_balanced_for_every_annotator_and_every_item(size):
    answers = [f"answer {k}" for k in range(size)]
    for block in range(3):
        ours = range(block * size, (block + 1) * size)
        for fixed in range(7):
            by_item = Counter(display_order(answers, 11, fixed, item)[0] for item in ours)
            by_annotator = Counter(display_order(answers, 11, annotator, fixed)[0] for annotator in ours)
            assert set(by_item.values()) == set(by_annotator.values()) == {1}
            assert sorted(by_item) == sorted(by_annotator) == answers


def test_sides_follow_no_pattern():
    """Knowing the side of one block says nothing of the next one."""
    left = [display_order(("a", "b"), 0, 0, item)[0] for item in range(0, 2000, 2)]
    same = sum(one == other for one, other in pairwise(left))
    assert 430 <= left.count("a") <= 570
    assert 430 <= same <= 570
    assert left != [display_order(("a", "b"), 1, 0, item)[0] for item in range(0, 2000, 2)]


def test_uniform_is_uniform_and_fixed():
    drawn = [uniform("test", i) for i in range(4000)]
    counts = Counter(int(value * 10) for value in drawn)
    assert min(counts.values()) > 330
    assert max(counts.values()) < 470
    assert uniform(3, "place", "i1") == uniform(3, "place", "i1") == 0.756137128422687


def test_the_recorded_order_is_the_displayed_one(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1) as store:
        shown = store.next_item("a1")
        texts = {answer.answer_id: answer.text for answer in store.answers()}
        assert shown.answers == tuple(texts[answer] for answer in shown.shown)
        with pytest.raises(Exception, match="shown"):
            store.record(replace(said(shown), shown=("a0.0",)))


@pytest.mark.parametrize("stream", [GOLD, RANDOM, STRATEGY])
def test_the_search_walks_indexes_and_sorts_nothing(tmp_path, stream):
    with small_store(tmp_path / "x.db") as store, reading(store.engine) as connection:
        for after in (None, 0.5):
            query = assign.next_in_stream(stream, "a1", 0.0, after).compile(dialect=store.engine.dialect)
            values = tuple(query.params[name] for name in query.positiontup)
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values)]
            assert plan[0].startswith("SEARCH tether_items USING INDEX tether_items_next (stream=?")
            assert not [line for line in plan if "SCAN" in line or "TEMP B-TREE" in line]


def test_progress_counts_from_indexes(tmp_path):
    with small_store(tmp_path / "x.db") as store, reading(store.engine) as connection:
        seen = []
        sa.event.listen(store.engine, "before_cursor_execute", lambda _c, _r, text, values, *_: seen.append((text, values)))
        assign.progress(connection, "a1")
        for text, values in list(seen):
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
            assert not [line for line in plan if line.startswith("SCAN")], (text, plan)


def test_one_live_judgement_per_item_and_annotator_is_the_databases_rule(tmp_path):
    """What the code checks first, the index refuses as well."""
    with small_store(tmp_path / "x.db") as store:
        live = [index for index in schema.judgements.indexes if index.unique]
        assert [index.name for index in live] == ["tether_judgements_live"]
        assert store.settings == Settings()
