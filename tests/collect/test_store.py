"""What is stored once, what is refused, what is withdrawn; files that are not ours; a full disk."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
from small_collection import judge_all, said, small_store

from tether.collect import scoring
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Answer, Provenance
from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.settings import Settings, Strategy
from tether.collect.store import Store
from tether.errors import ConfigError, DataError, StoreConflict, StoreError, StoreFull
from tether.types import Message, Prompt


def test_a_file_is_private_and_opens_with_its_settings(tmp_path):
    path = tmp_path / "answers.db"
    with small_store(path, question="Which is shorter?", seed=5) as store:
        assert store.place == str(path)
        for file in tmp_path.iterdir():  # the journal too
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with Store.open(path) as store:
        assert store.settings == Settings(question="Which is shorter?", seed=5)
        assert [annotator.name for annotator in store.annotators()] == ["Ann"]


def test_sqlite_syncs_every_commit_and_keeps_references(tmp_path):
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    with small_store(tmp_path / "x.db") as store, store.engine.connect() as connection:
        told = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
    assert told == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_what_is_not_ours_is_refused(tmp_path):
    (tmp_path / "text.db").write_text("hello")
    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE tether_meta (key TEXT)")
    foreign.commit()
    foreign.close()
    for name, told in (("text.db", "no database of judgements"), ("foreign.db", "a SQLite database of something else")):
        with pytest.raises(StoreError, match=told):
            Store.open(tmp_path / name)
    with pytest.raises(StoreError, match="no such file"):
        Store.open(tmp_path / "absent.db")
    with pytest.raises(StoreError, match="exists already"):
        Store.create(tmp_path / "text.db", Settings())
    for url in ("mysql://localhost/x", ":memory:"):
        with pytest.raises(StoreError, match="expected"):
            Store.open(url)


def test_a_newer_format_is_refused(tmp_path):
    small_store(tmp_path / "x.db").close()
    with sqlite3.connect(tmp_path / "x.db") as file:
        file.execute("UPDATE tether_meta SET value = '99' WHERE key = 'schema_version'")
    file.close()
    with pytest.raises(StoreError, match="newer Tether"):
        Store.open(tmp_path / "x.db")


def test_without_sqlalchemy_the_error_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['sqlalchemy'] = None\nimport tether.collect.store"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'tether[collect]'" in done.stderr.splitlines()[-1]


def test_all_wrong_settings_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        Settings(question=" ", overlap=1.5, gold_share=1, judgements_per_overlap_item=1, seed=True, strategy="best", strengths=1)
    assert len(caught.value.problems) == 7
    with pytest.raises(ConfigError, match="unknown settings: colour"):
        Settings.from_mapping({"colour": 1})


def test_only_some_settings_change_later(tmp_path):
    with small_store(tmp_path / "x.db") as store:
        store.change_settings(guidelines="# Be fair", gold_share=0.2)
        with pytest.raises(ConfigError, match="seed: fixed"):
            store.change_settings(seed=9)
    with Store.open(tmp_path / "x.db") as store:
        assert store.settings == Settings(guidelines="# Be fair", gold_share=0.2)


def test_contents_come_back_as_they_were(tmp_path):
    hostile = "'; DROP TABLE tether_items; --\x00\n=1+1 \u202e😀"
    turns = (Message("system", "Be brief."), Message("user", hostile))
    provenance = Provenance("import", "m/1", "ab12", {"temperature": 0.7}, 2**60)
    with Store.create(tmp_path / "x.db", Settings()) as store:
        store.add_prompts([Prompt(hostile[:30], turns, {"topic": hostile, "n": 1.5})])
        store.add_answers([Answer("a", hostile[:30], hostile, provenance), Answer("b", hostile[:30], (Message("assistant", "x"),))])
        prompt, answers = next(store.prompts()), list(store.answers())
    assert (prompt.text, prompt.columns) == (turns, {"topic": hostile, "n": 1.5})
    assert answers[0].text == hostile
    assert answers[0].provenance == provenance
    assert answers[1].plain == "x"


def test_adding_again_adds_nothing_and_another_content_is_refused(tmp_path):
    with small_store(tmp_path / "x.db") as store:
        again = store.add_prompts([Prompt("p0", "Question 0?"), Prompt("new", "New?"), Prompt("new", "New?")])
        assert (again.new, again.known) == (1, 2)
        with pytest.raises(DataError, match="prompt_id 'p0' is stored already with another text"):
            store.add_prompts([Prompt("extra", "Extra?"), Prompt("p0", "Other?")])
        assert "extra" not in [prompt.prompt_id for prompt in store.prompts()]  # all of a call or nothing
        with pytest.raises(DataError, match="refers to the prompt_id 'none'"):
            store.add_answers([Answer("z", "none", "text")])
        with pytest.raises(DataError, match="item_id 'i0' comes twice with other answers"):
            store.add_items([Item("i0", "p0", ("a0.1", "a0.0"))])
        with pytest.raises(DataError, match=r"its answer 'a1\.0' answers the prompt 'p1'"):
            store.add_items([Item("odd", "p0", ("a0.0", "a1.0"))])
        with pytest.raises(DataError, match="two or more different answers"):
            store.add_items([Item("odd", "p0", ("a0.0", "a0.0"))])
        with pytest.raises(DataError, match="an annotator 'Ann' already"):
            store.add_annotator(" Ann ")


def test_held_out_goes_by_the_text_of_the_prompt(tmp_path):
    with Store.create(tmp_path / "x.db", Settings(held_out_share=0.3)) as store:
        store.add_prompts(Prompt(f"{copy}{i}", f"Question {i}?") for copy in "ab" for i in range(300))
        side = {prompt.prompt_id: prompt.held_out for prompt in store.prompts()}
    assert all(side[f"a{i}"] == side[f"b{i}"] for i in range(300))
    assert 60 <= sum(side[f"a{i}"] for i in range(300)) <= 120


def test_a_judgement_sent_twice_is_stored_once(tmp_path):
    with small_store(tmp_path / "x.db") as store:
        sent = said(store.next_item("a1"), strength=Strength.MUCH, comment="'; DROP TABLE", seconds=3.5)
        stored = store.record(sent)
        assert stored.made_at
        assert store.record(sent) == stored == store.record(stored)
        assert list(store.judgements()) == [stored]
        for other in (replace(sent, choice=Choice.SECOND), replace(stored, made_at="2020-01-01T00:00:00+00:00")):
            with pytest.raises(StoreConflict, match="another content"):
                store.record(other)
        with pytest.raises(StoreConflict, match="has judged the item"):
            store.record(replace(sent, judgement_id="other"))
        assert list(store.judgements()) == [stored]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item_id": "none"}, "which is not stored"),
        ({"annotator": "a9"}, "who is not stored"),
        ({"made_at": "yesterday"}, "made_at must be a time in ISO 8601"),
        ({"shown": ("a0.0", "a1.0")}, "but the item has the answers"),
        ({"judgement_id": ""}, "judgement_id is empty"),
        ({"seconds": float("nan")}, "seconds must be a finite number"),
        ({"comment": "a\x00b"}, r"U\+0000"),
        ({"comment": "\ud800"}, "surrogate"),
    ],
)
def test_a_judgement_that_does_not_fit_is_refused(tmp_path, change, message):
    with small_store(tmp_path / "x.db") as store:
        sent = replace(Judgement("j", "i0", "a1", Choice.FIRST, ("a0.0", "a0.1")), **change)
        with pytest.raises(DataError, match=message):
            store.record(sent)
        assert list(store.judgements()) == []


def test_undo_keeps_the_row_and_brings_the_item_back(tmp_path):
    with small_store(tmp_path / "x.db") as store:
        assert store.undo("a1") is None
        first = store.next_item("a1")
        store.record(said(first, judgement_id="j1"))
        second = store.next_item("a1")
        store.record(said(second, judgement_id="j2"))
        withdrawn = store.undo("a1")
        assert (withdrawn.judgement_id, bool(withdrawn.withdrawn_at)) == ("j2", True)
        assert store.undo("a1", "j2") == withdrawn  # a request that is sent twice takes back one judgement
        assert store.next_item("a1") == second
        assert [j.judgement_id for j in store.judgements()] == ["j1"]
        assert [j.judgement_id for j in store.judgements(include_withdrawn=True)] == ["j1", "j2"]
        store.record(said(second, judgement_id="j3", choice=Choice.TIE))
        assert [j.judgement_id for j in store.history("a1")] == ["j3", "j1"]
        assert store.record(said(second, judgement_id="j2")) == withdrawn  # late: acknowledged, and still withdrawn
        with pytest.raises(DataError, match="has made no judgement 'j9'"):
            store.undo("a1", "j9")


def test_progress_counts_what_was_done_and_what_is_left(tmp_path):
    with small_store(tmp_path / "x.db", overlap=0.0) as store:
        store.add_annotator("Bo")
        store.record(said(store.next_item("a1")))
        store.record(said(store.next_item("a1"), choice=Choice.SKIP, reason="unclear"))
        mine, other = store.progress("a1"), store.progress("a2")
    assert (mine.judged, mine.skipped, mine.open) == (1, 1, 4)
    assert (other.judged, other.skipped, other.open) == (0, 0, 5)  # a skipped item still wants a judgement


def test_a_full_disk_says_so_and_loses_nothing(tmp_path):
    path = tmp_path / "x.db"
    with small_store(path, num_items=300, overlap=0.0) as store:
        # The limit is a property of a connection, so it is set on each one that the pool opens.
        sa.event.listen(store.engine, "checkout", lambda connection, *_: connection.execute("PRAGMA max_page_count = 60").close())
        acknowledged, judgement = _record_until_full(store)
        assert acknowledged
        assert list(store.judgements()) == acknowledged
    with Store.open(path) as store:  # room again: the one that failed is stored at once
        assert store.record(judgement).judgement_id == judgement.judgement_id
        assert len(list(store.judgements())) == len(acknowledged) + 1


def _record_until_full(store):
    """(what was acknowledged, the judgement that was not)"""
    acknowledged = []
    for i in range(300):
        judgement = Judgement(f"j{i}", f"i{i}", "a1", Choice.FIRST, (f"a{i}.0", f"a{i}.1"), comment="long " * 200)
        try:
            acknowledged.append(store.record(judgement))
        except StoreFull as error:
            assert "no space is left" in str(error)  # noqa: PT017  the loop is what is tested
            return acknowledged, judgement
    raise AssertionError("300 judgements found room")


def test_scores_must_be_numbers_of_stored_answers(tmp_path):
    with small_store(tmp_path / "x.db") as store:
        with pytest.raises(DataError, match="finite numbers"):
            store.set_scores("m", {"a0.0": float("inf")})
        with pytest.raises(DataError, match="no such answers: zz"):
            store.set_scores("m", {"zz": 1.0})
        with pytest.raises(DataError, match="no scores to store"):
            store.set_scores("m", {})
        assert store.scorers() == []
        store.set_scores("m", {"a0.0": 1.0})
        store.set_scores("n", {"a0.0": 2.0})
        store.set_scores("m", {"a0.0": 3.0, "a0.1": -1.0})
        assert store.scorers() == ["n", "m"]
        assert store.scores("m") == {"a0.0": 3.0, "a0.1": -1.0}
        with pytest.raises(DataError, match="known: n, m"):
            store.scores("x")


def test_scoring_that_was_killed_keeps_no_item_out(tmp_path, monkeypatch):
    """The scorer is there, its scores are not: items go on as unscored ones."""
    with small_store(tmp_path / "x.db", strategy="uncertainty") as store:
        with monkeypatch.context() as patch:
            patch.setattr(scoring, "chunks", _killed)
            with pytest.raises(KeyboardInterrupt):
                store.set_scores("m", {"a0.0": 1.0, "a0.1": 2.0})
        assert store.scorers() == ["m"]
        store.add_answers([Answer("new", "p0", "another answer")])
        assert store.add_items([Item("i0b", "p0", ("a0.0", "new"))]).new == 1
        assert len(judge_all(store)) == 7


def _killed(values):
    raise KeyboardInterrupt


def test_ranked_items_of_three(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1) as store:
        store.add_answers([Answer("c", "p0", "third")])
        store.add_items([Item("three", "p0", ("a0.0", "a0.1", "c"))])
        ranked = Judgement("r", "three", "a1", Choice.RANKED, ("c", "a0.0", "a0.1"), ranking=(("c",), ("a0.0", "a0.1")))
        store.record(ranked)
        assert next(store.judgements()).ranking == (("c",), ("a0.0", "a0.1"))


def test_settings_are_json_in_the_database(tmp_path):
    with small_store(tmp_path / "x.db", strategy=Strategy.UNCERTAINTY):
        file = sqlite3.connect(tmp_path / "x.db")
        settings = json.loads(file.execute("SELECT value FROM tether_meta WHERE key = 'settings'").fetchone()[0])
        file.close()
    assert settings["strategy"] == "uncertainty"


def test_an_annotator_who_has_judged_everything_gets_nothing(tmp_path):
    with small_store(tmp_path / "x.db") as store:
        assert len(judge_all(store)) == 6
        assert store.next_item("a1") is None
        with pytest.raises(DataError, match="no annotator with the id 'a7'"):
            store.next_item("a7")
