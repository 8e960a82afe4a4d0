"""A file that something else changed, cut, closed or filled: one sentence that says so and what to do, on every way in."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from small_collection import judge_all, small_store
from web_tools import Desktop, collection, judgement, next_item, post

from tether.cli import main
from tether.collect.engine import reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.exchange.dump import dump
from tether.collect.exchange.export import export_file
from tether.collect.exchange.judgement_rows import export_judgements
from tether.collect.exchange.rule import Rule
from tether.collect.stats.command import collect_stats
from tether.collect.store import Store
from tether.collect.web.server import serve
from tether.errors import StoreDamaged, StoreError, StoreFull, TetherError

ALL = Rule(split="all")


def settle(path: Path) -> bytes:
    """The whole database in its one file."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    connection.close()
    return path.read_bytes()


@pytest.fixture
def sound(tmp_path):
    with small_store(tmp_path / "sound.db", num_items=40) as store:
        judge_all(store)
    return settle(tmp_path / "sound.db")


def broken(sound: bytes, kind: str, number: int) -> bytes:
    draw = random.Random(number)
    damaged = bytearray(sound)
    if kind == "cut":
        return bytes(damaged[: draw.randrange(len(damaged))])
    if kind == "bytes":
        for _ in range(40):
            damaged[draw.randrange(100, len(damaged))] = draw.randrange(256)
    else:
        at = draw.randrange(100, len(damaged) - 2000)
        damaged[at : at + 2000] = draw.randbytes(2000)
    return bytes(damaged)


@pytest.mark.parametrize("kind", ["cut", "bytes", "page"])
def test_damage_is_said_and_never_a_traceback(tmp_path, sound, kind):
    acts = {
        "dump": lambda store: dump(store, tmp_path / "all.jsonl"),
        "pairs": lambda store: export_file(store, tmp_path / "pairs.jsonl", ALL),
        "judgements": lambda store: export_judgements(store, tmp_path / "judgements.jsonl", ALL),
        "next": lambda store: store.next_item("a1"),
        "check": Store.check,
        "statistics": lambda store: collect_stats(store, seed=0),
    }
    said = []
    for number in range(4):
        place = tmp_path / f"{kind}{number}.db"
        place.write_bytes(broken(sound, kind, number))
        for act in acts.values():
            try:
                with Store.open(place) as store:
                    act(store)
            except TetherError as error:  # anything else fails the test
                said.append(error)
    assert sum(isinstance(error, StoreDamaged) for error in said) >= 8
    assert all("backup" in str(error) for error in said if isinstance(error, StoreDamaged))


def test_a_server_does_not_start_on_a_damaged_file(tmp_path, sound):
    place = tmp_path / "x.db"
    damaged = bytearray(sound)
    damaged[8 * 4096 : 12 * 4096] = bytes(4 * 4096)
    place.write_bytes(damaged)
    said = r"x\.db is damaged .*sqlite3 .*x\.db \.recover"
    with pytest.raises(StoreDamaged, match=said):
        Store.open(place)
    with pytest.raises(StoreDamaged):
        serve(str(place), say=lambda text: pytest.fail(f"served: {text}"))
    place.write_bytes(sound)
    with Store.open(place) as store:
        store.check()


def test_an_export_is_whole_or_refused_whichever_page_is_damaged(tmp_path, sound):
    """SQLite passes over cells that point outside of their page: rows would be missing, and the report would name reasons for it."""
    place, file = tmp_path / "x.db", tmp_path / "x.jsonl"

    def exported() -> tuple[str, str]:
        with Store.open(place) as store:
            report = export_file(store, file, ALL)
        return str(report), file.read_text()

    place.write_bytes(sound)
    whole, refused = exported(), 0
    for page in range(1, len(sound) // 4096):
        damaged = bytearray(sound)
        for at in range(page * 4096 + 2000, page * 4096 + 4000):
            damaged[at] ^= 0x11
        place.write_bytes(damaged)
        try:
            assert exported() == whole
        except StoreDamaged:
            refused += 1
    assert refused > 5


def test_damage_while_serving_is_told_to_the_page_and_the_owner(tmp_path):
    place = tmp_path / "x.db"
    store = collection(place, 30)
    desk = Desktop(store)
    browser = desk.annotator()
    item = next_item(browser)
    store.engine.dispose()
    settle(place)
    whole = place.read_bytes()
    place.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    for path, body in (("/api/judgements", judgement(item)), ("/api/next", {})):
        answer = post(browser, path, body)
        assert answer.status_code == 503
        assert answer.text == "The database on the server is damaged, and nothing can be saved. Tell the owner."
    assert "go back to a backup" in desk.logged[-1]["error"]


def test_what_is_no_collection_is_told_from_what_is_damaged(tmp_path, sound):
    (tmp_path / "empty.db").touch()
    (tmp_path / "short.db").write_bytes(sound[:50])
    (tmp_path / "text.db").write_text("hello")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (a)").connection.close()
    (tmp_path / "folder.db").mkdir()
    for name, error, said in (
        ("empty", StoreDamaged, "is empty"), ("short", StoreDamaged, "cut after 50 bytes"),
        ("text", StoreError, "is no database of judgements"), ("other", StoreError, "a SQLite database of something else"),
        ("folder", StoreError, "is a folder"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            Store.open(tmp_path / f"{name}.db")


def test_a_new_database_in_a_folder_that_is_missing(tmp_path, capsys):
    assert main(["collect", "init", str(tmp_path / "no" / "such" / "a.db")]) == 1
    assert f"there is no folder {tmp_path}/no/such; make it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_process_that_writes_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("tether.collect.engine.BUSY_TIMEOUT_S", 0)
    with small_store(tmp_path / "x.db") as store:
        store.engine.dispose()
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"another process has been writing .* end it, or try again"):
            store.add_annotator("Bo")
        other.close()


_CODES = [
    ("SQLITE_READONLY", StoreError, "may not read and write it there"), ("SQLITE_CANTOPEN", StoreError, "copy the file"),
    ("SQLITE_FULL", StoreFull, "no space is left"), ("SQLITE_CORRUPT", StoreDamaged, "is damaged"),
    ("SQLITE_IOERR", StoreError, "disk failed"),
    ("SQLITE_IOERR_SHORT_READ", StoreDamaged, "is damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind", "said"), _CODES)
def test_the_words_of_sqlite_become_ours(tmp_path, code, kind, said):
    with small_store(tmp_path / "x.db") as store:
        fault = sqlite3.OperationalError("as SQLite says")
        fault.sqlite_errorcode = getattr(sqlite3, code)
        with pytest.raises(kind, match=said), reading(store.engine):
            raise sa.exc.OperationalError("SELECT", None, fault)


_AS_NOBODY = """
import os, sys
sys.path[:0] = {path!r}
from tether.collect.store import Store
from tether.collect.settings import Settings
from tether.errors import StoreError
os.setgid(65534)
os.setuid(65534)
def attempt(name, act):
    try:
        act()
    except StoreError as error:
        print(name, error)
    else:
        print(name, "done")
attempt("open", lambda: Store.open({place!r}).annotators())
attempt("write", lambda: Store.open({place!r}).add_annotator("Bo"))
attempt("create", lambda: Store.create({beside!r}, Settings()))
"""


_MODES = [(0o777, 0o600, "open write"), (0o755, 0o644, "write create"), (0o777, 0o444, "write")]


@pytest.mark.parametrize(("folder_mode", "file_mode", "ways"), _MODES)
def test_files_and_folders_that_are_closed(tmp_path, folder_mode, file_mode, ways):
    """As another user, since root may write everywhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    folder = Path(tempfile.mkdtemp())
    try:
        with small_store(folder / "x.db"):
            pass
        settle(folder / "x.db")
        folder.chmod(folder_mode)
        (folder / "x.db").chmod(file_mode)
        code = _AS_NOBODY.format(path=sys.path, place=str(folder / "x.db"), beside=str(folder / "y.db"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
        told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        for way in ways.split():
            assert "may not read and write it there" in told[way]
            assert "copy the file" in told[way]
    finally:
        shutil.rmtree(folder)
