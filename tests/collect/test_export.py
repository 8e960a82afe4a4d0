"""From judgements to rows: the rule by hand, the columns, the files, and what is left out is counted."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_collection import small_store

from tether.collect import schema
from tether.collect.engine import reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Answer
from tether.collect.exchange.export import ExportReport, as_comparisons, comparisons, export_file, export_rows
from tether.collect.exchange.formats import trl
from tether.collect.exchange.imported import import_file
from tether.collect.exchange.prompt_rows import export_prompts
from tether.collect.exchange.rule import COLUMNS, Rule, decide, pair_votes
from tether.collect.exchange.tables import read_table, write_table
from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.errors import ConfigError, DataError
from tether.records import comparison_from_row, read_prompts
from tether.types import Comparison, Message, Prompt

ITEM = Item("i", "p", ("a", "b"))
ALL = Rule(split="all")


def judged(*words: str, item: Item = ITEM) -> list[Judgement]:
    """Example: "first much", "tie" by annotators a1, a2."""
    made = []
    for number, word in enumerate(words, start=1):
        choice, _, strength = word.partition(" ")
        how = Strength(strength) if strength else None
        reason = "unclear" if choice == "skip" else ""
        made.append(Judgement(f"{item.item_id} {number}", item.item_id, f"a{number}", Choice(choice), item.answers, how, reason=reason))
    return made


def decided(rule: Rule, *words: str):
    return decide(pair_votes(ITEM, judged(*words))["a", "b"], rule)


@pytest.mark.parametrize(
    ("words", "first", "soft", "agreement", "strength", "margin"),
    [
        (["first much"], True, 1.0, 1.0, "much", 2.0),
        (["second slight"], False, 1.0, 1.0, "slight", 1.0),
        (["first", "skip"], True, 1.0, 1.0, None, 1.0),
        (["first much", "first slight", "second slight"], True, 2 / 3, 2 / 3, "slight", 2 / 3),
        (["first slight", "tie", "tie", "tie"], True, 0.625, 0.25, "slight", 0.25),
        (["second slight", "second slight", "first much"], False, 2 / 3, 2 / 3, "slight", 0.0),
        (["second slight", "second slight", "second", "first much", "first much"], False, 0.6, 0.6, "slight", 0.0),
        (["first", "both_bad"], True, 0.75, 0.5, None, 0.5),
    ],
)
def test_decisions_by_hand(words, first, soft, agreement, strength, margin):
    found = decided(Rule(margin="strength"), *words)
    assert (found.first_chosen, found.strength) == (first, strength)
    assert (found.soft_label, found.agreement, found.margin) == pytest.approx((soft, agreement, margin))
    assert found.num_judgements == sum(not word.startswith("skip") for word in words)
    assert decided(Rule(), *words).margin == 0.0


def test_ties_and_both_bad_go_by_the_rule():
    assert decided(Rule()) == decided(Rule(), "skip") == "no judgement"
    assert decided(Rule(), "tie") == decided(Rule(), "first", "second") == decided(Rule(), "tie", "both_bad") == "tie"
    assert decided(Rule(), "both_bad") == decided(Rule(), "both_bad", "both_bad", "first") == "both bad"
    assert decided(Rule(both_bad="as_tie"), "both_bad") == "tie"
    assert decided(Rule(both_bad="as_tie"), "both_bad", "both_bad", "first").soft_label == pytest.approx(2 / 3)
    assert decided(Rule(ties="both_orders"), "tie").soft_label == 0.5
    assert decided(Rule(ties="both_orders", min_agreement=0.9), "tie").agreement == 0  # it has no chosen answer to agree on
    assert decided(Rule(min_agreement=0.6), "first", "tie") == "below min_agreement"


def test_a_ranking_votes_on_every_pair():
    item = Item("i", "p", ("a", "b", "c"))
    ranking = Judgement("j", "i", "a1", Choice.RANKED, item.answers, ranking=(("c",), ("a", "b")))
    votes = pair_votes(item, [ranking])
    assert {pair: (one.num_a, one.num_b, one.num_tie) for pair, one in votes.items()} == {
        ("a", "b"): (0, 0, 1), ("a", "c"): (0, 1, 0), ("b", "c"): (0, 1, 0),
    }  # fmt: skip


def test_a_wrong_rule_names_every_problem():
    with pytest.raises(ConfigError) as caught:
        Rule(split="test", ties="keep", slight=3.0, min_agreement=2)
    assert len(caught.value.problems) == 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["first", "second", "tie", "both_bad", "first much", "second slight"]), min_size=1, max_size=9))
def test_swapping_the_answers_swaps_the_decision_and_nothing_else(words):
    other = {"first": "second", "second": "first"}
    swapped = [" ".join(other.get(part, part) for part in word.split()) for word in words]
    rule = Rule(margin="strength", both_bad="as_tie")
    one, two = decided(rule, *words), decided(rule, *swapped)
    if isinstance(one, str):
        assert one == two
    else:
        assert one.first_chosen != two.first_chosen
        assert (one.margin, one.strength, one.agreement, one.soft_label) == (two.margin, two.strength, two.agreement, two.soft_label)
        assert 0.5 < one.soft_label <= 1


@pytest.fixture
def store(tmp_path):
    """Items: i0 preference, i1 tie, i2 both bad, i3 not judged, i4 gold, i5 skip."""
    with small_store(tmp_path / "x.db", held_out_share=0.0) as made:
        made.add_items([Item("g", "p4", ("a4.1", "a4.0"), Choice.FIRST)])
        for number, word in ((0, "second much"), (1, "tie"), (2, "both_bad"), (5, "skip")):
            made.record_all(judged(word, item=Item(f"i{number}", f"p{number}", (f"a{number}.0", f"a{number}.1"))))
        yield made


def test_every_pair_is_a_row_or_is_counted(store):
    report = ExportReport()
    (row,) = export_rows(store, Rule(margin="strength"), report)
    assert tuple(row) == COLUMNS
    assert row == {
        "prompt": "Question 0?", "chosen": "answer 1 to 0", "rejected": "answer 0 to 0", "margin": 2.0, "strength": "much",
        "num_judgements": 1, "agreement": 1.0, "soft_label": 1.0, "item_id": "i0", "prompt_id": "p0", "chosen_by": None,
        "annotators": ["a1"], "chosen_shown_first": 0.0, "votes_chosen": [0, 1], "votes_rejected": [0, 0],
    }  # fmt: skip
    assert report.left_out == {"tie": 1, "both bad": 1, "no judgement": 3, "gold": 1}
    assert report.rows + report.left_out.total() == report.pairs == 7


def test_a_tie_in_both_orders_gives_two_rows(store):
    report = ExportReport()
    rows = [row for row in export_rows(store, Rule(ties="both_orders"), report) if row["item_id"] == "i1"]
    assert [(row["chosen"], row["rejected"], row["soft_label"]) for row in rows] == [
        ("answer 0 to 1", "answer 1 to 1", 0.5), ("answer 1 to 1", "answer 0 to 1", 0.5),
    ]  # fmt: skip
    assert report.rows == 3


def test_withdrawn_words_and_named_annotators_do_not_count(store):
    assert list(comparisons(store, Rule(without=("a1",)))) == []
    name = store.annotators()[0].name
    assert list(comparisons(store, Rule(without=(name,)))) == []  # by name as well
    with pytest.raises(ConfigError, match=r"no annotator 'nobody'; known: a1 "):
        list(comparisons(store, Rule(without=("nobody",))))
    store.undo("a1", "i0 1")
    with pytest.raises(DataError, match=r"leaves no rows \(0 rows of 7 pairs; left out: .*5? no judgement"):
        export_file(store, "unwritten.jsonl", Rule())


def test_the_splits_share_no_prompt(tmp_path):
    with small_store(tmp_path / "x.db", num_items=30, held_out_share=0.4) as store:
        store.record_all([Judgement(f"j{i}", f"i{i}", "a1", Choice.FIRST, (f"a{i}.0", f"a{i}.1")) for i in range(30)])
        parts = {split: {one.prompt_id for one in comparisons(store, Rule(split=split))} for split in ("train", "held_out", "all")}
        report = as_comparisons(store, Rule())[1]
    assert parts["train"] | parts["held_out"] == parts["all"]
    assert not parts["train"] & parts["held_out"]
    assert len(parts["all"]) == 30
    assert report.left_out == {"held out": len(parts["held_out"])}


HOSTILE = ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "'=x", "''", "a,\"b\"\r\nc", "", "plain", "[1]", "\ufeff=x", "\x00"]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".csv"])
def test_plain_rows_come_back_from_every_kind_of_file(tmp_path, ending):
    with Store.create(tmp_path / "x.db", Settings(held_out_share=0.0)) as store:
        store.add_prompts(Prompt(f"p{i}", f"{text} prompt") for i, text in enumerate(HOSTILE))
        store.add_answers(Answer(f"{side}{i}", f"p{i}", text + (side == "b") * "!") for i, text in enumerate(HOSTILE) for side in "ab")
        store.add_items(Item(f"i{i}", f"p{i}", (f"a{i}", f"b{i}")) for i in range(len(HOSTILE)))
        store.add_annotator("Ann")
        words = [Judgement(f"j{i}", f"i{i}", "a1", Choice.FIRST, (f"a{i}", f"b{i}"), Strength.SLIGHT) for i in range(len(HOSTILE))]
        store.record_all(words)
        report = export_file(store, tmp_path / f"out{ending}", ALL)
        rows = list(export_rows(store, ALL))
    assert report.rows == len(HOSTILE)
    assert read_table(tmp_path / f"out{ending}") == rows
    with Store.create(tmp_path / "y.db", Settings(held_out_share=0.0)) as other:
        import_file(other, tmp_path / f"out{ending}", trl(), summaries="as_votes")
        again = list(export_rows(other, ALL))
    names = ("prompt", "chosen", "rejected", "strength", "soft_label")
    assert [[row[name] for name in names] for row in again] == [[row[name] for name in names] for row in rows]


def test_no_cell_begins_like_a_formula(tmp_path):
    write_table(tmp_path / "x.csv", [{"chosen": text, "soft_label": -1.0} for text in HOSTILE])
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        cells = [cell for line in csv.reader(file) for cell in line]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".csv"])
def test_conversations_come_back_too(tmp_path, ending):
    turns = (Message("system", "Be brief."), Message("user", "=Why?"))
    longer = (Message("assistant", "Hm?"), Message("user", "Go on."), Message("assistant", "No."))
    with Store.create(tmp_path / "x.db", Settings(held_out_share=0.0)) as store:
        store.add_prompts([Prompt("p", turns), Prompt("q", "Plain?")])
        store.add_answers([Answer("a", "p", "Because."), Answer("b", "p", longer), Answer("c", "q", "Yes."), Answer("d", "q", "No.")])
        store.add_items([Item("i", "p", ("a", "b")), Item("k", "q", ("c", "d"))])
        store.add_annotator("Ann")
        store.record_all([*judged("first", item=Item("i", "p", ("a", "b"))), *judged("second", item=Item("k", "q", ("c", "d")))])
        export_file(store, tmp_path / f"out{ending}", ALL)
        with pytest.raises(DataError, match="no plain form"):
            list(export_rows(store, ALL, format="plain"))
    found = [comparison_from_row(row) for row in read_table(tmp_path / f"out{ending}")]
    assert found[0] == Comparison(turns, (Message("assistant", "Because."),), longer)
    assert found[1] == Comparison((Message("user", "Plain?"),), (Message("assistant", "No."),), (Message("assistant", "Yes."),))


def test_an_unknown_ending_and_an_odd_csv_are_refused(tmp_path, store):
    with pytest.raises(DataError, match="not written; expected"):
        export_file(store, tmp_path / "out.xlsx", Rule())
    (tmp_path / "odd.csv").write_text("prompt,chosen,rejected\na,b\n")
    with pytest.raises(DataError, match="2 cells under a header of 3"):
        import_file(store, tmp_path / "odd.csv", trl())
    (tmp_path / "odd.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(DataError, match="expected a list"):
        read_table(tmp_path / "odd.json")


def test_a_column_that_comes_twice_and_a_folder_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("prompt,chosen,rejected,chosen\np,a,b,c\n")
    with pytest.raises(DataError, match="the header has 'chosen' more than once"):
        read_table(tmp_path / "x.csv")
    for ending in ("csv", "json", "jsonl", "parquet"):
        (tmp_path / f"folder.{ending}").mkdir()
        with pytest.raises(DataError, match=rf"folder\.{ending}"):
            read_table(tmp_path / f"folder.{ending}")


def test_judgements_are_found_by_an_index(store):
    with reading(store.engine) as connection:
        made = [row[0] for row in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")]
        of_table = [name for name in made if name.startswith("tether_judgements_")]
        assert of_table == sorted(of_table)  # the order decides which of two that serve alike is taken
        assert len(of_table) == 3
        query = sa.select(schema.judgements).where(schema.judgements.c.item_id.in_(["i0"]), schema.judgements.c.withdrawn_at.is_(None))
        text = str(query.compile(dialect=store.engine.dialect, compile_kwargs={"literal_binds": True}))
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
    serving = [f"SEARCH tether_judgements USING INDEX tether_judgements_{name} (item_id=?" for name in ("live", "of_item")]
    assert plan[0].startswith(tuple(serving))  # both begin with the item, and hold few rows of one


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_prompts_go_out_once_each_and_are_read_as_prompts(tmp_path, ending):
    with Store.create(tmp_path / "x.db", Settings(held_out_share=0.5, seed=1)) as store:
        store.add_prompts([Prompt(f"p{n}", f"Ask {n}?", {"answer": str(n)} if n % 2 else {}) for n in range(20)])
        counts = {split: export_prompts(store, tmp_path / f"{split}.{ending}", split) for split in ("train", "held_out", "all")}
        assert counts["train"] + counts["held_out"] == counts["all"] == 20
        told = read_prompts(read_table(tmp_path / f"all.{ending}"), "all")
        assert [(one.prompt_id, one.text, one.columns.get("answer")) for one in told] == [
            (f"p{n}", f"Ask {n}?", str(n) if n % 2 else None) for n in range(20)
        ]
        train = {one.prompt_id for one in read_prompts(read_table(tmp_path / f"train.{ending}"), "train")}
        assert train == {one.prompt_id for one in store.prompts() if not one.held_out}
    with Store.create(tmp_path / "none.db", Settings()) as store, pytest.raises(DataError, match="leaves no rows"):
        export_prompts(store, tmp_path / "x.jsonl")
