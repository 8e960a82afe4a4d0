"""Sizes from files, bytes by hand, and what the layers really keep for the backward pass."""

from __future__ import annotations

import json
import mmap
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tether.backends.compute import Compute
from tether.config import RunConfig
from tether.data.batches import pad_examples
from tether.errors import ModelError
from tether.maths.logprobs import CHUNK_ELEMENTS
from tether.maths.memory import kv_cache_bytes
from tether.models import attention, head
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy
from tether.models.tiny import make_tiny
from tether.models.trunk import hidden_states
from tether.plan import memory
from tether.plan.machine import available_bytes, multiplies_bfloat16, peak_of_process, resident_bytes
from tether.plan.memory import PROGRAM, plan_memory
from tether.plan.model import Dims, dims_of, parameter_count
from tether.run.memory import too_large
from tether.text.chat import TokenizedExample

SMOLLM2 = Dims(134_515_008, 30, 576, 1536, 9, 3, 64, 49_152, tied=True, lean=True)
MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


def config(**sections) -> RunConfig:
    return RunConfig.model_validate({"name": "x", **sections})


def grpo(**changes) -> dict:
    prompts, rewards = {"path": "p.jsonl"}, [{"kind": "exact"}]
    return {"kind": "grpo", "prompts": prompts, "rewards": rewards, "prompts_per_step": 8, "sampling": {"max_new_tokens": 128}} | changes


PPO = {"kind": "ppo", "prompts_per_step": 64, "samples_per_prompt": 1, "rewards": [{"kind": "learned", "params": {"path": "x"}}]}


# -- sizes -------------------------------------------------------------------------------------------------------------------


def test_parameters_are_counted_from_headers(tmp_path):
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    assert parameter_count(tmp_path) == 17
    assert parameter_count(tmp_path / "nothing") is None
    assert dims_of(tmp_path) is None  # no config.json
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert dims_of(tmp_path) is None  # of no known shape
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        dims_of(tmp_path)


def test_dims_are_those_of_the_model(folder):
    policy, dims = Policy.load(folder), dims_of(folder)
    assert dims is not None
    assert dims.parameters == sum(p.numel() for p in policy.model.parameters())
    layers = sum(p.numel() for name, p in policy.model.named_parameters() if "layers." in name and p.dim() == 2)
    norms = sum(p.numel() for p in policy.model.parameters() if p.dim() == 1)
    assert dims.matrices == layers + norms
    assert dims.lean
    assert dims.tied


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj"), ("k_proj", "gate_proj", "o_proj")])
def test_adapters_are_counted(folder, targets):
    pytest.importorskip("peft")
    policy = Policy.load(folder, lora=LoraSpec(rank=3, targets=targets))
    wanted = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert dims_of(folder).adapter_weights(3, targets) == wanted


# -- bytes -------------------------------------------------------------------------------------------------------------------


def test_constants_are_those_of_the_code():
    assert memory.HEAD_KEPT == head.KEPT_BYTES
    assert memory.HEAD_CHUNK == CHUNK_ELEMENTS * 5 // 4
    assert head._PIECE["cpu"] == memory.HEAD_PIECE
    assert attention._ELEMENTS == memory.ATTENTION_PIECE


DATA = {"data": {"path": "d"}}
STEPS = {
    "grpo": {"rl": {"a": grpo()}},
    "ppo": {"rl": {"a": grpo(**PPO)}},
    "dpo": {"direct": {"a": {"kind": "dpo", "batch_size": 16, "max_length": 256, **DATA}}},
    "sft": {"sft": {"batch_size": 32, "max_length": 256, **DATA}},
    "reward model": {"reward_model": {"batch_size": 16, "max_length": 256, **DATA}},
}


@pytest.mark.parametrize(
    ("step", "narrow", "held"),
    [
        ("grpo", True, 4_604), ("grpo", False, 4_709), ("ppo", True, 5_821), ("ppo", False, 6_375), ("dpo", True, 4_642),
        ("sft", True, 4_847), ("reward model", True, 4_210),
    ],
)  # fmt: skip
def test_the_plan_covers_what_was_measured(step, narrow, held):
    """The most that steps of ``bench.peers`` held with SmolLM2 on two cores, MiB (docs/memory.md)."""
    (plan,) = plan_memory(config(**STEPS[step], checkpoint={"asynchronous": False}), SMOLLM2, narrow)
    assert held <= plan.peak_bytes / MIB < 1.35 * held


def test_what_stays_by_hand():
    (plan,) = plan_memory(config(rl={"a": grpo()}), SMOLLM2, narrow=True)
    weights, embedding = 134_515_008, 49_152 * 576
    assert plan.stays == {
        "weights": 4 * weights, "moments": 8 * weights, "checkpoint being written": 12 * weights,
        "reference": 2 * (weights - embedding) + 4 * embedding,
    }  # fmt: skip
    assert plan.phases["update"]["gradients"] == 4 * weights
    assert plan.phases["draw"]["sampler"] == 2 * weights + 2 * embedding
    assert plan.phases["draw"]["cache"] == kv_cache_bytes(30, 3, 64, 64 * (256 + 128))
    assert plan.tokens == 2048
    assert plan.peak_bytes == PROGRAM + sum(plan.stays.values()) + round(memory.ALLOCATOR * sum(plan.phases["update"].values()))
    told = str(plan)
    total, *parts = [int(found.replace(",", "")) for found in re.findall(r"[ ]([0-9,]*[0-9])(?=[ ,)])", told)]
    assert told.startswith(f"rl.a: at most about {total:,} MiB (update: ")
    assert total == pytest.approx(sum(parts), abs=len(parts))  # the parts add up, but for rounding


def test_settings_that_docs_name_make_it_smaller():
    def stage(stays=(), **sections):
        (plan,) = plan_memory(config(rl={"a": grpo(**dict(stays))}, **sections), SMOLLM2, narrow=True)
        return plan

    usual = stage()
    assert stage(checkpoint={"asynchronous": False}).stays["checkpoint being written"] == 0
    assert stage(checkpoint={"every": 0}).stays["checkpoint being written"] == 0
    assert stage({"optim": {"states": "bfloat16"}}).stays["moments"] == usual.stays["moments"] // 2
    int8 = stage({"optim": {"states": "int8"}}).stays["moments"]
    assert 430e6 < int8 < 450e6  # docs/memory.md: 0.44 GB
    half = stage(compute={"token_budget": 1024}).phases["update"]["activations"]
    assert half * 2 == usual.phases["update"]["activations"]
    assert stage(compute={"activation_checkpointing": True}).phases["update"]["activations"] < usual.phases["update"]["activations"] / 4
    adapters = stage(model={"lora": {"rank": 8}})
    assert adapters.stays["reference"] == 0
    assert adapters.phases["update"]["gradients"] == 4 * SMOLLM2.adapter_weights(8, ())
    critic = stage({"kind": "ppo", "critic": "separate", "samples_per_prompt": 8})
    assert critic.stays["critic"] + critic.phases["update"]["gradients of the critic"] == 16 * SMOLLM2.parameters
    ahead = {"rollouts_ahead": 1, "sampler_correction": {"mode": "token_truncate", "high": 2.0}}
    assert stage(ahead).stays["weights that draw"] == usual.stays["reference"]
    assert stage({"rewards": [{"kind": "learned", "params": {"path": "x"}}]}).stays["reward models"] == 4 * SMOLLM2.parameters


def test_every_stage_that_trains_has_a_plan():
    data = {"data": {"path": "d.jsonl"}}
    every = config(sft=data, reward_model=data, rl={"a": grpo()}, direct={"b": {"kind": "dpo", **data}})
    plans = {plan.stage: plan for plan in plan_memory(every, SMOLLM2, narrow=False)}
    assert list(plans) == ["sft", "reward_model", "rl.a", "direct.b"]
    assert "head" not in plans["reward_model"].phases["update"]
    assert "sampler" not in plans["rl.a"].stays  # float32: it reads the trained weights
    other = replace(SMOLLM2, parameters=10**9)
    every = config(reward_model={"path": "big", **data})
    (plan,) = plan_memory(every, SMOLLM2, narrow=True, dims_of={"big": other}.get)
    assert plan.stays["weights"] == 4 * 10**9


def kept_bytes(trunk, narrow: bool, rows: int, length: int) -> int:
    """Distinct storages that autograd keeps of a pass through the layers, without weights and the casts of weights."""
    own = {p.data_ptr() for p in trunk.parameters()}
    matrices = {p.numel() for p in trunk.parameters() if p.dim() == 2}
    kept = {}

    def note(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own and x.numel() not in matrices:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    answer = TokenizedExample(tuple(range(4, 4 + length)), (False,) + (True,) * (length - 1))
    batch = pad_examples([answer] * rows, 0)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        states = hidden_states(trunk, batch, torch.device("cpu"))
    del states
    return sum(kept.values())


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4)])
def test_activations_are_near_what_autograd_keeps(folder, tmp_path, narrow, heads):
    shutil.copytree(folder, tmp_path / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "vocab_size": 384, "head_dim": 16}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=heads[0], num_key_value_heads=heads[1])).save_pretrained(tmp_path / "model")
    policy, dims = Policy.load(tmp_path / "model"), dims_of(tmp_path / "model")
    assert dims == Dims(dims.parameters, 3, 96, 256, *heads, 16, 384, tied=False, lean=True)
    found = kept_bytes(policy.model.base_model, narrow, rows=4, length=68)
    planned = memory._kept(dims, 4 * 68 + 1, narrow, recomputed=False, adapted=False)
    assert found <= planned <= 1.4 * found


# -- machine -----------------------------------------------------------------------------------------------------------------


def test_the_peak_of_a_block_is_measured():
    assert available_bytes() > 0
    assert resident_bytes() > 0
    with peak_of_process() as before:
        pass
    with peak_of_process() as peak:
        held = mmap.mmap(-1, 200 * MIB)  # not of the heap, which may keep what is freed
        held.write(b"x" * (200 * MIB))
        held.close()
    assert peak.bytes - before.bytes > 150 * MIB
    with peak_of_process() as after:
        pass
    assert after.bytes < peak.bytes - 100 * MIB  # of this block alone


def test_bfloat16_is_found_as_pytorch_finds_it():
    capabilities = torch.cpu.get_capabilities()
    assert multiplies_bfloat16() == bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def test_a_plan_beyond_the_machine_is_a_warning_with_a_remedy(monkeypatch):
    compute = Compute(torch.device("cpu"), torch.bfloat16, 2048)
    plans = {plan.stage: plan for plan in plan_memory(config(rl={"a": grpo()}), SMOLLM2, narrow=True)}
    monkeypatch.setattr("tether.run.memory.available_bytes", lambda: 2**40)
    assert too_large(plans, compute) == ""
    assert too_large({}, compute) == ""
    monkeypatch.setattr("tether.run.memory.available_bytes", lambda: 3 * 2**30)
    assert "rl.a: at most about" in (told := too_large(plans, compute))
    assert "This machine has 3,072 MiB available now" in told
    assert "docs/memory.md" in told


def test_a_run_logs_what_it_took_beside_its_plan(folder, tmp_path):
    from tether.events import read_events
    from tether.run.pipeline import run

    rows = [{"prompt": f"Say {n}", "completion": "yes"} for n in range(8)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {"data": {"path": str(tmp_path / "d.jsonl")}, "batch_size": 4, "max_length": 64}
    made = RunConfig.model_validate({"name": "x", "output": str(tmp_path), "model": {"path": str(folder)}, "sft": told})
    run(made)
    (event,) = [event for event in read_events(tmp_path / "x" / "events.jsonl") if event["kind"] == "memory"]
    assert event["stage"] == "sft"
    assert event["metrics"]["memory_planned"] > 0
    assert event["metrics"]["memory_peak"] > 0
