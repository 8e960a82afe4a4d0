"""Interrupted anywhere and continued: the same weights, optimiser, texts and numbers as the run that was left alone, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tether.config import RunConfig
from tether.errors import RunError
from tether.events import read_events, settled
from tether.records import write_jsonl
from tether.run.observer import Quiet
from tether.run.pipeline import run


class Crash(Exception):
    """Stands for whatever ends a process."""


class CrashAt(Quiet):
    """Ends the run when ``stage`` reports ``step``: after the step was done and logged, before it could be saved."""

    def __init__(self, stage: str, step: int) -> None:
        self.stage_, self.step_ = stage, step

    def step(self, stage, step, metrics):
        if (stage, step) == (self.stage_, self.step_):
            raise Crash


def turn(content, role="user"):
    return [{"role": role, "content": content}]


def make_config(folder: Path, **sections):
    prompts = [{"prompt_id": f"t{i}", "prompt": turn(f"Say {i}."), "answer": str(i)} for i in range(6)]
    write_jsonl(folder / "prompts.jsonl", prompts)
    write_jsonl(folder / "demos.jsonl", [{"prompt": p["prompt"], "completion": turn(p["answer"] + ".", "assistant")} for p in prompts])
    pairs = [
        {"prompt": p["prompt"], "chosen": turn(f"Yes {i}.", "assistant"), "rejected": turn(f"no no {i}", "assistant")}
        for i, p in enumerate(prompts * 2)
    ]
    write_jsonl(folder / "pairs.jsonl", pairs)
    return {
        "name": "t",
        "output": str(folder / "runs"),
        "model": {"path": "tiny"},
        "compute": {"dtype": "float32", "threads": 1, "token_budget": 64},
        "checkpoint": {"every": 2},
        **sections,
    }


def sections_of(kind: str, folder: Path):
    if kind == "sft":
        return {"sft": {"data": {"path": str(folder / "demos.jsonl")}, "batch_size": 4, "epochs": 4}}, "sft", 8
    if kind == "reward_model":
        data = {"path": str(folder / "pairs.jsonl")}
        return {"reward_model": {"data": data, "batch_size": 4, "epochs": 3}}, "reward_model", 6
    if kind == "dpo":
        stage = {"kind": "dpo", "data": {"path": str(folder / "pairs.jsonl")}, "batch_size": 4, "epochs": 3}
        return {"direct": {"a": stage}}, "direct.a", 6
    online = {
        "kind": kind,
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "steps": 5,
        "prompts_per_step": 4,  # 6 prompts: steps cross the ends of epochs
        "sampling": {"max_new_tokens": 6},
        "rewards": [{"kind": "length", "params": {"low": 1, "high": 3, "falloff": 4}}],
        "optim": {"learning_rate": 1e-3, "schedule": "linear"},
    }
    if kind not in {"ppo", "reinforce_pp", "remax"}:
        online |= {"samples_per_prompt": 3}
    if kind == "ppo":
        online |= {"minibatches": 2, "epochs": 2, "kl": {"beta": 0.1, "target": 2.0, "horizon": 50}}
    if kind == "vapo":
        online |= {"samples_per_prompt": 1}
    return {"rl": {"a": online}}, "rl.a", 5


def figures(folder: Path):
    timed = ("seconds", "per_second")
    return [
        (e["stage"], e["step"], {k: v for k, v in e["metrics"].items() if not k.endswith(timed)})
        if e["kind"] == "step"
        else (e["stage"], e["step"], e["rows"])
        for e in settled(read_events(folder / "events.jsonl"))
        if e["kind"] in {"step", "samples"}
    ]


def assert_same(one: Path, two: Path, stage: str) -> None:
    assert json.dumps(figures(one)) == json.dumps(figures(two))  # texts, since NaN differs from itself
    first, second = load_file(one / stage / "model.safetensors"), load_file(two / stage / "model.safetensors")
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


KINDS = ["sft", "reward_model", "dpo", "ppo", "grpo"]


@pytest.fixture(scope="module", params=KINDS)
def unbroken(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    sections, stage, steps = sections_of(request.param, folder)
    return request.param, run(RunConfig.model_validate(make_config(folder, **sections))).folder, stage, steps


@pytest.mark.parametrize("crash", ["first", "between", "late"])
def test_a_stage_that_crashed_goes_on_as_if_nothing_had_happened(unbroken, crash, tmp_path):
    kind, whole, stage, steps = unbroken
    at = {"first": 1, "between": 3, "late": steps}[crash]
    sections, _, _ = sections_of(kind, tmp_path)
    config = RunConfig.model_validate(make_config(tmp_path, **sections))
    with pytest.raises(Crash):
        run(config, observer=CrashAt(stage, at))
    folder = run(config).folder
    assert_same(whole, folder, stage)
    resumed = [e["step"] for e in read_events(folder / "events.jsonl") if e["kind"] == "resumed"]
    assert resumed == ([] if at < 3 else [(at - 1) // 2 * 2])
    assert not (folder / "checkpoints" / stage).exists()


def test_changed_inputs_are_named_and_refused_unless_told(tmp_path):
    sections, stage, _ = sections_of("sft", tmp_path)
    config = make_config(tmp_path, **sections)
    with pytest.raises(Crash):
        run(RunConfig.model_validate(config), observer=CrashAt(stage, 3))
    changed = {**config, "sft": {**config["sft"], "optim": {"learning_rate": 1e-4}}}
    with pytest.raises(RunError, match=r"settings\.sft\.optim\.learning_rate: 2e-05 -> 0\.0001.*--accept-changes"):
        run(RunConfig.model_validate(changed))
    write_jsonl(tmp_path / "demos.jsonl", [{"prompt": turn("Say 9."), "completion": turn("9.", "assistant")}] * 6)
    with pytest.raises(RunError, match="data: "):
        run(RunConfig.model_validate(config))
    assert run(RunConfig.model_validate(changed), accept_changes=True).report.exists()
