"""R21 through the page's server: whatever was answered with 200 is in the database once, after kill -9 at any moment and on a full disk.

Rounds: 1 here, 50 in the slow form. Four annotators judge five times a second each, as their pages would: a judgement without an answer is
sent again, with its id, to the next server.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from web_tools import Desktop, collection, judgement, next_item, post

from tether.collect.engine import sqlalchemy as sa
from tether.collect.store import Store

NAMES = ("Ann", "Ben", "Cleo", "Dora")
SRC = Path(__file__).resolve().parents[2] / "src"


@contextmanager
def _served(database: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The real command in a process of its own, with the path of each annotator's link."""
    command = [sys.executable, "-m", "tether", "collect", "serve", str(database), "--port", str(port)]
    command += [word for name in NAMES for word in ("--annotator", name)]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        links = {}
        while len(links) < len(NAMES):
            line = process.stdout.readline()
            assert line, "the server ended before it told its links"
            if line.startswith("For "):
                links[line.partition(",")[0][4:]] = process.stdout.readline().strip().partition(str(port))[2]
        yield process, links
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Writer(threading.Thread):
    """One annotator's page. State: what was acknowledged, and what waits for an answer."""

    def __init__(self, port: int, link: str, waiting: list[dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self.port, self.link, self.waiting = port, link, waiting
        self.acknowledged: list[str] = []

    def run(self) -> None:
        with suppress(OSError, http.client.HTTPException), closing(self._connect()) as connection:  # until the server is gone
            connection.request("GET", self.link)
            cookie = _answered(connection).headers["Set-Cookie"].partition(";")[0]
            self.own = {"Origin": f"http://127.0.0.1:{self.port}", "X-Tether": "1", "Content-Type": "application/json", "Cookie": cookie}
            while True:
                if not self.waiting:
                    self.waiting.append(judgement(self._post(connection, "next", {})["item"], "tie"))
                self._post(connection, "judgements", self.waiting[0])
                self.acknowledged.append(self.waiting.pop()["judgement_id"])
                time.sleep(0.2)

    def _connect(self) -> http.client.HTTPConnection:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def _post(self, connection: http.client.HTTPConnection, what: str, body: Any) -> Any:
        connection.request("POST", f"/api/{what}", json.dumps(body), self.own)
        answer = _answered(connection)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)


def _answered(connection: http.client.HTTPConnection) -> Any:
    answer = connection.getresponse()
    answer.body = answer.read()
    return answer


def _kill(database: Path, rounds: int) -> list[str]:
    """Start, write, kill -9; the ids of all judgements that were acknowledged."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    moments, acknowledged = random.Random(7), []
    waiting: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        with _served(database, port) as (process, links):
            writers = [Writer(port, links[name], waiting[name]) for name in NAMES]
            for writer in writers:
                writer.start()
            before = time.monotonic()
            while not all(writer.acknowledged for writer in writers) and time.monotonic() < before + 60:
                time.sleep(0.02)
            time.sleep(moments.uniform(0, 1.5))
            process.kill()
            for writer in writers:
                writer.join(timeout=60)
                assert not writer.is_alive()
                assert writer.acknowledged
                acknowledged += writer.acknowledged
    return acknowledged


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_kill_minus_nine_loses_nothing_that_was_acknowledged(tmp_path, rounds):
    database = tmp_path / "a.db"
    collection(database, 1000).close()
    acknowledged = _kill(database, rounds)
    assert len(acknowledged) == len(set(acknowledged))
    with Store.open(database) as store:
        stored = [one.judgement_id for one in store.judgements(include_withdrawn=True)]
        items = [(one.annotator, one.item_id) for one in store.judgements()]
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
    assert len(items) == len(set(items))
    assert len(stored) - len(acknowledged) <= len(NAMES)  # each has at most one that was stored while its answer was on the way
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_full_disk_is_507_and_what_was_acknowledged_stays(tmp_path):
    store = collection(tmp_path / "a.db", 60)
    desk = Desktop(store)
    browser = desk.annotator()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        limit = [connection.execute("PRAGMA page_count").fetchone()[0] + 6]
    sa.event.listen(store._engine, "checkout", lambda raw, *_: raw.execute(f"PRAGMA max_page_count = {limit[0]}").close())
    acknowledged, refused = [], None
    while refused is None:
        sent = judgement(next_item(browser), "tie", comment="long " * 700)
        answer = post(browser, "/api/judgements", sent)
        if answer.status_code == 200:
            acknowledged.append(sent["judgement_id"])
        else:
            refused = sent
    assert answer.status_code == 507
    assert acknowledged
    assert [one.judgement_id for one in store.judgements()] == acknowledged
    limit[0] = 10**6
    assert post(browser, "/api/judgements", refused).status_code == 200
    assert [one.judgement_id for one in store.judgements()] == [*acknowledged, refused["judgement_id"]]
