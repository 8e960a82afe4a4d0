"""The page of a run that is still being written."""

from __future__ import annotations

import shutil
import threading

import pytest

from tether.errors import RunError
from tether.watch.live import Live


class Clock:
    """Goes on when told. State: the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_built_again_only_when_a_file_changed(running):
    running.go(2)
    live = Live(running.folder)
    first = live.snapshot()
    assert live.snapshot() is first
    running.go()
    second = live.snapshot()
    assert second.version != first.version
    assert second.state == "Live: rl.ppo, step 3 of 40."


def test_a_page_that_is_slow_to_build_is_kept_for_longer(running):
    clock = Clock()
    live = Live(running.folder, clock)
    running.go()
    built = live.snapshot()
    running.go()
    assert live.snapshot() is built
    clock.now += 10
    assert live.snapshot() is not built


def test_a_line_that_is_half_written_waits(running):
    running.go(2)
    live = Live(running.folder)
    with (running.folder / "events.jsonl").open("a") as log:
        log.write('{"kind": "step", "stage": "rl.ppo", "step": 3, "metr')
        log.flush()
        assert live.snapshot().state == "Live: rl.ppo, step 2 of 40."
        log.write('ics": {"reward": 1.0}}\n')
    live._not_before = 0.0
    assert live.snapshot().state == "Live: rl.ppo, step 3 of 40."


def test_end_of_the_run_and_of_its_folder(running):
    running.go()
    live = Live(running.folder)
    running.end()
    assert live.snapshot().state.startswith("The run is finished")
    shutil.rmtree(running.folder)
    live._not_before = 0.0
    gone = live.snapshot()
    assert "The run is gone" in gone.state
    assert "Reward against KL" in gone.main


def test_no_run_is_an_error_at_once(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        Live(tmp_path / "nothing")


def test_many_readers_of_a_growing_log(running):
    live, failed = Live(running.folder), []

    def read() -> None:
        try:
            for _ in range(15):
                live._not_before = 0.0
                assert "<main>" in live.snapshot().main
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    running.go(20)
    for reader in readers:
        reader.join()
    assert failed == []
