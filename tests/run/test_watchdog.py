"""R14: a part that hangs is named with its stack within its limit; a run that goes on is left alone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tether.config import RunConfig
from tether.events import read_events
from tether.pulse import beat
from tether.records import write_jsonl
from tether.rewards import rubric
from tether.run.pipeline import run
from tether.run.watchdog import HANG_STATUS, Watchdog, stacks


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_r14_a_part_that_hangs_is_named_with_its_stack(caplog):
    with Watchdog(0.2):
        beat("reward part 'judge'")
        assert wait_for(lambda: "stuck in" in caplog.text)
    assert "stuck in reward part 'judge'; the run goes on waiting" in caplog.text
    assert ".wait_for:" in caplog.text
    assert __file__ not in caplog.text  # modules, no paths


def test_it_speaks_once_of_each_hang_and_again_of_the_next(caplog):
    with Watchdog(0.05):
        for part in ("one", "two"):
            beat(part)
            assert wait_for(lambda part=part: f"stuck in {part};" in caplog.text)
            time.sleep(0.2)
    assert caplog.text.count("stuck in one;") == caplog.text.count("stuck in two;") == 1


def test_beats_keep_it_quiet_and_it_leaves_no_thread(caplog):
    before = threading.active_count()
    with Watchdog(30.0):
        for number in range(100):
            beat(f"step {number}")
    assert "stuck" not in caplog.text
    assert threading.active_count() == before


def test_switched_off_it_starts_no_thread():
    with Watchdog(None):
        assert "tether-watchdog" not in [thread.name for thread in threading.enumerate()]


def test_by_setting_the_process_is_stopped():
    code = "import logging, time; from tether.run.watchdog import Watchdog\nlogging.basicConfig()\n"
    code += "from tether.pulse import beat\nwith Watchdog(0.2, stops=True):\n    beat('a worker')\n    time.sleep(100)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == HANG_STATUS
    assert "stuck in a worker; the run is stopped" in done.stderr


def test_a_run_that_hangs_in_a_reward_says_so_in_its_log(tmp_path, monkeypatch):
    """The whole way: the part begins, hangs, is named in the run's events, and the run ends well."""
    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": f"Say {i}."} for i in range(4)])
    stage = {"kind": "grpo", "prompts": {"path": str(tmp_path / "prompts.jsonl")}, "steps": 1, "prompts_per_step": 2,
             "samples_per_prompt": 2, "sampling": {"max_new_tokens": 4},
             "rewards": [{"kind": "format", "params": {"pattern": "a"}}]}  # fmt: skip
    config = {"name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
              "hang_limit_s": 0.5, "rl": {"a": stage}}  # fmt: skip
    events, honest = tmp_path / "runs" / "t" / "events.jsonl", rubric._checked

    def hanging(name, result):
        assert wait_for(lambda: "stuck in reward part" in events.read_text())
        return honest(name, result)

    monkeypatch.setattr(rubric, "_checked", hanging)
    run(RunConfig.model_validate(config))
    told = [event["text"] for event in read_events(events) if event["kind"] == "warning"]
    assert any("stuck in reward part" in text and "rubric.score_part" in text for text in told)


def test_other_threads_are_told_by_name():
    hold = threading.Event()
    thread = threading.Thread(target=hold.wait, name="verifier-3")
    thread.start()
    try:
        assert "thread verifier-3: " in stacks()
    finally:
        hold.set()
        thread.join()


@pytest.mark.parametrize(("written", "meant"), [({}, 1800.0), ({"hang_limit_s": "off"}, None), ({"hang_limit_s": 5}, 5.0)])
def test_the_limit_is_generous_unless_set(written, meant):
    config = RunConfig.model_validate({"sft": {"data": {"path": "x.jsonl"}}, **written})
    assert config.hang_limit_s == meant
    assert RunConfig.model_validate(config.model_dump(mode="json")).hang_limit_s == meant
