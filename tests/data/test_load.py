"""Rows from every kind of place, and clear errors from none."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tether.data import load
from tether.data.load import load_comparisons, load_demonstrations, load_prompts, load_rows
from tether.errors import DataError
from tether.records import file_sha256, write_jsonl

ROWS = [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(5)]


@dataclass(frozen=True)
class Place:
    path: str
    split: str = "train"
    limit: int | None = None


@pytest.fixture
def jsonl(tmp_path):
    return write_jsonl(tmp_path / "rows.jsonl", ROWS)


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files(kind, request):
    path = request.getfixturevalue(kind)
    loaded = load_rows(str(path))
    assert loaded.rows == ROWS
    assert (loaded.format, loaded.source, loaded.sha256) == (kind, str(path), file_sha256(path))
    assert load_rows(str(path), limit=2).rows == ROWS[:2]
    assert load_rows(str(path), limit=99).rows == ROWS
    with pytest.raises(DataError, match="limit"):
        load_rows(str(path), limit=0)


def test_split_of_a_file_has_no_effect_and_says_so(jsonl, caplog):
    assert load_rows(str(jsonl), split="test").rows == ROWS
    assert "no effect" in caplog.text


def test_folders_of_datasets(tmp_path):
    one = datasets.Dataset.from_list(ROWS)
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one, "test": one.select([0])}).save_to_disk(tmp_path / "two")
    assert load_rows(str(tmp_path / "one")).rows == ROWS
    assert load_rows(str(tmp_path / "two"), limit=3).rows == ROWS[:3]
    test = load_rows(str(tmp_path / "two"), split="test")
    assert (test.rows, test.format, len(test.sha256)) == (ROWS[:1], "folder", 64)
    assert test.sha256 != load_rows(str(tmp_path / "two")).sha256
    with pytest.raises(DataError, match=r"no split 'dev'\. Known: train, test"):
        load_rows(str(tmp_path / "two"), split="dev")


def test_bundled_data_is_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "recipes_data").mkdir()
    write_jsonl(tmp_path / "recipes_data" / "toy.jsonl", ROWS)
    monkeypatch.setattr(load.importlib.resources, "files", lambda package: tmp_path)
    loaded = load_rows("tether:toy.jsonl")
    assert (loaded.rows, loaded.source) == (ROWS, "tether:toy.jsonl")
    for name in ("tether:other.jsonl", "tether:../secret.jsonl", "tether:"):
        with pytest.raises(DataError, match=r"Known: tether:toy\.jsonl"):
            load_rows(name)


def test_hub_ids_go_through_datasets(monkeypatch):
    asked = []
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda path, split: asked.append((path, split)) or datasets.Dataset.from_list(ROWS),
    )
    loaded = load_rows("org/name", split="test", limit=1)
    assert (loaded.rows, loaded.source, loaded.format) == (ROWS[:1], "org/name [test]", "hub")
    assert asked == [("org/name", "test")]


def test_hub_failures_are_data_errors(monkeypatch):
    def fail(path, split):
        raise ConnectionError("offline\nand more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"org/name: no such local path.*ConnectionError: offline\)"):
        load_rows("org/name")


@pytest.mark.parametrize(
    "path", ["missing.jsonl", "./missing", "/no/such/place", "~/no/such", "a/b/c", "", " "]
)
def test_missing_paths_are_not_looked_for_on_the_hub(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if path:
        with pytest.raises(DataError, match="no such file or folder"):
            load_rows(path)
    else:
        with pytest.raises(DataError):
            load_rows(path)


def test_unreadable_places(tmp_path):
    (tmp_path / "x.csv").write_text("a,b")
    (tmp_path / "x.parquet").write_text("no parquet")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("x.csv", "ending .csv is not read"),
        ("x.parquet", "not a readable parquet"),
        ("empty.jsonl", "no rows"),
        ("folder", "not a folder written by"),
    ):
        with pytest.raises(DataError, match=message):
            load_rows(str(tmp_path / name))


def test_a_database_is_told_how_to_become_rows(tmp_path):
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE t (a)").connection.close()
    for path, place in ((str(tmp_path / "x.db"), "x.db"), ("postgresql://me:secret@host/judged", "postgresql://...")):
        with pytest.raises(DataError, match=r"this is a database.*tether collect export DATABASE FILE\.jsonl") as caught:
            load_rows(path)
        assert place in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "q"}, {"prompt": None}], "row 2: `prompt` is null"),
        ([{"prompt": 1}, {"prompt": 2}], "rows 1-2: `prompt` must be a string or a list .* got a number"),
        ([{"prompt": b"raw"}], "row 1: `prompt` must be a string .* got bytes"),
        ([{"prompt": "q"}, {"prompt": " "}], "row 2: the prompt is empty"),
        ([{"prompt": [{"role": "bot", "content": "x"}]}], "row 1: `prompt`, message 1: role must be one of"),
        ([{"prompt": [{"role": "user", "content": None}]}], "message 1: `content` is null; expected"),
    ],
)
def test_odd_parquet_values_are_named_with_their_rows(tmp_path, rows, message):
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=rf"(?s)x\.parquet: .* cannot be used.*{message}"):
        load_prompts(Place(str(tmp_path / "x.parquet")))


def test_parquet_text_that_is_not_utf8_costs_its_own_row(tmp_path):
    text = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0\4\0\0\0"), pa.py_buffer(b"a\xff\xfeb")])
    pq.write_table(pa.table({"prompt": text, "n": [1, 2, 3]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"(?s)1 of 3 rows.*row 2: a text is not UTF-8 at its byte 1"):
        load_prompts(Place(str(tmp_path / "x.parquet")))


def test_sources_to_records(jsonl, tmp_path):
    assert [d.completion for d in load_demonstrations(Place(str(jsonl), limit=2))] == ["answer 0", "answer 1"]
    assert [p.text for p in load_prompts(Place(str(jsonl)))] == [row["prompt"] for row in ROWS]
    with pytest.raises(
        DataError, match=r"(?s)rows.jsonl: 5 of 5 rows.*rows 1-5: `chosen` is missing, `rejected` is missing"
    ):
        load_comparisons(Place(str(jsonl)))
