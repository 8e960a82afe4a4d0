"""Making and recognising a database of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tether.collect import schema
from tether.collect.engine import Connection, Engine, Unreadable, connect, file_error, make_file, place_of, reading, shown_place, writing
from tether.collect.engine import sqlalchemy as sa
from tether.collect.judging import now_text
from tether.collect.recognise import SQLITE_HEADER, is_collection
from tether.collect.settings import Settings
from tether.errors import StoreDamaged, StoreError
from tether.files import sync_folder

__all__ = ["create_database", "discard_database", "open_database", "read_settings", "write_settings"]


def create_database(url_or_path: str | os.PathLike[str], settings: Settings) -> Engine:
    """An empty database with these settings. Raises StoreError where there is something already."""
    url, path = place_of(url_or_path)
    if path is not None:
        make_file(path)
    engine = connect(url)
    try:
        with writing(engine) as connection:
            if found := sorted(set(sa.inspect(connection).get_table_names()) & set(schema.metadata.tables)):
                raise StoreError(f"this PostgreSQL database has the table {found[0]} already; open it, or take a database of its own")
            _make_tables(connection)
            now = {"application": "tether.collect", "schema_version": str(schema.SCHEMA_VERSION), "created_at": now_text()}
            connection.execute(sa.insert(schema.meta), [{"key": key, "value": value} for key, value in now.items()])
            write_settings(connection, settings)
    except StoreError:
        engine.dispose()  # tables of another one are not ours to remove
        if path is not None:
            _remove(path)
        raise
    if path is not None:
        sync_folder(path.parent)
    return engine


def _make_tables(connection: Connection) -> None:
    """Indexes by name: SQLAlchemy keeps those of a table in a set, and of two that serve a query alike SQLite takes the one that was made
    first or last, so that ``create_all`` would make databases that plan alike today and otherwise tomorrow."""
    for table in schema.metadata.sorted_tables:
        connection.execute(sa.schema.CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(sa.schema.CreateIndex(index))


def discard_database(engine: Engine) -> None:
    """Take back what ``create_database`` made."""
    if engine.dialect.name == "sqlite":
        engine.dispose()
        _remove(Path(engine.url.database or ""))
    else:
        with writing(engine) as connection:
            schema.metadata.drop_all(connection)
        engine.dispose()


def open_database(url_or_path: str | os.PathLike[str]) -> tuple[Engine, Settings]:
    """The database and its settings. Raises StoreError for what is not there, not ours or too new."""
    url, path = place_of(url_or_path)
    if path is not None and not is_collection(path):
        raise _not_ours(path)
    engine = connect(url)
    try:
        with reading(engine) as connection:
            return engine, read_settings(connection, shown_place(engine))
    except BaseException:
        engine.dispose()
        raise


def _not_ours(path: Path) -> StoreError:
    """Why the file is no collection, as far as its first bytes tell."""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return StoreError(f"{path}: no such file; make it with `tether collect init`")
    except IsADirectoryError:
        return StoreError(f"{path} is a folder; expected a file made by `tether collect init`")
    except OSError as error:
        return file_error(path, error)
    if not head:
        return StoreDamaged(f"{path} is empty: a copy that failed, or a file that was cut? Go back to a backup, or make another one")
    if head.startswith(SQLITE_HEADER) and len(head) < 100:
        return StoreDamaged(f"{path} is damaged: it was cut after {len(head)} bytes. Go back to a backup")
    kind = "a SQLite database of something else" if head.startswith(SQLITE_HEADER) else "no database of judgements"
    return StoreError(
        f"{path} is {kind}; expected a file made by `tether collect init`. If it was one, its beginning is damaged: go back to a backup"
    )


def write_settings(connection: Connection, settings: Settings) -> None:
    """Replace the settings. Inside the caller's transaction."""
    connection.execute(sa.delete(schema.meta).where(schema.meta.c.key == "settings"))
    connection.execute(sa.insert(schema.meta).values(key="settings", value=settings.as_json()))


def read_settings(connection: Connection, place: str) -> Settings:
    """The settings. Raises StoreError for a database that is not ours or too new."""
    if schema.meta.name not in sa.inspect(connection).get_table_names():
        raise StoreError(f"{place} is no database of judgements; make one with `tether collect init`")
    meta: dict[str, Any] = {row.key: row.value for row in connection.execute(sa.select(schema.meta))}
    number = meta.get("schema_version", "0")
    version = int(number) if number.isdecimal() else 0
    if meta.get("application") != "tether.collect" or not version:
        raise StoreError(f"{place} is no database of judgements, although it has the table {schema.meta.name}")
    if version > schema.SCHEMA_VERSION:
        raise StoreError(
            f"{place} was written by a newer Tether (format {version}; this one knows up to {schema.SCHEMA_VERSION}); upgrade Tether"
        )
    try:
        return Settings.from_json(meta["settings"])
    except (KeyError, json.JSONDecodeError, TypeError) as error:
        raise Unreadable(f"its settings: {error}") from error


def _remove(path: Path) -> None:
    for name in (path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm"))):
        name.unlink(missing_ok=True)
