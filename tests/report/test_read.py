"""Reading what a run left, whole or damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tether.errors import RunError
from tether.events import EventLog
from tether.report.read import read_run


def test_finished_run_is_read_whole(make_run):
    run = read_run(make_run())
    assert (run.name, run.state, run.problems) == ("toy", "finished", ())
    assert [stage.name for stage in run.stages] == ["sft", "reward_model", "rl.ppo", "rl.grpo"]
    assert all(stage.done and stage.num_steps == 4 for stage in run.stages)
    assert run.stage("rl.ppo").curves["reward"] == ((1, 0.51), (2, 0.52), (3, 0.53), (4, 0.54))
    assert run.stage("sft").summary["demonstrations"] == 7
    assert [p.name for p in run.evaluation.policies] == ["start", "ppo", "grpo"]
    assert run.evaluation.gain_of("ppo").excludes_zero
    assert not run.evaluation.gain_of("grpo").excludes_zero


def test_a_stage_that_started_again_replaces_its_first_attempt(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    for rewards in ([9.0, 9.0, 9.0], [1.0, 2.0]):
        log.write("stage_started", stage="rl.a", num_steps=3)
        for step, reward in enumerate(rewards, start=1):
            log.write("step", stage="rl.a", step=step, metrics={"reward": reward})
    log.close()
    assert read_run(tmp_path).stage("rl.a").curves["reward"] == ((1, 1.0), (2, 2.0))


def test_a_stage_that_goes_on_from_a_checkpoint_keeps_the_steps_before_it(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    for done, rewards in ((0, [1.0, 2.0, 9.0]), (2, [3.0]), (3, [4.0])):
        log.write("stage_started", stage="rl.a", num_steps=4)
        if done:
            log.write("resumed", stage="rl.a", step=done)
        for step, reward in enumerate(rewards, start=done + 1):
            log.write("step", stage="rl.a", step=step, metrics={"reward": reward})
    log.close()
    assert read_run(tmp_path).stage("rl.a").curves["reward"] == ((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0))


@pytest.mark.parametrize(
    "tail",
    [
        '{"kind": "step", "sta',
        '{"kind": "step"}}\n',
        "\x00\x00\n",
        "[" * 100_000 + "\n",
        '"a string"\n',
        "\n\n",
    ],
)
def test_broken_last_line_leaves_the_rest(make_run, tail: str):
    folder = make_run()
    with (folder / "events.jsonl").open("a") as file:
        file.write(tail)
    run = read_run(folder)
    assert run.stage("rl.grpo").last("reward") == pytest.approx(0.54)
    assert run.state == "finished"


def test_broken_line_in_the_middle_is_counted(make_run):
    folder = make_run()
    lines = (folder / "events.jsonl").read_text().splitlines()
    lines[5] = lines[5][:20]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    assert run.stage("rl.grpo").last("reward") == pytest.approx(0.54)
    assert any("1 line(s)" in problem for problem in run.problems)


def test_numbers_that_are_not_finite_come_back(make_run):
    stage = read_run(make_run(metrics={"reward": math.nan})).stage("rl.ppo")
    assert math.isnan(stage.last("reward"))
    assert math.isnan(stage.last("never logged"))


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        "",
        '{"policies": 3, "gains": [1], "x": null}',
        '{"policies": [{"samples": [7], "mean": []}]}',
    ],
)
def test_damaged_evaluation_is_no_error(make_run, damage: str):
    folder = make_run()
    (folder / "evaluation.json").write_text(damage)
    run = read_run(folder)
    assert run.state == "finished"


def test_a_stage_name_reads_nothing_outside_the_folder(make_run):
    folder = make_run()
    (folder.parent / "stage.json").write_text(json.dumps({"summary": {"secret": 1}}))
    log = EventLog(folder / "events.jsonl")
    log.write("stage_started", stage="..", num_steps=1)
    log.write("stage_started", stage="../../x", num_steps=1)
    log.close()
    assert read_run(folder).stage("..").summary == {}


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path)


def test_interrupted_run_says_so(make_run):
    folder = make_run(finished=False)
    assert read_run(folder).state == "unfinished"
    log = EventLog(folder / "events.jsonl")
    log.write("interrupted")
    log.close()
    assert read_run(folder).state == "interrupted"


@pytest.mark.parametrize(
    "log", [None, b"", b'{"time": "2026-01-01T00:00:00", "kind": "run_st', b"\xff\xfe\x00", b'{"kind": ["x"]}\n{"kind": 3}\n']
)
def test_a_run_that_was_killed_while_it_started_is_read(tmp_path: Path, log: bytes | None):
    (tmp_path / "config.json").write_text(json.dumps({"name": "early", "output": "runs"}))
    if log is not None:
        (tmp_path / "events.jsonl").write_bytes(log)
    run = read_run(tmp_path)
    assert (run.name, run.state, run.stages, run.evaluation) == ("early", "unfinished", (), None)
    assert bool(run.problems) == (log in (None, b"\xff\xfe\x00") or b"run_st" in (log or b""))


def test_what_is_no_run_is_named(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    (tmp_path / "file").write_text("x")
    for name, what in (("model", "holds no run"), ("file", "is no folder"), ("nowhere", "does not exist")):
        with pytest.raises(RunError, match=rf"{name} {what}: expected a folder with config\.json and events\.jsonl"):
            read_run(tmp_path / name)


def test_no_value_in_the_files_is_an_exception(make_run):
    folder = make_run()
    odd = [None, True, 10**400, -1, "", "x" * 400, [], {}, [[]], [{}], {"a": {}}]
    lines = [json.dumps({"kind": kind, "stage": value, "step": value, "num_steps": value, "metrics": {"reward": value}, "rows": [value]})
             for kind in ("stage_started", "step", "samples", "stage_finished", "warning", "message") for value in odd]  # fmt: skip
    with (folder / "events.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
    assert read_run(folder).stage("rl.grpo").last("reward") == pytest.approx(0.54)
