"""Every example learns its toy task, holds its tether, and stays short enough to be read alone."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
NAMES = ["dpo_loop", "grpo_loop", "ppo_loop", "reward_loop", "sft_loop"]


def _load(name: str) -> ModuleType:
    file = next(path for path in EXAMPLES if path.stem == name)
    spec = importlib.util.spec_from_file_location(f"example_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    spec.loader.exec_module(module)
    return module


def test_the_examples_are_these():
    assert [path.stem for path in EXAMPLES] == NAMES


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(file: Path):
    assert len(file.read_text(encoding="utf-8").splitlines()) < 300


def test_sft_learns_the_demonstrations(capsys):
    losses = _load("sft_loop").main(steps=60)
    assert losses[0] > 4
    assert losses[-1] < 0.2
    assert "got: Hello, world." in capsys.readouterr().out


def test_reward_model_ranks_prompts_it_never_saw():
    losses, accuracy = _load("reward_loop").main(steps=20)
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy > 0.8


def test_dpo_learns_the_preference_and_a_stronger_tether_holds_it_nearer():
    example = _load("dpo_loop")
    losses, accuracy, distance = example.main(steps=20)
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < 0.2
    assert accuracy == 1
    assert 0 < example.main(steps=20, beta=1.0)[2] < 0.7 * distance
    assert example.main(steps=3, seed=1) == example.main(steps=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo_loop", "ppo_loop"])
def test_online_example_learns_and_a_stronger_tether_holds_it_nearer(name: str):
    example = _load(name)
    rewards, kl = example.main(steps=14, beta=0.02)
    _, tethered_kl = example.main(steps=14, beta=0.5)
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    assert 0 < tethered_kl < 0.7 * kl


@pytest.mark.parametrize("name", ["grpo_loop", pytest.param("ppo_loop", marks=pytest.mark.slow)])
def test_online_example_repeats_itself(name: str):
    example = _load(name)
    assert example.main(steps=3, seed=1) == example.main(steps=3, seed=1)
