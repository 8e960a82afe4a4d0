"""R3, R8, R9, R12, R18, R19 on whole runs: failing saves by setting, two processes, signals, repeats, clocks."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from crash_tools import in_a_child
from small_runs import Crash, CrashAt, assert_same, figures, make_config, resumed_after, sections_of, turn

from tether import events as events_module
from tether.config import RunConfig
from tether.errors import CheckpointError, Interrupted, RunError
from tether.events import read_events
from tether.progress import choose_progress
from tether.records import write_jsonl
from tether.run import checkpoint as checkpoints
from tether.run.observer import Quiet
from tether.run.pipeline import run
from tether.run.signals import StopSignal


def config_of(kind: str, folder: Path, **changed) -> RunConfig:
    return RunConfig.model_validate(make_config(folder, **sections_of(kind, folder)[0]) | changed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of SFT that nothing disturbed."""
    return run(config_of("sft", tmp_path_factory.mktemp("whole"))).folder


# -- R3, R12 -----------------------------------------------------------------------------------------------------------------


def no_space(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("asynchronous", [True, False])
def test_R3_a_save_that_fails_stops_the_run_or_is_passed_over_by_setting(whole, tmp_path, monkeypatch, asynchronous):
    monkeypatch.setattr(checkpoints, "save_file", no_space)
    settings = {"every": 2, "asynchronous": asynchronous}
    with pytest.raises(CheckpointError, match=r"step-00000002 could not be written \(.*No space left.* needs [\d,]+ bytes and [\d,]+ are"):
        run(config_of("sft", tmp_path, checkpoint=settings))
    folder = run(config_of("sft", tmp_path, checkpoint={**settings, "on_failure": "continue"}, name="on")).folder
    warned = [event["text"] for event in read_events(folder / "events.jsonl") if event["kind"] == "warning"]
    assert len(warned) == 3  # of 8 steps
    assert "No space left on device" in warned[0]
    assert_same(whole, folder, "sft")


def test_R3_a_stop_that_cannot_save_is_an_error_whatever_the_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "save_file", no_space)
    config = config_of("sft", tmp_path, checkpoint={"every": 0, "on_failure": "continue"})
    assert in_a_child(lambda: raises(CheckpointError, lambda: run(config, observer=Sends("sft", 3, signal.SIGTERM)))) == 0


def test_R12_an_output_that_cannot_be_written_is_said_before_anything_is_trained(tmp_path):
    (tmp_path / "file").write_text("")
    seen = []

    class Sees(Quiet):
        def step(self, stage, step, metrics):
            seen.append(step)

    with pytest.raises(RunError, match=r"cannot be used as a run folder .*choose another output="):
        run(config_of("sft", tmp_path, output=str(tmp_path / "file")), observer=Sees())
    assert seen == []


# -- R8 ----------------------------------------------------------------------------------------------------------------------


def test_R8_a_second_process_is_refused_by_name_and_a_dead_ones_lock_is_taken_over(whole, tmp_path):
    config = config_of("sft", tmp_path, checkpoint={"every": 2, "asynchronous": False})
    beginning, end = os.pipe()

    def holds():
        class Waits(Quiet):
            def step(self, stage, step, metrics):
                if step == 3:
                    os.write(end, b"x")
                    time.sleep(600)

        run(config, observer=Waits())

    pid = os.fork()
    if pid == 0:
        try:
            holds()
        finally:
            os._exit(1)
    assert os.read(beginning, 1) == b"x"
    began = time.monotonic()
    with pytest.raises(RunError, match=rf"t is in use by process {pid} on .*: wait for it, stop it, or choose another name="):
        run(config)
    assert time.monotonic() - began < 2
    with pytest.raises(RunError, match="in use"):
        run(config, fresh=True)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    folder = run(config).folder
    assert resumed_after(folder) == [2]
    assert_same(whole, folder, "sft")


def test_R8_the_lock_holds_while_fresh_moves_the_folder_away(tmp_path):
    config = config_of("sft", tmp_path)
    run(config)
    refused = []

    class Tries(Quiet):
        def step(self, stage, step, metrics):
            if step == 1:
                with pytest.raises(RunError, match="in use"):
                    run(config)
                refused.append(step)

    run(config, observer=Tries(), fresh=True)
    assert refused == [1]
    assert (config.folder.parent / "t.old1").is_dir()


def test_R8_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with caplog.at_level(logging.WARNING):
        run(config_of("sft", tmp_path))
    assert "cannot be locked" in caplog.text


# -- R9 ----------------------------------------------------------------------------------------------------------------------


class Sends(Quiet):
    """Sends signals to this process when a stage reports a step."""

    def __init__(self, stage: str, step: int, *signals: int) -> None:
        self.at, self.signals = (stage, step), signals

    def step(self, stage, step, metrics):
        if (stage, step) == self.at:
            for number in self.signals:
                os.kill(os.getpid(), number)



def raises(kind, work, status=None):
    with pytest.raises(kind) as raised:
        work()
    assert status is None or raised.value.status == status


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_R9_the_first_signal_saves_after_the_present_step_and_ends_with_its_status(whole, tmp_path, number, status):
    config = config_of("sft", tmp_path, checkpoint={"every": 0})
    assert in_a_child(lambda: raises(Interrupted, lambda: run(config, observer=Sends("sft", 5, number)), status)) == 0
    saved = config.folder / "checkpoints" / "sft"
    assert [path.name for path in saved.iterdir()] == ["step-00000005"]
    folder = run(config).folder
    assert resumed_after(folder) == [5]
    assert_same(whole, folder, "sft")


def test_R9_the_second_signal_ends_at_once(whole, tmp_path):
    config = config_of("sft", tmp_path)
    assert in_a_child(lambda: run(config, observer=Sends("sft", 5, signal.SIGTERM, signal.SIGTERM))) == 143
    folder = run(config).folder
    assert resumed_after(folder) in ([2], [4])  # what was being written in the background may not have come to its end
    assert_same(whole, folder, "sft")


def test_R9_outside_of_a_loop_the_first_signal_ends_the_run_there(tmp_path):
    evaluate = {"prompts": {"path": str(tmp_path / "held.jsonl")}, "score": "plainspoken", "sampling": {"max_new_tokens": 4}}
    write_jsonl(tmp_path / "held.jsonl", [{"prompt_id": f"h{i}", "prompt": turn(f"Tell {i}!")} for i in range(4)])
    config = config_of("grpo", tmp_path, evaluate=evaluate)
    assert in_a_child(lambda: raises(Interrupted, lambda: run(config, observer=Sends("evaluate", 1, signal.SIGTERM)), 143)) == 0
    assert not (config.folder / "evaluation.json").exists()
    assert run(config).evaluation is not None


def test_R9_a_signal_in_the_middle_of_a_print_is_taken_all_the_same():
    def busy(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    with StopSignal(busy) as stop:
        stop.hold()
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        with pytest.raises(Interrupted):
            stop.release()


def test_R19_a_reader_that_is_gone_or_does_not_read_never_holds_up_the_run(whole, tmp_path):
    gone, full = os.pipe(), os.pipe()
    os.close(gone[0])
    os.set_blocking(full[1], False)
    with suppress(BlockingIOError):
        while True:
            os.write(full[1], b"x" * 4096)
    os.set_blocking(full[1], True)
    for name, end in (("gone", gone[1]), ("full", full[1])):
        stream = os.fdopen(end, "w")
        with choose_progress(False, stream) as progress:
            progress.message("y" * 5000)
            folder = run(config_of("sft", tmp_path, name=name), observer=progress).folder
            assert_same(whole, folder, "sft")
        with suppress(BrokenPipeError):
            stream.close()
    os.close(full[0])


# -- R18, R19 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_R18_the_same_seed_gives_the_same_file_of_metrics(kind, tmp_path):
    one, two = (run(config_of(kind, tmp_path, name=name)).folder for name in ("one", "two"))
    assert json.dumps(figures(one)) == json.dumps(figures(two))


def test_R19_a_clock_that_jumps_and_a_changed_time_zone_change_nothing(whole, tmp_path, monkeypatch):
    class Jumps(datetime):
        calls = 0

        @classmethod
        def now(cls, tz=None):
            cls.calls += 1
            return datetime.fromtimestamp(1.8e9, tz or UTC) + timedelta(hours=cls.calls % 3 - 1)

    class Travels(Quiet):
        def step(self, stage, step, metrics):
            os.environ["TZ"] = ("Asia/Kolkata", "America/Los_Angeles")[step % 2]
            time.tzset()

    jumps = iter(range(10**6))
    monkeypatch.setattr(events_module, "datetime", Jumps)
    monkeypatch.setattr(time, "time", lambda: 1.8e9 + 3600 * (next(jumps) % 3 - 1))
    monkeypatch.setenv("TZ", "UTC")
    config = config_of("sft", tmp_path)
    with pytest.raises(Crash):
        run(config, observer=CrashAt("sft", 5))
    folder = run(config, observer=Travels()).folder
    monkeypatch.undo()
    time.tzset()
    assert Jumps.calls > 8
    assert_same(whole, folder, "sft")
