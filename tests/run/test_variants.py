"""Choices that must work (critics, LoRA) and choices that must not matter (activation checkpointing)."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

from tether.algorithms.experience import Experience
from tether.config import RunConfig
from tether.events import read_events
from tether.records import write_jsonl
from tether.run.describe import warn_of_negative_kl
from tether.run.pipeline import run


@pytest.fixture
def config(tmp_path):
    prompts = [{"prompt_id": f"t{i}", "prompt": [{"role": "user", "content": f"Say {i}."}]} for i in range(8)]
    pairs = [{"prompt": f"Say {i}.", "chosen": " yes", "rejected": " no no no"} for i in range(8)]
    write_jsonl(tmp_path / "prompts.jsonl", prompts)
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    ppo = {
        "kind": "ppo",
        "prompts": {"path": str(tmp_path / "prompts.jsonl")},
        "steps": 2,
        "prompts_per_step": 4,
        "sampling": {"max_new_tokens": 6},
        "rewards": [{"kind": "length", "params": {"low": 1, "high": 3, "falloff": 3}}],
        "optim": {"learning_rate": 1e-3},
    }
    return {"name": "v", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
            "reward_model": {"data": {"path": str(tmp_path / "pairs.jsonl")}}, "rl": {"ppo": ppo}}  # fmt: skip


def steps_of(result):
    events = read_events(result.folder / "events.jsonl")
    return [event["metrics"] for event in events if event["kind"] == "step" and event["stage"] == "rl.ppo"]


@pytest.mark.parametrize("critic", ["shared", "separate", "reward_model"])
def test_every_critic_trains(config, critic):
    config["rl"]["ppo"] |= {"critic": critic, "value_learning_rate": 1e-2, "epochs": 2}
    first, second = steps_of(run(RunConfig.model_validate(config)))
    if critic != "reward_model":
        assert first["explained_variance"] == pytest.approx(0, abs=1e-6)  # a zero head foresees nothing
    assert first["value_loss"] > 0
    assert second["first_ratio_error"] <= 1e-5


def test_lora_trains_adapters_alone_and_saves_a_merged_model_that_plain_transformers_loads(config):
    pytest.importorskip("peft")
    config["model"]["lora"] = {"rank": 2, "targets": ["q_proj", "v_proj"]}
    result = run(RunConfig.model_validate({**config, "reward_model": None}))
    saved = AutoModelForCausalLM.from_pretrained(result.folder / "rl.ppo", local_files_only=True)
    assert not [name for name, _ in saved.named_parameters() if "lora" in name]
    first, second = steps_of(result)
    assert first["kl_k1_sequence"] == pytest.approx(0, abs=1e-5)
    assert second["kl_k3_token"] > 0


def test_activation_checkpointing_changes_nothing(config):
    config["reward_model"] = None
    plain = steps_of(run(RunConfig.model_validate(config)))
    config["compute"]["activation_checkpointing"] = True
    config["name"] = "c"
    checkpointed = steps_of(run(RunConfig.model_validate(config)))
    for one, two in zip(plain, checkpointed, strict=True):
        assert one["reward"] == two["reward"]
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-5)


def experience(k1):
    mask = torch.ones(len(k1), 1, dtype=torch.bool)
    old = torch.tensor(k1)[:, None]
    ids = torch.arange(len(k1))
    return Experience(mask, torch.zeros(len(k1)), ids, torch.ones(len(k1), dtype=torch.bool), old, torch.zeros_like(old))


def test_case_C1_a_kl_far_below_zero_is_a_warning_and_a_noisy_one_is_not(caplog):
    with caplog.at_level(logging.WARNING):
        assert not warn_of_negative_kl(experience([-0.5, 0.4, -0.3, 0.2] * 4))
        assert not warn_of_negative_kl(experience([0.0] * 16))
        assert not caplog.records
        assert warn_of_negative_kl(experience([-0.5, -0.4, -0.5, -0.6] * 4))
    assert "3 standard errors" in caplog.text
