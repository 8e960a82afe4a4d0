"""R4, R10, R12, R13: a disk that is full for real, saves in the background, modes of files, and the estimate before the first step."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from crash_tools import INPUTS, assert_is, newest, state_of
from safetensors import SafetensorError
from small_runs import make_config, sections_of
from torch import nn

from tether.backends.local import LocalWorker
from tether.config import OptimConfig
from tether.errors import CheckpointError, ModelError
from tether.models.files import writing_into
from tether.run.checkpoint import CheckpointStore, checkpoint_bytes, read_checkpoint
from tether.run.keeper import StageKeeper
from tether.run.signals import StopSignal
from tether.state import State

MIB = 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system of our own here: {done.stderr.strip() or 'mount is not permitted'}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def large(number: int, num_bytes: int = 12 * MIB) -> State:
    return State({"weights/w": torch.full((num_bytes // 4,), float(number))}, {"n": number})


@pytest.mark.parametrize("looks_first", [True, False], ids=["known-before", "found-out"])
def test_R4_a_full_disk_costs_the_second_checkpoint_and_nothing_else(small_disk, looks_first, monkeypatch):
    if not looks_first:  # a quota, or another process that is quicker: the space was there when we looked
        monkeypatch.setattr("tether.run.checkpoint.free_bytes", lambda folder: 10**12)
    store = CheckpointStore(small_disk / "checkpoints")
    store.save(1, large(1), INPUTS)
    free = shutil.disk_usage(small_disk).free
    with pytest.raises(CheckpointError, match=r"checkpoints.*needs? [\d,]+ bytes and [\d,]+ are free"):
        store.save(2, large(2), INPUTS)
    assert shutil.disk_usage(small_disk).free == free
    found = store.latest()
    assert found is not None
    assert found.step == 1
    assert torch.equal(found.load().tensors["weights/w"], large(1).tensors["weights/w"])


def test_R12_too_little_room_is_said_before_the_first_step(small_disk):
    with pytest.raises(CheckpointError, match=r"2 checkpoint\(s\) need [\d,]+ bytes .*lower checkpoint.keep"):
        CheckpointStore(small_disk / "checkpoints").require_space(12 * MIB, 2)
    CheckpointStore(small_disk / "checkpoints").require_space(7 * MIB, 2)


def test_R12_a_folder_that_cannot_be_written_is_said_before_the_first_step(small_disk):
    done = subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no read-only file system of our own here")
    with pytest.raises(CheckpointError, match=r"cannot be written to \(.*Read-only file system.*choose another output="):
        CheckpointStore(small_disk / "checkpoints").require_space(1)


def test_R12_a_file_where_the_folder_should_be_is_said_before_the_first_step(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        CheckpointStore(tmp_path / "checkpoints").require_space(1)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_R12_modes_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        CheckpointStore(tmp_path / "c").save(1, state_of(1), INPUTS)
    finally:
        os.umask(before)
    made = tmp_path / "c" / "step-00000001"
    assert {stat.S_IMODE(file.stat().st_mode) for file in made.iterdir()} == {0o666 & ~mask}
    assert stat.S_IMODE(made.stat().st_mode) == 0o777 & ~mask
    assert {(file.stat().st_uid, file.stat().st_gid) for file in made.iterdir()} == {(os.getuid(), os.getgid())}


@pytest.mark.parametrize("state", [state_of(1), large(1), State({}, {"values": list(range(999))})], ids=["small", "large", "text"])
def test_R13_the_estimate_is_within_a_tenth_of_the_files(tmp_path, state):
    made = CheckpointStore(tmp_path).save(1, state, INPUTS)
    real = sum(file.stat().st_size for file in made.iterdir())
    assert checkpoint_bytes(state) == pytest.approx(real, rel=0.1, abs=2048)


def test_R13_before_the_first_step_the_moments_to_come_are_counted(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(CheckpointStore, "require_space", lambda self, num_bytes, copies: told.append((num_bytes, copies)))
    model = nn.Sequential(nn.Linear(200, 100), nn.Linear(100, 200))
    worker = LocalWorker([model], OptimConfig(), 4)
    keeper = StageKeeper(CheckpointStore(tmp_path, 2), 1, 9, {}, StopSignal(), print, asynchronous=False)
    keeper.attach({"worker": worker})
    worker.accumulate(model(torch.ones(1, 200)).sum())
    worker.step()
    keeper.after_step(1)
    real = sum(file.stat().st_size for file in (tmp_path / "step-00000001").iterdir())
    assert told == [(pytest.approx(real, rel=0.1), 3)]


# -- in the background -------------------------------------------------------------------------------------------------------


def test_R10_what_the_next_step_does_is_not_in_the_file(tmp_path):
    state = State({"weights/w": torch.zeros(MIB)}, {"list": [1]})
    in_background, at_once = CheckpointStore(tmp_path / "a"), CheckpointStore(tmp_path / "b")
    at_once.save(1, state, INPUTS)
    for _ in range(5):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        state.tensors["weights/w"].zero_()
        state.values["list"][:] = [1]
        in_background.save(1, state, INPUTS, wait=False)
        state.tensors["weights/w"].add_(1)  # the optimiser, at once
        state.values["list"].append(2)
        in_background.join()
        for name in ("weights.safetensors", "values.json", "manifest.json"):
            assert (tmp_path / "a/step-00000001" / name).read_bytes() == (tmp_path / "b/step-00000001" / name).read_bytes()


def test_R10_whoever_looks_meanwhile_sees_whole_checkpoints_only(tmp_path):
    store, over, wrong = CheckpointStore(tmp_path, keep=1), threading.Event(), []

    def look():
        while not over.wait(0.001):
            names = list(tmp_path.glob("step-*"))
            for path in names:
                try:
                    json.loads((path / "manifest.json").read_text())
                    read_checkpoint(path)
                except (OSError, CheckpointError):
                    if path.exists():  # one that has just been retired has no name any more
                        wrong.append(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for step in range(1, 40):
            store.save(step, large(step, MIB // 4), INPUTS, wait=False)
        store.join()
    finally:
        over.set()
        watcher.join()
    assert wrong == []
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000039"]


def test_numbers_that_are_not_finite_are_kept(tmp_path):
    CheckpointStore(tmp_path).save(1, State({}, {"metrics": {"loss": float("nan"), "kl": float("inf")}}), INPUTS)
    found = CheckpointStore(tmp_path).latest()
    assert found is not None
    assert str(found.load().values) == "{'metrics': {'loss': nan, 'kl': inf}}"


def test_a_save_in_flight_is_waited_for_by_the_next(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2, 3):
        store.save(step, state_of(step), INPUTS, wait=False)
    store.join()
    assert newest(tmp_path) == 3
    assert_is(read_checkpoint(tmp_path / "step-00000001").load(), 1)


# -- models: a stage writes its own when it is done ---------------------------------------------------------------------------


FULL = "No space left on device"


@pytest.mark.parametrize("failure", [SafetensorError(f"I/O error: {FULL}"), OSError(errno.ENOSPC, FULL)])
def test_what_cannot_be_written_is_one_error_with_the_free_bytes(tmp_path, failure):
    told = rf"sft cannot be written \(.*{FULL}.*\); [\d,]+ bytes are free there"
    with pytest.raises(ModelError, match=told), writing_into(tmp_path / "sft"):
        raise failure


@pytest.mark.slow
@pytest.mark.parametrize("kib", [40, 150, 300])
def test_a_model_that_does_not_fit_is_one_error_and_the_run_goes_on_when_there_is_room(tmp_path, kib):
    """The whole run on a file system that is too small for what it writes, by the command line: no traceback, wherever it ends."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system of our own here")
    try:
        sections, stage, _ = sections_of("sft", tmp_path)
        config = make_config(tmp_path, **sections) | {"output": str(place / "runs"), "checkpoint": {"every": 0}}
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "tether", "run", str(file), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "No space left" in done.stderr or "are free" in done.stderr
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        assert subprocess.run(command, capture_output=True, check=False, timeout=240).returncode == 0
        assert (place / "runs" / "t" / stage / "stage.json").exists()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
