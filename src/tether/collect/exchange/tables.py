"""Rows in files: JSONL, JSON, Parquet, CSV.

CSV is for spreadsheets, which run a cell that begins with = + - @, a tab or a carriage return as a formula. Such a cell is written with an
apostrophe in front, and so is one that begins with an apostrophe or looks like messages; reading a file of ours takes it off again.
Messages and lists are JSON in a cell.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tether.data.load import load_rows
from tether.errors import DataError
from tether.files import sync_file, sync_folder, temporary_beside, write_atomic_bytes
from tether.records import read_lines, write_jsonl

__all__ = ["ENDINGS", "read_table", "write_table"]

ENDINGS = (".jsonl", ".json", ".parquet", ".csv")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MARKS = ({"soft_label"}, {"judgement_id", "answer_ids"})  # a header with these columns is ours, and its cells are unescaped
_NUMBERS = {"label": float, "margin": float, "num_judgements": int, "agreement": float, "soft_label": float, "seconds": float}
_VALUES = {
    "annotators", "answers", "ranking", "shown", "chosen_shown_first", "votes_chosen", "votes_rejected", "models", "answer_ids",
}  # of ours; their cells are JSON  # fmt: skip
_MESSAGES = '[{"role"'  # how a cell of messages begins
_MARKED = (*_FORMULA, "'", _MESSAGES)  # how a string begins that gets an apostrophe in front
_JSON = json.JSONEncoder(ensure_ascii=False).encode
_BATCH = 10_000

Row = dict[str, Any]


def write_table(path: str | Path, rows: Iterable[Row]) -> Path:
    """Write rows with the same columns to a .jsonl, .parquet or .csv file, whole or not at all."""
    path = Path(path)
    if path.suffix == ".jsonl":
        return write_jsonl(path, rows)
    if path.suffix == ".csv":
        return write_atomic_bytes(path, _csv_lines(rows))
    if path.suffix == ".parquet":
        return _write_parquet(path, rows)
    raise DataError(f"{path}: the ending {path.suffix or '(none)'} is not written; expected .jsonl, .parquet or .csv")


def read_table(path: str | Path) -> list[Row | DataError]:
    """The rows of a .jsonl, .json (a list), .parquet or .csv file, or of tether:NAME; an unreadable row is what is wrong with it."""
    if str(path).startswith("tether:"):
        return load_rows(str(path)).rows
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file (looked in {Path.cwd()})")
    readers = {".jsonl": read_lines, ".json": _read_json, ".parquet": _read_parquet, ".csv": _read_csv}
    if path.suffix not in readers:
        raise DataError(f"{path}: the ending {path.suffix or '(none)'} is not read; expected {', '.join(ENDINGS)}")
    try:
        return list(readers[path.suffix](path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _csv_lines(rows: Iterable[Row]) -> Iterator[bytes]:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    header: list[str] | None = None
    for row in rows:
        if header is None:
            header = list(row)
            writer.writerow(header)
        writer.writerow([_to_cell(row[name]) for name in header])
        yield buffer.getvalue().encode("utf-8")
        buffer.seek(0)
        buffer.truncate()


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_MARKED) else value
    text = str(value) if type(value) is int else _JSON(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _read_csv(path: Path) -> Iterator[Row | DataError]:
    csv.field_size_limit(2**31 - 1)  # answers are longer than the 128 KiB that the module allows a cell
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, [])
            if twice := [name for name, count in Counter(header).items() if name and count > 1]:
                raise DataError(f"{path}: the header has {', '.join(map(repr, twice))} more than once; give each column a name of its own")
            ours = any(mark <= set(header) for mark in _MARKS)
            for cells in lines:
                if len(cells) != len(header):
                    yield DataError(f"{len(cells)} cells under a header of {len(header)}; quote cells that hold commas or line ends")
                else:
                    yield {name: _from_cell(name, cell, ours) for name, cell in zip(header, cells, strict=True)}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV file in UTF-8 ({error})") from error


def _from_cell(name: str, cell: str, ours: bool) -> Any:
    if cell == "" and name not in ("chosen", "rejected"):
        return None
    if ours and cell.startswith("'"):
        return cell[1:]
    if ours and name in _VALUES:
        with suppress(ValueError):
            return json.loads(cell)
    if name in _NUMBERS:
        with suppress(ValueError):
            return _NUMBERS[name](cell)
    if cell.startswith(_MESSAGES):
        with suppress(ValueError):
            return json.loads(cell)
    return cell


def _write_parquet(path: Path, rows: Iterable[Row]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    left = iter(rows)
    first = list(islice(left, _BATCH))
    try:
        schema = _parquet_schema(pa.Table.from_pylist(first).schema)
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path) as temporary:
            with pq.ParquetWriter(temporary, schema) as writer:
                for batch in chain([first], iter(lambda: list(islice(left, _BATCH)), [])):
                    writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            sync_file(temporary)
            os.replace(temporary, path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        told = "a column of a .parquet file holds one kind of value, and these texts are strings in some rows and conversations in others"
        told += "; write messages everywhere (--form conversational), or a .jsonl file"
        raise DataError(f"{path}: {told} ({str(error).splitlines()[0][:200]})") from error
    sync_folder(path.parent)
    return path


def _parquet_schema(schema: Any) -> Any:
    """The schema of the first rows; columns that are empty so far get the type of what may follow."""
    import pyarrow as pa

    empty = {"ranking": pa.list_(pa.list_(pa.int64())), "chosen_shown_first": pa.bool_(), "seconds": pa.float64()}
    if "answers" in schema.names:
        empty |= dict.fromkeys(("chosen", "rejected"), schema.field("answers").type.value_type)
    for at, column in enumerate(schema):
        if pa.types.is_null(column.type):
            schema = schema.set(at, pa.field(column.name, empty.get(column.name, pa.string())))
    return schema


def _read_parquet(path: Path) -> Iterator[Row | DataError]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file ({str(error).splitlines()[0][:200]})") from error


def _read_json(path: Path) -> list[Row | DataError]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, got {type(rows).__name__}")
    return rows
