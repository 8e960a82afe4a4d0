"""The same store on PostgreSQL: a real server of this machine, started for these tests in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_tools import survives
from small_collection import gives_different_items, judge_all, said, small_store

from tether.collect import engine
from tether.collect.engine import reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.exchange.dump import dump, load
from tether.collect.exchange.export import export_rows
from tether.collect.exchange.rule import Rule
from tether.collect.settings import Settings, Strategy
from tether.collect.store import Store
from tether.errors import StoreConflict, StoreError, StoreFull

pytestmark = pytest.mark.slow


def _binary(name: str) -> str | None:
    """On the path, or where Debian keeps it."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(debian[-1]) if debian else None)


def _as_server_user() -> dict:
    """PostgreSQL refuses to run as root: the user postgres or nobody takes its place."""
    if os.getuid() != 0:
        return {}
    import pwd

    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("running as root, and there is no user postgres or nobody to run a server as")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """URL without a database."""
    initdb, postgres = _binary("initdb"), _binary("postgres")
    if initdb is None or postgres is None:
        pytest.skip("there is no PostgreSQL server on this machine (apt-get install postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (pip install 'tether[postgres]')")
    who = _as_server_user()
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True, **who).stdout.strip())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = [initdb, "-D", str(folder / "data"), "-U", "tether", "-A", "trust", "-E", "UTF8"]
    subprocess.run(cluster, check=True, capture_output=True, cwd=folder, **who)
    command = [postgres, "-D", str(folder / "data"), "-k", str(folder), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **who)
    try:
        url = f"postgresql://tether@127.0.0.1:{port}"
        _wait_for(port)
        yield url
    finally:
        process.send_signal(signal.SIGINT)  # a fast shutdown
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(0.5)
                return
        time.sleep(0.1)
    raise AssertionError("the server did not come up in 30 s")


@pytest.fixture
def url(server, request) -> str:
    """A database of its own."""
    import psycopg

    name = "t" + "".join(letter for letter in request.node.name.lower() if letter.isalnum())[:50]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


def test_the_whole_life_of_a_collection(url):
    with small_store(url, num_items=20, strategy=Strategy.UNCERTAINTY, overlap=0.3, held_out_share=0.0) as store:
        store.add_annotator("Bo")
        store.set_scores("m", {f"a{i}.{k}": i * k / 5 for i in range(20) for k in (0, 1)})
        shown = store.next_item("a1")
        assert store.next_item("a1") == shown
        sent = said(shown, comment="'; DROP TABLE tether_items; --")
        assert store.record(sent) == store.record(sent)
        with pytest.raises(StoreConflict):
            store.record(said(shown, judgement_id="other"))
        assert store.undo("a1").judgement_id == sent.judgement_id
        assert store.next_item("a1") == shown
        store.record(said(shown, judgement_id="again"))
        judge_all(store, "a1")
        judge_all(store, "a2")
        assert all(state.judged == state.wanted for state in store.item_states())
        assert len(list(export_rows(store, Rule()))) == 20
        assert store.progress("a2").open == 0


def test_sqlite_and_postgresql_give_the_same_items_in_the_same_order(url, tmp_path):
    options = {"num_items": 25, "strategy": Strategy.UNCERTAINTY, "seed": 9, "overlap": 0.0}
    with small_store(url, **options) as one, small_store(tmp_path / "x.db", **options) as two:
        for store in (one, two):
            store.set_scores("m", {f"a{i}.{k}": (i * 7 % 25) * k / 5 for i in range(25) for k in (0, 1)})
        assert judge_all(one) == judge_all(two)


def test_a_dump_moves_between_the_two_kinds(url, tmp_path):
    with small_store(tmp_path / "x.db", num_items=5) as store:
        judge_all(store)
        store.undo("a1")
        dump(store, tmp_path / "one.jsonl")
    with load(url, tmp_path / "one.jsonl") as store:
        dump(store, tmp_path / "two.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_what_is_there_already_and_what_is_not_ours(url, server):
    with pytest.raises(StoreError, match="no database of judgements"):
        Store.open(url)
    small_store(url, num_items=1).close()
    with pytest.raises(StoreError, match="already; open it"):
        Store.create(url, Settings())
    Store.open(url).close()  # the refusal left it alone
    with pytest.raises(StoreError, match="refused"):
        Store.open(f"{server}/nothing")


def test_a_killed_writer_loses_nothing_it_acknowledged(url):
    small_store(url, num_items=200, overlap=0.0).close()
    survives(url, 3, 0.8)


def test_items_given_out_at_one_moment_are_different(url):
    gives_different_items(url)


def test_another_process_that_writes_for_long(url, monkeypatch):
    import psycopg

    with small_store(url) as store, psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [engine._WRITE_LOCK])
        monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
        with pytest.raises(StoreError, match=r"another process has been writing for 0.2 s; end it, or try again"):
            store.add_annotator("Bo")
        assert len(store.annotators()) == 1  # who reads waits for nobody
        other.execute("SELECT pg_advisory_unlock_all()")
        store.add_annotator("Bo")


def test_a_full_disk_says_so(url):
    """The server's own error, raised by hand: its disk is not ours to fill."""
    with small_store(url, num_items=1) as store, pytest.raises(StoreFull, match="no space is left"), reading(store.engine) as connection:
        connection.execute(sa.text("DO $$ BEGIN RAISE EXCEPTION 'disk' USING ERRCODE = '53100'; END $$"))


def test_a_message_shows_no_password(url):
    with pytest.raises(StoreError) as caught:
        Store.open("postgresql://tether:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)
