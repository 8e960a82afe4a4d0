"""One row per judgement goes out and comes back as the same judgements; a pairs export, which sums them up, does not come in as votes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_collection import small_store

from tether.collect.adding import Added
from tether.collect.entries import Answer, Provenance
from tether.collect.exchange.export import export_file, export_rows
from tether.collect.exchange.formats import trl
from tether.collect.exchange.imported import import_file, import_rows
from tether.collect.exchange.judgement_rows import COLUMNS, JudgementsReport, export_judgements, judgement_rows, judgements
from tether.collect.exchange.rule import Rule
from tether.collect.exchange.tables import read_table
from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.errors import DataError
from tether.types import Message, Prompt

ALL = Rule(split="all", gold=True)
TALK = (Message("system", "Be brief."), Message("user", "=Why?"))
LONGER = (Message("assistant", "Hm?"), Message("user", "Go on."), Message("assistant", "No."))


def full_store(place: Path, *, talk: bool = True) -> Store:
    """Every choice, a ranking, a gold item, two draws of one text, hostile texts; by Ann and =Bo."""
    store = Store.create(place, Settings(seed=3, held_out_share=0.5))
    store.add_prompts([Prompt("p", "Plain?"), Prompt("q", TALK if talk else "=Why?"), Prompt("r", '[{"role": "user", "content": "x"}]')])
    drawn = Provenance("tether collect generate", "run/rl", sampling={"temperature": 1.0}, seed=3)
    store.add_answers([
        Answer("a", "p", "yes", drawn), Answer("b", "p", "yes", replace(drawn, seed=4)), Answer("c", "p", "no"), Answer("d", "p", ""),
        Answer("e", "q", "Because."), Answer("f", "q", LONGER if talk else "'no"), Answer("g", "r", '[{"role": "x"}]'),
        Answer("h", "r", "\r"),
    ])  # fmt: skip
    items = [
        Item("ca", "p", ("c", "a")), Item("cb", "p", ("c", "b")), Item("again", "p", ("c", "a")), Item("acd", "p", ("d", "a", "c")),
        Item("fe", "q", ("f", "e")), Item("gh", "r", ("g", "h")), Item("gold", "q", ("e", "f"), Choice.SECOND),
    ]  # fmt: skip
    store.add_items(items)
    ann, bo = store.add_annotator("Ann").id, store.add_annotator("=Bo").id

    def word(item: str, who: str, choice: Choice, *, turned: bool = False, **more) -> Judgement:
        answers = next(one.answers for one in items if one.item_id == item)
        return Judgement(f"{who} {item}", item, who, choice, answers[::-1] if turned else answers, **more)

    store.record_all([
        word("ca", ann, Choice.FIRST, strength=Strength.MUCH, seconds=0.1 + 0.2, comment="=1+1, \"ok\"\n"),
        word("ca", bo, Choice.SECOND, turned=True, made_at="2026-01-01T00:00:00.000+00:00"),
        word("cb", ann, Choice.TIE, turned=True), word("again", ann, Choice.SECOND), word("fe", bo, Choice.BOTH_BAD, seconds=3.0),
        word("acd", bo, Choice.RANKED, ranking=(("c",), ("d", "a"))), word("gh", ann, Choice.SKIP, reason="both odd"),
        word("gold", ann, Choice.SECOND, strength=Strength.SLIGHT),
    ])  # fmt: skip
    store.undo(ann, f"{ann} cb")
    store.record(replace(word("cb", ann, Choice.TIE), judgement_id="new"))
    return store


def live(store: Store) -> list[Judgement]:
    return list(store.judgements())


def contents(store: Store) -> tuple:
    answers = [replace(one, provenance=Provenance(model=one.provenance.model)) for one in store.answers()]
    return tuple(sorted(rows, key=repr) for rows in (answers, store.items(), live(store)))


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_the_rows_come_back_as_the_same_judgements_in_both_databases(tmp_path, ending):
    file = tmp_path / f"out{ending}"
    with full_store(tmp_path / "x.db", talk=ending != ".parquet") as store, Store.create(tmp_path / "y.db", Settings()) as other:
        report = export_judgements(store, file, ALL)
        assert str(report) == "8 rows of 9 judgements; left out: 1 withdrawn"
        assert read_table(file)[0].keys() == set(COLUMNS)
        before = contents(store)
        again = import_file(store, file, judgements())
        assert (again.prompts.new, again.answers.new, again.items.new, again.judgements) == (0, 0, 0, Added(0, 8))
        assert contents(store) == before
        assert import_file(other, file, judgements()).judgements == Added(8, 0)
        assert import_file(other, file, judgements()).judgements == Added(0, 8)
        assert contents(other) == before
        assert [one.name for one in other.annotators()] == ["Ann", "=Bo"]
        rows = list(judgement_rows(store, ALL))
        assert [one | {"made_at": ""} for one in judgement_rows(other, ALL)] == [one | {"made_at": ""} for one in rows]


def test_what_a_row_says(tmp_path):
    with full_store(tmp_path / "x.db") as store:
        rows = {(row["item_id"], row["annotator"]): row for row in judgement_rows(store, ALL)}
        report = JudgementsReport()
        kept = list(judgement_rows(store, Rule(split="all", without=("Ann",)), report))
    first, second = rows["ca", "Ann"], rows["ca", "=Bo"]
    assert (first["chosen"], first["rejected"], first["strength"]) == ("no", "yes", "much")
    assert (first["shown"], first["chosen_shown_first"]) == ([0, 1], True)
    assert (second["chosen"], second["shown"], second["chosen_shown_first"], second["annotator_id"]) == ("yes", [1, 0], True, "a2")
    assert (second["models"], second["answer_ids"], second["made_at"][:4]) == (["", "run/rl"], ["c", "a"], "2026")
    assert (rows["cb", "Ann"]["choice"], rows["cb", "Ann"]["chosen"], rows["cb", "Ann"]["chosen_shown_first"]) == ("tie", None, None)
    assert rows["acd", "=Bo"]["ranking"] == [[2], [0, 1]]
    assert (rows["gh", "Ann"]["choice"], rows["gh", "Ann"]["reason"]) == ("skip", "both odd")
    assert rows["fe", "=Bo"]["answers"][0][1] == {"role": "user", "content": "Go on."}
    assert {row["annotator"] for row in kept} == {"=Bo"}
    assert report.left_out == {"by annotators left out": 4, "gold": 1, "withdrawn": 1}
    assert report.rows + report.left_out.total() == report.judgements == 9


_WORDS = st.sampled_from(["first", "second", "tie", "both_bad", "skip", "first much", "second slight"])


@settings(max_examples=6, deadline=None)
@given(st.dictionaries(st.tuples(st.integers(0, 3), st.sampled_from(["a1", "a2", "a3"])), _WORDS, min_size=1), st.randoms())
def test_any_judgements_survive_the_round_trip(tmp_path_factory, said, random):
    folder = tmp_path_factory.mktemp("round")
    with small_store(folder / "x.db", num_items=4) as store, Store.create(folder / "y.db", Settings()) as other:
        for name in ("Bo", "Cy"):
            store.add_annotator(name)
        for (item, who), word in said.items():
            choice, _, strength = word.partition(" ")
            shown = [f"a{item}.0", f"a{item}.1"]
            random.shuffle(shown)
            how = Strength(strength) if strength else None
            reason = "unclear" if choice == "skip" else ""
            store.record(Judgement(f"{item} {who}", f"i{item}", who, Choice(choice), tuple(shown), how, reason=reason))
        rows = list(judgement_rows(store, ALL))
        assert import_rows(store, random.sample(rows, len(rows)), judgements(), "x").judgements == Added(0, len(said))
        assert import_rows(other, rows, judgements(), "x").judgements == Added(len(said), 0)
        names = [{one.id: one.name for one in each.annotators()} for each in (store, other)]
        both = zip((store, other), names, strict=True)
        one, two = (sorted((replace(j, annotator=name[j.annotator]) for j in live(each)), key=repr) for each, name in both)
        assert one == two


def test_a_row_that_contradicts_the_same_person_is_refused_and_nothing_is_stored(tmp_path):
    with full_store(tmp_path / "x.db") as store, Store.create(tmp_path / "y.db", Settings()) as other:
        rows = list(judgement_rows(store, ALL))
        turned = rows[0] | {"choice": "second", "chosen": None, "rejected": None}
        said = r"1 judgements contradict .*\n  Ann says second \(much\), with a remark of the item ca, and has said"
        with pytest.raises(DataError, match=said):
            import_rows(store, [turned], judgements(), "x")
        with pytest.raises(DataError, match="contradict"):
            import_rows(other, [rows[0], turned | {"judgement_id": "another"}], judgements(), "x")
        assert list(other.prompts()) == []


def test_an_id_that_another_collection_has_too_is_not_mixed_up(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1) as store, Store.create(tmp_path / "y.db", Settings()) as other:
        store.record(Judgement("j", "i0", "a1", Choice.FIRST, ("a0.0", "a0.1")))
        other.add_prompts([Prompt("p0", "Another question?")])
        other.add_answers([Answer("a0.0", "p0", "x"), Answer("a0.1", "p0", "y")])
        other.add_items([Item("i0", "p0", ("a0.0", "a0.1"))])
        other.record(Judgement("j", "i0", other.add_annotator("Ann").id, Choice.SECOND, ("a0.0", "a0.1")))
        rows = list(judgement_rows(store, ALL))
        for added in (Added(1, 0), Added(0, 1)):
            assert import_rows(other, rows, judgements(), "x").judgements == added
        chosen = {(row["prompt"], row["chosen"]) for row in export_rows(other, ALL)}
        assert chosen == {("Another question?", "y"), ("Question 0?", "answer 0 to 0")}


GOOD = {"prompt": "p", "answers": ["a", "b"], "choice": "first", "annotator": "Ann"}


def test_rows_without_ids_go_by_their_contents(tmp_path):
    with Store.create(tmp_path / "x.db", Settings()) as store:
        import_rows(store, [{"prompt": "p", "chosen": "b", "rejected": "a"}], trl("Bo"), "x")
        assert import_rows(store, [GOOD], judgements(), "y").judgements == Added(1, 0)
        row = next(iter(export_rows(store, Rule(split="all", ties="both_orders"))))
        assert (row["num_judgements"], row["annotators"], row["soft_label"]) == (2, ["a1", "a2"], 0.5)


def test_a_name_and_a_time_are_stored_in_one_form(tmp_path):
    row = GOOD | {"annotator": " Ann ", "made_at": "2026-01-01T02:00:00+02:00"}
    with Store.create(tmp_path / "x.db", Settings()) as store:
        store.add_annotator("Ann")
        assert [import_rows(store, [row], judgements(), "x").judgements for _ in range(2)] == [Added(1, 0), Added(0, 1)]
        assert [(one.annotator, one.made_at) for one in store.judgements()] == [("a1", "2026-01-01T00:00:00.000+00:00")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choice": None}, "choice is missing"),
        ({"choice": "left"}, "`choice` must be one of first"),
        ({"answers": ["a"]}, "two or more texts"),
        ({"answers": ["a", "b", "c"]}, "more are ranked"),
        ({"choice": "ranked", "ranking": [[0], [1]]}, "two answers are compared"),
        ({"answers": ["a", "b", "c"], "choice": "ranked", "ranking": [[0], [0, 1]]}, "must place each of 0 to 2"),
        ({"answers": ["a", "b", "c"], "choice": "ranked", "ranking": [[0], [1], [2.5]]}, "must place each of 0 to 2"),
        ({"chosen": "b"}, "`chosen` is not the answer"),
        ({"choice": "tie", "rejected": "b"}, "`rejected` is not the answer"),
        ({"choice": "skip"}, "needs its `reason`"),
        ({"choice": "tie", "strength": "much"}, "belongs to the choice first or second"),
        ({"shown": [0, 0]}, "`shown` must hold each of 0 to 1 once"),
        ({"seconds": -1}, "`seconds` must be a number from 0"),
        ({"answer_ids": ["x"]}, "`answer_ids` must be a list of 2 strings"),
        ({"gold": "skip"}, "`gold` must be first, second"),
        ({"comment": 3}, "`comment` must be a string"),
        ({"made_at": "yesterday"}, "row 1: the time of the judgement must be a time in ISO 8601, such as .* got 'yesterday'"),
        ({"made_at": "0001-01-01T00:00:00+23:00"}, "must be a time in ISO 8601"),
        ({"annotator": "  "}, "row 1: the name of the annotator is empty"),
        ({"models": ["m", "\x00"]}, "row 1: the name of a model holds the character U"),
        ({"answer_ids": ["a", "\ud800"]}, "row 1: the id of an answer holds half of a surrogate pair"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path, change, message):
    with Store.create(tmp_path / "x.db", Settings()) as store:
        with pytest.raises(DataError, match=message):
            import_rows(store, [GOOD | change], judgements(), "x")
        assert list(store.prompts()) == []


def test_texts_of_two_kinds_in_a_parquet_column_are_refused_and_go_in_as_messages(tmp_path):
    file = tmp_path / "x.parquet"
    with full_store(tmp_path / "x.db") as store, Store.create(tmp_path / "y.db", Settings()) as other:
        with pytest.raises(DataError, match=r"one kind of value.*write messages everywhere \(--form conversational\), or a \.jsonl file"):
            export_judgements(store, file, ALL)
        assert not file.exists()
        assert export_judgements(store, file, ALL, "conversational").rows == 8
        before = contents(store)
        again = import_file(store, file, judgements())
        assert (again.prompts.new, again.answers.new, again.items.new, again.judgements) == (0, 0, 0, Added(0, 8))
        assert contents(store) == before
        assert import_file(other, file, judgements()).judgements == Added(8, 0)
        said = [sorted((one.item_id, one.annotator, one.choice, one.ranking) for one in live(database)) for database in (store, other)]
        assert said[0] == said[1]
        with pytest.raises(DataError, match="is a conversation and has no plain form"):
            export_judgements(store, tmp_path / "x.jsonl", ALL, "plain")


@pytest.fixture
def pairs(tmp_path):
    """A pairs export of a majority of three, a tie of two in both orders, and one vote."""
    with small_store(tmp_path / "source.db", num_items=3, held_out_share=0.0) as store:
        who = ["a1", store.add_annotator("Bo").id, store.add_annotator("Cy").id]
        for item, choices in enumerate((("first", "first", "second"), ("first", "second"), ("second",))):
            for name, choice in zip(who, choices, strict=False):
                store.record(Judgement(f"{item} {name}", f"i{item}", name, Choice(choice), (f"a{item}.0", f"a{item}.1")))
        export_file(store, tmp_path / "pairs.csv", Rule(ties="both_orders"))
    return tmp_path / "pairs.csv"


def test_a_pairs_export_is_refused_with_what_to_do(tmp_path, pairs):
    with Store.create(tmp_path / "x.db", Settings()) as store:
        with pytest.raises(DataError, match=r"4 of 4 rows are pairs that `tether collect export` wrote .*--rows judgements.*as_votes"):
            import_file(store, pairs, trl())
        assert list(store.prompts()) == []


def test_summaries_as_votes_are_one_vote_each_and_a_tie_is_one_tie(tmp_path, pairs):
    with Store.create(tmp_path / "x.db", Settings()) as store:
        report = import_file(store, pairs, trl("old study"), summaries="as_votes")
        assert report.judgements == Added(3, 0)
        assert report.notes == {
            "summary of a pair's judgements (pairs export), taken as one vote": 2,
            "tie of a pairs export, its two rows taken as one vote for neither": 1,
        }
        assert sorted(one.choice.value for one in store.judgements() if one.choice is Choice.TIE) == ["tie"]
        assert [one.name for one in store.annotators()] == ["old study"]
        assert import_file(store, pairs, trl("old study"), summaries="as_votes").judgements == Added(0, 3)


def test_pairs_say_who_voted_and_what_stood_first(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1, held_out_share=0.0) as store:
        store.add_annotator("Bo")
        for who, choice, shown in (("a1", Choice.FIRST, "01"), ("a2", Choice.TIE, "10")):
            store.record(Judgement(who, "i0", who, choice, tuple(f"a0.{at}" for at in shown)))
        (row,) = export_rows(store, Rule())
        assert (row["chosen"], row["annotators"], row["chosen_shown_first"]) == ("answer 0 to 0", ["a1", "a2"], 0.5)
        assert (row["votes_chosen"], row["votes_rejected"]) == ([1, 0], [0, 0])  # the tie is not counted
        store.undo("a2")
        assert next(iter(export_rows(store, Rule())))["chosen_shown_first"] == 1.0


def test_a_pair_of_the_same_text_is_no_row(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1, held_out_share=0.0) as store:
        store.add_answers([Answer("twin", "p0", "answer 0 to 0")])
        store.add_items([Item("twins", "p0", ("a0.0", "twin"))])
        for name, answers in (("i0", ("a0.0", "a0.1")), ("twins", ("a0.0", "twin"))):
            store.record(Judgement(name, name, "a1", Choice.TIE, answers))
        report = export_file(store, tmp_path / "x.jsonl", Rule(ties="both_orders"))
        assert (report.rows, report.left_out) == (2, {"the same text twice": 1})
