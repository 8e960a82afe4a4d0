"""Interrupted anywhere and continued: the same weights, optimiser, texts and numbers as the run that was left alone, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from small_runs import (
    DIRECT,
    ONLINE,
    REWARD_FORMS,
    TRAINERS,
    Crash,
    CrashAt,
    assert_same,
    crash_at_call,
    make_config,
    resumed_after,
    sections_of,
    turn,
)

from tether.backends.local import LocalWorker
from tether.config import RunConfig
from tether.data.cursor import Cursor
from tether.errors import RunError
from tether.records import write_jsonl
from tether.rollout.local import LocalSampler
from tether.run.checkpoint import CheckpointStore
from tether.run.pipeline import run


def config_of(kind: str, folder: Path, **changed) -> RunConfig:
    sections, _, _ = sections_of(kind, folder)
    return RunConfig.model_validate(make_config(folder, **sections) | changed)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The run of a kind that was left alone, made once."""
    made = {}

    def of(kind: str):
        if kind not in made:
            folder = tmp_path_factory.mktemp("unbroken")
            _, stage, steps = sections_of(kind, folder)
            made[kind] = run(config_of(kind, folder)).folder, stage, steps
        return made[kind]

    return of


# -- between two steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "crash"), [
    ("sft", "first"), ("ppo", "first"), *((k, c) for k in TRAINERS for c in ("between", "late")),
    ("reward_rankings", "between"), ("reward_lora", "between"),
    *(pytest.param(k, c, marks=pytest.mark.slow) for k in REWARD_FORMS for c in ("first", "late")),
])  # fmt: skip
def test_a_stage_that_crashed_goes_on_as_if_nothing_had_happened(unbroken, kind, crash, tmp_path):
    whole, stage, steps = unbroken(kind)
    at = {"first": 1, "between": 3, "late": steps}[crash]
    config = config_of(kind, tmp_path)
    with pytest.raises(Crash):
        run(config, observer=CrashAt(stage, at))
    folder = run(config).folder
    assert_same(whole, folder, stage)
    assert resumed_after(folder) == ([] if at < 3 else [(at - 1) // 2 * 2])
    assert not (folder / "checkpoints" / stage).exists()


# One of each family here, all the others in the slow suite.
_QUICK = {"rloo", "kto"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in _QUICK else pytest.mark.slow) for k in sorted({*ONLINE, *DIRECT} - set(TRAINERS))]
)
def test_so_does_every_other_algorithm(unbroken, kind, tmp_path):
    whole, stage, _ = unbroken(kind)
    config = config_of(kind, tmp_path)
    with pytest.raises(Crash):
        run(config, observer=CrashAt(stage, 4))
    folder = run(config).folder
    assert_same(whole, folder, stage)
    assert resumed_after(folder) == [2]


@pytest.mark.parametrize("states", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["sft", pytest.param("ppo", marks=pytest.mark.slow)])
def test_so_do_narrow_optimiser_states(kind, states, tmp_path):
    folders = {}
    for name, crash in (("whole", None), ("broken", 4)):
        (tmp_path / name).mkdir()
        sections, stage, _ = sections_of(kind, tmp_path / name)
        section = sections["sft"] if kind == "sft" else sections["rl"]["a"]
        section["optim"] = {**section.get("optim", {}), "states": states}
        config = RunConfig.model_validate(make_config(tmp_path / name, **sections))
        if crash is not None:
            with pytest.raises(Crash):
                run(config, observer=CrashAt(stage, crash))
            kept = CheckpointStore(config.folder / "checkpoints" / stage).latest().load().tensors
            assert getattr(torch, states) in {tensor.dtype for tensor in kept.values()}
        folders[name] = run(config).folder
    assert resumed_after(folders["broken"]) == [2]
    assert_same(folders["whole"], folders["broken"], stage)


def test_the_optimiser_the_cursor_and_the_answers_are_the_same_too(tmp_path):
    """What a checkpoint holds, from the unbroken run and from one that was interrupted twice before."""
    states = {}
    for name, crashes in (("one", []), ("two", [2, 4])):
        folder = tmp_path / name
        folder.mkdir()
        config = config_of("grpo", folder, checkpoint={"every": 1, "asynchronous": False})
        for at in [*crashes, 5]:
            with pytest.raises(Crash):
                run(config, observer=CrashAt("rl.a", at))
        found = CheckpointStore(config.folder / "checkpoints" / "rl.a").latest()
        assert found is not None
        assert found.step == 4
        states[name] = found.load()
    one, two = states["one"], states["two"]
    assert one.values | {"metrics": None} == two.values | {"metrics": None}  # metrics hold times; the rest is in the log
    assert one.values["answers"]["answers_sha256"]
    assert one.tensors.keys() == two.tensors.keys()
    assert any("exp_avg_sq" in name for name in one.tensors)
    assert [name for name in one.tensors if not torch.equal(one.tensors[name], two.tensors[name])] == []


# -- inside a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*TRAINERS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in REWARD_FORMS)])
def test_a_crash_between_two_microbatches_leaves_no_half_of_a_gradient(kind, tmp_path):
    _, stage, _ = sections_of(kind, tmp_path)
    many_passes = {"dtype": "float32", "threads": 1, "token_budget": 32}
    passes = []
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "counted").mkdir()
        real_accumulate, real_step = LocalWorker.accumulate, LocalWorker.step
        patch.setattr(LocalWorker, "accumulate", lambda self, loss: (passes.append("accumulate"), real_accumulate(self, loss))[1])
        patch.setattr(LocalWorker, "step", lambda self: (passes.append("step"), real_step(self))[1])
        whole = run(config_of(kind, tmp_path / "counted", compute=many_passes)).folder
    ends = [i for i, name in enumerate(passes) if name == "step"]
    late = ends[len(ends) * 2 // 3]  # past a checkpoint
    inside = next(i for i in range(late + 1, len(passes)) if passes[i] == passes[i - 1] == "accumulate")  # the second of its step
    config = config_of(kind, tmp_path, compute=many_passes)
    with pytest.MonkeyPatch.context() as patch:
        crash_at_call(patch, LocalWorker, "accumulate", passes[: inside + 1].count("accumulate"))
        with pytest.raises(Crash):
            run(config)
    folder = run(config).folder
    assert resumed_after(folder)
    assert_same(whole, folder, stage)


def test_a_crash_in_the_middle_of_a_rollout_draws_only_what_was_not_finished(tmp_path, monkeypatch):
    """12 answers a step in chunks of 4 x max_rows = 4 (with 3 answers a prompt: one prompt each)."""
    drawn = []
    real = LocalSampler.generate

    def generate(self, requests, sampling):
        drawn.append([request.prompt_id for request in requests])
        if crash_at and len(drawn) == crash_at:
            raise Crash
        return real(self, requests, sampling)

    monkeypatch.setattr(LocalSampler, "generate", generate)
    sections, stage, steps = sections_of("grpo", tmp_path)
    sections["rl"]["a"]["sampling"]["max_rows"] = 1

    def config(name):
        return RunConfig.model_validate(make_config(tmp_path, **sections) | {"name": name})

    crash_at = 0
    whole = run(config("whole")).folder
    assert len(drawn) == 4 * steps
    all_drawn = list(drawn)
    drawn.clear()
    crash_at = 2 * 4 + 3  # two chunks of step 3 are finished, the third is not
    with pytest.raises(Crash):
        run(config("broken"))
    drawn.clear()
    crash_at = 0
    folder = run(config("broken")).folder
    assert drawn == all_drawn[2 * 4 + 2 :]
    assert resumed_after(folder) == [2]
    assert_same(whole, folder, stage)


def test_a_crash_at_the_end_of_an_epoch(unbroken, tmp_path):
    """The cursor stands between two epochs: 6 demonstrations in batches of 4 and 2, checkpoint and crash at the border."""
    whole, stage, _ = unbroken("sft")
    config = config_of("sft", tmp_path)
    with pytest.raises(Crash):
        run(config, observer=CrashAt(stage, 5))
    state = CheckpointStore(config.folder / "checkpoints" / stage).latest().load()
    assert (state.values["cursor"]["epoch"], state.values["cursor"]["position"]) == (2, 0)
    assert_same(whole, run(config).folder, stage)


def test_a_crash_right_after_an_evaluation_repeats_no_training_and_gives_the_same_figures(tmp_path):
    evaluate = {
        "prompts": {"path": str(tmp_path / "held.jsonl")},
        "score": "plainspoken",
        "sampling": {"max_new_tokens": 4},
    }
    write_jsonl(tmp_path / "held.jsonl", [{"prompt_id": f"h{i}", "prompt": turn(f"Tell {i}!")} for i in range(4)])
    sections = sections_of("grpo", tmp_path)[0] | {"evaluate": evaluate}
    whole = run(RunConfig.model_validate(make_config(tmp_path, **sections) | {"name": "whole"}))
    config = RunConfig.model_validate(make_config(tmp_path, **sections))
    with pytest.raises(Crash):
        run(config, observer=CrashAt("evaluate", 2))
    steps = (config.folder / "events.jsonl").read_text().count('"kind": "step", "stage": "rl.a"')
    result = run(config)
    assert (config.folder / "events.jsonl").read_text().count('"kind": "step", "stage": "rl.a"') == steps == 5
    assert without_paths(result.evaluation) == without_paths(whole.evaluation)
    assert_same(whole.folder, result.folder, "rl.a")


def without_paths(evaluation) -> str:
    return json.dumps({key: value for key, value in evaluation.items() if key not in {"made_at", "seconds"}}, sort_keys=True)


def test_case_G1_after_a_resume_the_data_go_on_where_they_were(tmp_path, monkeypatch):
    """8 rows, batch 2, crash after step 2 of the first epoch."""
    write_jsonl(tmp_path / "eight.jsonl", [{"prompt": turn(f"Say {i}."), "completion": turn(f"{i}.", "assistant")} for i in range(8)])
    section = {"data": {"path": str(tmp_path / "eight.jsonl")}, "batch_size": 2, "epochs": 2, "optim": {"schedule": "linear"}}
    taken = []
    real = Cursor.next
    monkeypatch.setattr(Cursor, "next", lambda self, n: (taken.append(real(self, n)), taken[-1])[1])

    def config(name):
        return RunConfig.model_validate(make_config(tmp_path, sft=section) | {"name": name})

    whole = run(config("whole")).folder
    rows = list(taken)
    assert sorted(chain(*rows[:4])) == sorted(chain(*rows[4:])) == list(range(8))
    taken.clear()
    with pytest.raises(Crash):
        run(config("broken"), observer=CrashAt("sft", 3))
    taken.clear()
    folder = run(config("broken")).folder
    assert taken == rows[2:]
    assert_same(whole, folder, "sft")  # the learning rate and the numbers of every step among it


# -- in another process ------------------------------------------------------------------------------------------------------

_CHILD = """
import sys
from tether.config import load_config
from tether.run.pipeline import run
sys.path.insert(0, sys.argv[1])
from small_runs import CrashAt, Crash
try:
    run(load_config(sys.argv[2]), observer=CrashAt(sys.argv[3], int(sys.argv[4])))
except Crash:
    sys.exit(7)
"""


def in_a_process(config: Path, stage: str, crash_at: int, place: Path, hash_seed: str) -> int:
    place.mkdir(exist_ok=True)
    tools = str(Path(__file__).parents[1] / "reliability")
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _CHILD, tools, str(config), stage, str(crash_at)]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False, timeout=280).returncode


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRAINERS, *REWARD_FORMS])
def test_a_new_process_in_another_working_folder_with_other_hashes_goes_on_bit_for_bit(unbroken, kind, tmp_path):
    whole, stage, _ = unbroken(kind)
    config = config_of(kind, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json(exclude_unset=True))
    assert in_a_process(file, stage, 3, tmp_path / "here", "1") == 7
    assert in_a_process(file, stage, 99, tmp_path / "there", "2") == 0
    assert resumed_after(config.folder) == [2]
    assert_same(whole, config.folder, stage)


# -- other inputs ------------------------------------------------------------------------------------------------------------


def test_changed_inputs_are_named_and_refused_unless_told(tmp_path):
    sections, stage, _ = sections_of("sft", tmp_path)
    config = make_config(tmp_path, **sections)
    with pytest.raises(Crash):
        run(RunConfig.model_validate(config), observer=CrashAt(stage, 3))
    changed = {**config, "sft": {**config["sft"], "optim": {"learning_rate": 1e-4}}}
    folder = RunConfig.model_validate(config).folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"settings\.sft\.optim\.learning_rate: 2e-05 -> 0\.0001.*--accept-changes"):
        run(RunConfig.model_validate(changed))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before  # `tether resume` goes on as it would have
    write_jsonl(tmp_path / "demos.jsonl", [{"prompt": turn("Say 9."), "completion": turn("9.", "assistant")}] * 6)
    with pytest.raises(RunError, match=r"data: \w+\.\.\. -> \w+\.\.\. \(read from .*demos\.jsonl\)"):
        run(RunConfig.model_validate(config))
    assert run(RunConfig.model_validate(changed), accept_changes=True).report.exists()


def test_a_start_that_became_another_model_is_refused(tmp_path):
    """The stage before was made anew from other data: the checkpoint belongs to weights, and a tether, that are gone."""
    sections = sections_of("sft", tmp_path)[0] | sections_of("grpo", tmp_path)[0]
    config = RunConfig.model_validate(make_config(tmp_path, **sections))
    with pytest.raises(Crash):
        run(config, observer=CrashAt("rl.a", 3))
    (config.folder / "sft" / "stage.json").unlink()
    write_jsonl(tmp_path / "demos.jsonl", [{"prompt": turn("Say 9."), "completion": turn("9.", "assistant")}] * 6)
    with pytest.raises(RunError, match=r"before\.sft: .* -> .*; start: .* -> "):
        run(config)
