"""The whole database to a file and back: equal, on contents that hypothesis invents; damaged files are refused whole."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_collection import said, small_store

from tether.collect.codec import check_plain
from tether.collect.entries import Answer, Provenance
from tether.collect.exchange.dump import dump, load
from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.settings import Settings, Strategy
from tether.collect.store import Store
from tether.errors import DataError, StoreError
from tether.types import Message, Prompt

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
PLAIN = TEXT.map(lambda text: text.replace("\x00", ""))
TURNS = st.lists(st.builds(Message, st.sampled_from(("user", "assistant", "system", "tool")), TEXT), min_size=1, max_size=3).map(tuple)
ANY_TEXT = TEXT | TURNS
VALUE = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT


@st.composite
def collections(draw):
    """(settings, prompts, answers, items, choices of two annotators)."""
    strategy, seed = draw(st.sampled_from(Strategy)), draw(st.integers(0, 2**60))
    chosen = Settings(question="q" + draw(TEXT), guidelines=draw(TEXT), strategy=strategy, seed=seed)
    ids = draw(st.lists(PLAIN.filter(bool), min_size=1, max_size=3, unique=True))
    prompts = [Prompt(one, draw(ANY_TEXT), draw(st.dictionaries(TEXT, VALUE, max_size=2))) for one in ids]
    provenance = st.builds(Provenance, TEXT, TEXT, TEXT, st.dictionaries(TEXT, VALUE, max_size=2), st.none() | st.integers(0, 2**62))
    answers = [Answer(f"{one} {k}", one, draw(ANY_TEXT), draw(provenance)) for one in ids for k in range(3)]
    items = [Item(f"{one} pair", one, (f"{one} 1", f"{one} 0"), draw(st.sampled_from([None, Choice.SECOND]))) for one in ids]
    items += [Item(f"{one} three", one, tuple(f"{one} {k}" for k in range(3))) for one in ids]
    words = st.tuples(st.sampled_from(["first", "skip", "tie"]), PLAIN, PLAIN, st.none() | st.floats(0, 1e9), st.booleans())
    return chosen, prompts, answers, items, draw(st.lists(words, min_size=len(ids), max_size=len(ids)))


def fill(store: Store, prompts, answers, items, words) -> None:
    store.add_prompts(prompts)
    store.add_answers(answers)
    store.add_items(items)
    store.add_annotator("Ann")
    store.set_scores("m", {answers[0].answer_id: 0.1, answers[1].answer_id: 1e-300})
    for item, (choice, reason, comment, seconds, withdrawn) in zip(items, words, strict=False):
        strength = Strength.MUCH if choice == "first" else None
        word = Judgement(item.item_id, item.item_id, "a1", Choice(choice), item.answers, strength, (), f"r{reason}", comment, seconds)
        store.record(word)
        if withdrawn:
            store.undo("a1")
    store.next_item("a1")


def contents(store: Store) -> list:
    streams = (store.prompts(), store.answers(), store.item_states(), store.annotators(), store.judgements(include_withdrawn=True))
    return [*map(list, streams), store.scorers(), store.scores("m"), store.next_item("a1"), store.progress("a1"), store.settings]


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=3, deadline=None, suppress_health_check=QUIET)
@given(collections())
def test_what_is_loaded_is_what_was_dumped(made):
    _round_trip(made)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(collections())
def test_what_is_loaded_is_what_was_dumped_at_length(made):
    _round_trip(made)


def _round_trip(made):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Store.create(folder / "one.db", made[0]) as store:
            fill(store, *made[1:])
            dump(store, folder / "one.jsonl")
            before = contents(store)
        with load(folder / "two.db", folder / "one.jsonl") as loaded:
            dump(loaded, folder / "two.jsonl")
            assert contents(loaded) == before
        assert (folder / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()


def test_every_table_and_its_counts_are_in_the_dump(tmp_path):
    with small_store(tmp_path / "x.db", num_items=2) as store:
        store.record(said(store.next_item("a1")))
        counts = dump(store, tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    assert counts == {
        "annotators": 1, "meta": 1, "prompts": 2, "scorers": 0, "answers": 4, "items": 2, "item_answers": 4, "judgements": 1,
        "reservations": 0, "scores": 0,
    }  # fmt: skip
    assert lines[0]["version"] == 1
    assert lines[-1] == {"kind": "end", "rows": counts}
    assert isinstance(next(line for line in lines if line.get("table") == "judgements")["shown"], list)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: [*lines[:-2], lines[-1]], "cut off or was changed"),
        (lambda lines: [*lines, lines[1]], "rows follow the last one"),
        (lambda lines: lines[1:], "no dump"),
        (lambda lines: [], "no dump"),
        (lambda lines: [lines[0].replace('"version": 1', '"version": 2'), *lines[1:]], "upgrade Tether"),
        (lambda lines: [lines[0].replace('"settings"', '"setting"'), *lines[1:]], "its first row has no settings"),
        (lambda lines: [*lines[:3], lines[3].replace("prompt_id", "prompt_ix"), *lines[4:]], "row 4: expected the fields"),
        (lambda lines: [*lines[:3], lines[3], lines[3], *lines[4:]], "do not fit the table prompts"),
        (lambda lines: [*lines[:3], "{", *lines[4:]], "row 4: not JSON"),
        (lambda lines: [line.replace('0, "answer_id": "a0.0"', '0, "answer_id": "zz"') for line in lines], "do not fit"),
    ],
)
def test_a_damaged_dump_is_refused_and_leaves_nothing(tmp_path, damage, message):
    with small_store(tmp_path / "x.db", num_items=2) as store:
        dump(store, tmp_path / "x.jsonl")
    lines = damage((tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines())
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load(tmp_path / "y.db", tmp_path / "bad.jsonl")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("y.db")] == []


def test_a_dump_overwrites_no_database(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1) as store:
        dump(store, tmp_path / "x.jsonl")
    with pytest.raises(StoreError, match="exists already"):
        load(tmp_path / "x.db", tmp_path / "x.jsonl")
    Store.open(tmp_path / "x.db").close()


def test_plain_columns_refuse_what_postgresql_would():
    with pytest.raises(DataError, match=r"U\+0000"):
        check_plain("a\x00", "x")
