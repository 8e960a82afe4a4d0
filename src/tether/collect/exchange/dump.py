"""The whole database as JSON lines, and back: nothing is lost, whichever of the two kinds of database it goes to.

The first line names the format and its version and holds the settings, then comes one line per row, table by table, and the last line
counts them, so that a dump that was cut off is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tether.collect import schema
from tether.collect.adding import chunks
from tether.collect.codec import stored, to_json
from tether.collect.engine import Connection, reading, writing
from tether.collect.engine import sqlalchemy as sa
from tether.collect.opening import create_database, discard_database
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.errors import DataError
from tether.records import iter_jsonl, write_jsonl
from tether.records.fields import as_mapping

__all__ = ["DUMP_VERSION", "dump", "load"]

DUMP_VERSION = 1
_KIND = "tether.collect dump"
_JSON = {"text", "columns", "provenance", "shown", "ranking"}  # columns that hold JSON; in the dump they are that JSON
_TABLES = {table.name.removeprefix("tether_"): table for table in schema.metadata.sorted_tables}  # those referred to come first
_OWN_KEYS = ("application", "schema_version", "settings")  # of the table meta: told by the first line


def dump(store: Store, path: str | Path) -> dict[str, int]:
    """Write one consistent view of everything to a JSONL file, whole or not at all; returns the rows of every table."""
    counts: dict[str, int] = {}
    with reading(store.engine) as connection:
        write_jsonl(path, _lines(connection, store.settings, counts))
    return counts


def _lines(connection: Connection, settings: Settings, counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    yield {"kind": _KIND, "version": DUMP_VERSION, "schema_version": schema.SCHEMA_VERSION, "settings": json.loads(settings.as_json())}
    for name, table in _TABLES.items():
        counts[name] = 0
        query = sa.select(table).order_by(*(table.c.number,) if "number" in table.c else table.primary_key)
        for row in connection.execution_options(yield_per=1000).execute(query).mappings():
            if name == "meta" and row["key"] in _OWN_KEYS:
                continue
            counts[name] += 1
            yield {"table": name} | {key: stored(json.loads, value) if key in _JSON else value for key, value in row.items()}
    yield {"kind": "end", "rows": counts}


def load(url_or_path: str | os.PathLike[str], path: str | Path) -> Store:
    """A new database with everything that a dump holds. Raises DataError for a file that is no whole dump of this version (nothing is left
    behind), StoreError where a database is there already.
    """
    lines = _checked(path)
    settings = _settings(next(lines), path)
    engine = create_database(url_or_path, settings)
    try:
        with writing(engine) as connection:
            _fill(connection, lines, path)
    except BaseException:
        discard_database(engine)
        raise
    return Store(engine, settings)


def _checked(path: str | Path) -> Iterator[tuple[int, Any]]:
    try:
        for number, row in iter_jsonl(path):
            try:
                yield number, as_mapping(row)
            except DataError as error:
                raise DataError(f"{path}: row {number}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    yield 0, None


def _settings(first: tuple[int, Any], path: str | Path) -> Settings:
    head = first[1]
    if head is None or head.get("kind") != _KIND:
        raise DataError(f"{path}: no dump; expected a file of `tether collect dump`, whose first row has the kind {_KIND!r}")
    for name, known in (("version", DUMP_VERSION), ("schema_version", schema.SCHEMA_VERSION)):
        if not isinstance(head.get(name), int) or not 1 <= head[name] <= known:
            raise DataError(f"{path}: its {name} is {head.get(name)!r}, and this Tether reads 1 to {known}; upgrade Tether")
    if not isinstance(head.get("settings"), Mapping):
        raise DataError(f"{path}: its first row has no settings; dump the database again")
    return Settings.from_mapping(head["settings"])


def _fill(connection: Connection, lines: Iterator[tuple[int, Any]], path: str | Path) -> None:
    connection.execute(sa.delete(schema.meta).where(schema.meta.c.key.not_in(_OWN_KEYS)))
    counts = dict.fromkeys(_TABLES, 0)
    end: Any = None

    def rows() -> Iterator[tuple[int, str, dict[str, Any]]]:
        nonlocal end
        for number, row in lines:
            if row is None or row.get("kind") == "end":
                end = row
                break
            name, values = _row(row, f"{path}: row {number}")
            counts[name] += 1
            yield number, name, values

    for chunk in chunks(rows()):
        for name in dict.fromkeys(name for _, name, _ in chunk):
            _insert(connection, name, [(number, values) for number, table, values in chunk if table == name], path)
    if end is None or end.get("rows") != counts:
        raise DataError(f"{path}: the dump is cut off or was changed: it holds {counts}, and its last row says {end and end.get('rows')}")
    if next(lines)[1] is not None:
        raise DataError(f"{path}: rows follow the last one of the dump")


def _row(row: Any, place: str) -> tuple[str, dict[str, Any]]:
    name = row.get("table")
    if name not in _TABLES:
        raise DataError(f"{place}: expected a `table` of {', '.join(_TABLES)}, got {name!r}")
    values = {key: to_json(value, place) if key in _JSON else value for key, value in row.items() if key != "table"}
    if set(values) != set(_TABLES[name].c.keys()):
        raise DataError(f"{place}: expected the fields {', '.join(_TABLES[name].c.keys())}, got {', '.join(sorted(values))}")
    return name, values


def _insert(connection: Connection, name: str, rows: list[tuple[int, dict[str, Any]]], path: str | Path) -> None:
    try:
        connection.execute(sa.insert(_TABLES[name]), [values for _, values in rows])
    except (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.StatementError) as error:
        if isinstance(error, sa.exc.OperationalError):
            raise
        reason = str(error.orig or error).splitlines()[0]
        raise DataError(f"{path}: rows {rows[0][0]} to {rows[-1][0]} do not fit the table {name} ({reason})") from error
