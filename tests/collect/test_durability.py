"""Killed writers, two writers on one item, a full disk: what was acknowledged is there once, and the file is sound (R21)."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
from kill_tools import survives
from small_collection import gives_different_items, said, small_store

from tether.collect.judgement import Choice, Judgement
from tether.collect.store import Store
from tether.errors import StoreConflict, StoreFull


def integrity(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        checks = ("PRAGMA integrity_check", "PRAGMA foreign_key_check")
        return [str(row[0]) for check in checks for row in connection.execute(check)]
    finally:
        connection.close()


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path, kills):
    path = tmp_path / "x.db"
    small_store(path, num_items=40 * kills, overlap=0.0).close()
    survives(str(path), kills, 0.8)
    assert integrity(path) == ["ok"]


def test_two_annotators_on_one_item_lose_no_word(tmp_path):
    """Twelve annotators judge the same item at one moment, each over a connection of its own."""
    path = tmp_path / "x.db"
    with small_store(path, num_items=1, overlap=1.0, judgements_per_overlap_item=12) as store:
        names = ["a1", *(store.add_annotator(f"n{i}").id for i in range(11))]
        barrier, errors = threading.Barrier(len(names)), []

        def judge(annotator: str) -> None:
            with Store.open(path) as own:
                shown = own.next_item(annotator)
                barrier.wait()
                try:
                    own.record(said(shown, annotator))
                except Exception as error:  # told below
                    errors.append(error)

        threads = [threading.Thread(target=judge, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(judgement.annotator for judgement in store.judgements()) == sorted(names)
        (state,) = store.item_states()
        assert (state.judged, state.wanted) == (12, 12)
        assert store.progress("a1").open == 0


def test_one_annotator_in_two_windows_gives_one_word(tmp_path):
    with small_store(tmp_path / "x.db", num_items=1) as one, Store.open(tmp_path / "x.db") as two:
        first, second = one.next_item("a1"), two.next_item("a1")
        assert first == second
        one.record(said(first, judgement_id="left window"))
        with pytest.raises(StoreConflict, match="has judged the item"):
            two.record(said(second, judgement_id="right window", choice=Choice.SECOND))
        assert [judgement.judgement_id for judgement in two.judgements()] == ["left window"]


def test_items_given_out_at_one_moment_are_different(tmp_path):
    gives_different_items(tmp_path / "x.db")


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    """A file system of 1 MiB. Needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        acknowledged = []
        with small_store(folder / "x.db", num_items=300, overlap=0.0) as store:
            with pytest.raises(StoreFull):  # noqa: PT012  the loop is what fills the disk
                for i in range(300):
                    word = Judgement(f"j{i}", f"i{i}", "a1", Choice.FIRST, (f"a{i}.0", f"a{i}.1"), comment="long " * 1000)
                    acknowledged.append(store.record(word))
            assert acknowledged
            assert list(store.judgements()) == acknowledged
        with Store.open(folder / "x.db") as store:
            assert list(store.judgements()) == acknowledged
        assert integrity(folder / "x.db") == ["ok"]
    finally:
        subprocess.run(["umount", str(folder)], check=True)
