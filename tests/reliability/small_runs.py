"""Runs small enough to be interrupted hundreds of times, one section per trainer, and what two of them are compared by."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from tether.config.presets import ACTOR_CRITIC, CRITIC_FREE
from tether.events import read_events, settled
from tether.records import write_jsonl
from tether.run.observer import Quiet

DIRECT = ("dpo", "cdpo", "robust", "ipo", "ipo_avg", "hinge", "kto", "orpo", "simpo")
ONLINE = (*ACTOR_CRITIC, *CRITIC_FREE, "online_dpo")
REWARD_FORMS = {
    "reward_ties": {"ties": {"model": "rao_kupper", "parameter": 0.5}, "label_smoothing": 0.05},
    "reward_rankings": {"batch_by": "prompts", "batch_size": 2, "ties": {"model": "davidson"}, "head_learning_rate": 1e-3},
    "reward_heads": {"heads": 3, "batch_by": "prompts", "batch_size": 2, "truncation": "left", "max_length": 18},
    "reward_lora": {"lora": {"rank": 2}, "normalise": {"to": "mean"}, "heads": 2},
}
TRAINERS = ("sft", "reward_model", "dpo", "ppo", "grpo")


class Crash(Exception):
    """Stands for whatever ends a process."""


class CrashAt(Quiet):
    """Ends the run when ``stage`` reports ``step``: after the step was done and logged, before it could be saved."""

    def __init__(self, stage: str, step: int) -> None:
        self.stage_, self.step_ = stage, step

    def step(self, stage, step, metrics):
        if (stage, step) == (self.stage_, self.step_):
            raise Crash


def crash_at_call(patch, owner, name: str, number: int) -> None:
    """The ``number``-th call of a method ends the run before it does anything."""
    real, calls = getattr(owner, name), []

    def counted(self, *args, **kwargs):
        calls.append(name)
        if len(calls) == number:
            raise Crash
        return real(self, *args, **kwargs)

    patch.setattr(owner, name, counted)


def turn(content, role="user"):
    return [{"role": role, "content": content}]


def make_config(folder: Path, **sections):
    """A configuration over data files in ``folder``."""
    prompts = [{"prompt_id": f"t{i}", "prompt": turn(f"Say {i}."), "answer": str(i)} for i in range(6)]
    write_jsonl(folder / "prompts.jsonl", prompts)
    write_jsonl(folder / "demos.jsonl", [{"prompt": p["prompt"], "completion": turn(p["answer"] + ".", "assistant")} for p in prompts])
    pairs = [
        {"prompt": p["prompt"], "chosen": turn(f"Yes {i}.", "assistant"), "rejected": turn(f"no no {i}", "assistant")}
        for i, p in enumerate(prompts * 2)
    ]
    write_jsonl(folder / "pairs.jsonl", pairs)
    labels = [1.0, 0.5, 0.8, 1.0] * 3
    write_jsonl(folder / "judged_pairs.jsonl", [pair | {"label": label} for pair, label in zip(pairs, labels, strict=True)])
    ranked = [
        {"prompt": p["prompt"], "answers": ["Yes.", f"no {i}", f"{i} {i}", "well"][: 2 + i % 3]}
        for i, p in enumerate(prompts)
    ]
    ranked = [row | {"ranking": [[1, 0], [1, [0, 2]], [3, [0, 2], 1]][i % 3]} for i, row in enumerate(ranked)]
    write_jsonl(folder / "rankings.jsonl", ranked)
    judged = [
        {"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"} for pair in pairs for side in ("chosen", "rejected")
    ]
    write_jsonl(folder / "judged.jsonl", judged)
    return {
        "name": "t",
        "output": str(folder / "runs"),
        "model": {"path": "tiny"},
        "compute": {"dtype": "float32", "threads": 1, "token_budget": 64},
        "checkpoint": {"every": 2},
        **sections,
    }


def sections_of(kind: str, folder: Path):
    """(sections, name of the stage, its steps)"""
    if kind == "sft":
        return {"sft": {"data": {"path": str(folder / "demos.jsonl")}, "batch_size": 4, "epochs": 4}}, "sft", 8
    if kind == "reward_model":
        data = {"path": str(folder / "pairs.jsonl")}
        return {"reward_model": {"data": data, "batch_size": 4, "epochs": 3}}, "reward_model", 6
    if kind in REWARD_FORMS:
        file = "rankings.jsonl" if kind == "reward_rankings" else "judged_pairs.jsonl"
        section = {"data": {"path": str(folder / file)}, "batch_size": 4, "epochs": 3} | REWARD_FORMS[kind]
        if section.get("normalise"):
            section["normalise"] = section["normalise"] | {"reference": {"path": str(folder / "demos.jsonl")}}
        return {"reward_model": section}, "reward_model", 6
    if kind in DIRECT:
        data = {"path": str(folder / ("judged.jsonl" if kind == "kto" else "pairs.jsonl"))}
        size = 7 if kind == "kto" else 4
        return {"direct": {"d": {"kind": kind, "data": data, "batch_size": size, "epochs": 3}}}, "direct.d", 6
    online = {
        "kind": kind,
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "steps": 5,
        "prompts_per_step": 4,  # 6 prompts: steps cross the ends of epochs
        "sampling": {"max_new_tokens": 6},
        "rewards": [{"kind": "length", "params": {"low": 1, "high": 3, "falloff": 4}}],
        "optim": {"learning_rate": 1e-3, "schedule": "linear"},
    }
    if kind not in {"ppo", "vapo", "reinforce_pp", "remax"}:
        online |= {"samples_per_prompt": 3}
    if kind == "ppo":
        online |= {"minibatches": 2, "epochs": 2, "kl": {"beta": 0.1, "target": 2.0, "horizon": 50}}
    if kind == "vapo":
        online |= {"samples_per_prompt": 1}
    if kind == "online_dpo":
        online |= {"refresh_reference": 2}
    return {"rl": {"a": online}}, "rl.a", 5


def figures(folder: Path):
    """What a run logged, but for times."""
    timed = ("seconds", "per_second")
    return [
        (e["stage"], e["step"], {k: v for k, v in e["metrics"].items() if not k.endswith(timed)})
        if e["kind"] == "step"
        else (e["stage"], e["step"], e["rows"])
        for e in settled(read_events(folder / "events.jsonl"))
        if e["kind"] in {"step", "samples"}
    ]


def assert_same(one: Path, two: Path, stage: str) -> None:
    """Bit for bit: the numbers of every step, the texts, the weights."""
    assert json.dumps(figures(one)) == json.dumps(figures(two))  # texts, since NaN differs from itself
    first, second = load_file(one / stage / "model.safetensors"), load_file(two / stage / "model.safetensors")
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def resumed_after(folder: Path) -> list[int]:
    """The steps of the checkpoints that a run went on from."""
    return [event["step"] for event in read_events(folder / "events.jsonl") if event["kind"] == "resumed"]
