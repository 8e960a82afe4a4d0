"""Opening a database, and its errors in Tether's words. The only module that imports SQLAlchemy itself; the others take it from here."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tether.collect.recognise import APPLICATION_ID, POSTGRES
from tether.errors import StoreDamaged, StoreError, StoreFull

try:
    import sqlalchemy
    import sqlalchemy.event
    import sqlalchemy.exc
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it; tests/collect/test_store.py hides it in a process of its own
    raise StoreError("the database of judgements needs SQLAlchemy; run: pip install 'tether[collect]'") from error

__all__ = [
    "Connection", "Engine", "Unreadable", "check_file", "connect", "file_error", "make_file", "place_of", "reading", "shown_place",
    "sqlalchemy", "writing",
]  # fmt: skip

Connection = sqlalchemy.Connection
Engine = sqlalchemy.Engine

BUSY_TIMEOUT_S = 30  # how long a writer waits for another one; a write takes milliseconds
_WRITE_LOCK = 0x74657468  # one writer at a time on PostgreSQL too; the lock ends with its transaction


class Unreadable(ValueError):
    """A stored value is not what was written: ``reading`` and ``writing`` make it a StoreDamaged that names the place."""


def place_of(url_or_path: str | os.PathLike[str]) -> tuple[str, Path | None]:
    """(URL for SQLAlchemy, the file of a SQLite database or None). A text without "://" is a path.

    Raises StoreError for another kind of URL.
    """
    text = os.fspath(url_or_path)
    if text.startswith(POSTGRES):
        return "postgresql+psycopg://" + text.partition("://")[2], None
    if text.startswith("sqlite:///"):
        text = text.removeprefix("sqlite:///")
    elif "://" in text:
        raise StoreError(f"{text.partition('://')[0]}://...: expected the path of a SQLite file or a postgresql:// URL")
    if not text or text == ":memory:":
        raise StoreError("expected the path of a file: judgements in memory would be lost")
    path = Path(text).expanduser().absolute()
    return sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string(), path


def make_file(path: Path) -> None:
    """An empty database that only its owner reads and writes; SQLite gives its journal the same mode. Raises StoreError if there is one,
    where its folder is missing, and where nothing can be written.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError as error:
        raise StoreError(f"{path} exists already; open it, or choose another name") from error
    except FileNotFoundError as error:
        raise StoreError(f"{path} cannot be made: there is no folder {path.parent}; make it (mkdir -p), or correct the path") from error
    except OSError as error:
        raise file_error(path, error) from error
    try:
        mark = sqlite3.connect(path)  # before the journal mode is WAL, so that the mark is in the file's first page
        try:
            mark.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        finally:
            mark.close()
    except sqlite3.Error as error:
        path.unlink(missing_ok=True)
        raise _sqlite_error(error, str(path)) from error


def file_error(path: Path, error: OSError) -> StoreError:
    """What keeps a file from being opened or made, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{path}: no space is left on its disk. Make room and try again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(f"{path}: {_CLOSED} ({error.strerror}). {_OPEN_IT}")
    return StoreError(f"{path} cannot be opened ({error.strerror or error})")


_CLOSED = "this user may not read and write it there"
_OPEN_IT = (
    "SQLite needs the file and its folder writable, also to read, because it keeps a log beside it: change the permissions (chmod u+rw), "
    "or copy the file, and those ending in -wal and -shm if there are any, to a folder of yours"
)


def connect(url: str) -> Engine:
    """An engine whose transactions are begun by ``reading`` and ``writing``. Nothing is opened yet. Raises StoreError without a driver."""
    if url.startswith("postgresql"):
        try:
            return sqlalchemy.create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED")
        except ModuleNotFoundError as error:
            raise StoreError("a PostgreSQL database needs psycopg; run: pip install 'tether[postgres]'") from error
        except sqlalchemy.exc.ArgumentError as error:
            raise StoreError("the PostgreSQL URL cannot be read; expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from error
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False})
    sqlalchemy.event.listen(engine, "connect", _prepare_sqlite)
    sqlalchemy.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", f"busy_timeout = {BUSY_TIMEOUT_S * 1000}"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins by reading and writes later can fail at that point; one that will write takes its turn at the start.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("tether_writes") else "BEGIN")


def shown_place(engine: Engine) -> str:
    """Where the database is, for messages: the file, or the URL without its password."""
    return engine.url.database or "" if engine.dialect.name == "sqlite" else engine.url.render_as_string(hide_password=True)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view; waits for nobody."""
    with _own_words(engine), engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction, alone among writers. When the block ends it is on the disk; an error leaves nothing of it."""
    with _own_words(engine), engine.connect().execution_options(tether_writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            milliseconds = str(int(1000 * BUSY_TIMEOUT_S))  # of every lock of this transaction
            connection.execute(sqlalchemy.select(sqlalchemy.func.set_config("lock_timeout", milliseconds, True)))
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_WRITE_LOCK)))
        yield connection


@contextmanager
def _own_words(engine: Engine) -> Iterator[None]:
    place = shown_place(engine)
    try:
        yield
    except (Unreadable, UnicodeDecodeError) as error:
        raise _damaged(place, str(error)) from error
    except sqlalchemy.exc.DBAPIError as error:
        raise _in_own_words(error, place) from error


def _in_own_words(error: sqlalchemy.exc.DBAPIError, place: str) -> StoreError:
    cause = error.orig
    first_line = (str(cause).splitlines() or ["no reason given"])[0]
    if isinstance(cause, sqlite3.Error):
        return _sqlite_error(cause, place)
    if (code := getattr(cause, "sqlstate", "")) == "53100":  # disk_full
        return StoreFull(f"{place}: {_FULL}")
    return _busy(place) if code == "55P03" else StoreError(f"{place}: the database refused ({first_line})")  # lock_not_available


def _busy(place: str) -> StoreError:
    return StoreError(f"{place}: another process has been writing for {BUSY_TIMEOUT_S} s; end it, or try again")


_FULL = "no space is left; this was not stored, everything before it is. Make room and send it again"


def _sqlite_error(error: sqlite3.Error, place: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    kind = None if code is None else code & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return StoreFull(f"{place}: {_FULL}")
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _busy(place)
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(f"{place}: {_CLOSED} ({error}). {_OPEN_IT}")
    broken = kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code == sqlite3.SQLITE_IOERR_SHORT_READ
    if broken or "Could not decode to UTF-8" in str(error) or "malformed" in str(error):
        return _damaged(place, str(error))
    if kind == sqlite3.SQLITE_IOERR:
        return StoreError(f"{place}: the disk failed ({error}); look at the system's log, and copy the file to another disk")
    return StoreError(f"{place}: the database refused ({error})")


def _damaged(place: str, found: str) -> StoreDamaged:
    first_line = (found.splitlines() or ["unreadable"])[0][:200]
    return StoreDamaged(
        f"{place} is damaged ({first_line}): something else changed or cut the file. End `tether collect serve`, keep a copy of the file "
        "and of those beside it, and go back to a backup (`tether collect load NEW.db DUMP` makes a database of a dump). Without one, "
        f"`sqlite3 {place} .recover | sqlite3 NEW.db` saves what can be read (not every build of sqlite3 has .recover), and "
        "`tether collect dump NEW.db FILE` shows whether that is sound"
    )


def check_file(engine: Engine) -> None:
    """Raises StoreDamaged where pages of a SQLite file are not sound. Reads all of it; a server looks after its own."""
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise _damaged(shown_place(engine), str(found).strip().splitlines()[-1])  # the first line says which database
