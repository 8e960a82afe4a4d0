"""A single row that does not fit: its activations are recomputed from there on, with the result of a run that did so from the start."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Crash, CrashAt, assert_same, make_config, resumed_after, sections_of

import tether
from tether.backends.compute import Compute
from tether.backends.memory_guard import MemoryGuard
from tether.config import ActorCriticConfig, RunConfig
from tether.errors import DoesNotFitError, ModelError
from tether.events import read_events
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.models.value import Critic
from tether.run.learner import OnlineLearner
from tether.run.pipeline import run
from tether.run.rows import RolloutRow

COMPUTE = Compute(torch.device("cpu"), torch.float32, 16)
ROWS = [RolloutRow((5, 6, 7 + i // 2), (20 + i, 21), None, float(i % 2), f"p{i // 2}", True) for i in range(4)]


def recomputing(model):
    """Whether the layers of a transformers model do so (its own name for the question differs between versions)."""
    return any(vars(module).get("gradient_checkpointing", False) for module in model.modules()) and model.training


@pytest.fixture
def scarce(monkeypatch):
    """A machine that holds the activations of no row, and of any row where they are recomputed. Gives the number of passes that failed."""
    failed = []

    def guard(owner, name, model_of):
        real = getattr(owner, name)

        def call(self, *args, **options):
            if torch.is_grad_enabled() and not recomputing(model_of(self)):
                failed.append(name)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return real(self, *args, **options)

        monkeypatch.setattr(owner, name, call)

    guard(Policy, "forward_response", lambda policy: policy.model)
    guard(RewardModel, "score_batch_by_head", lambda model: model.model)
    guard(Critic, "forward_values", lambda critic: critic.trunk)
    return failed


def config_of(kind, folder, choice, **changed):
    folder.mkdir(exist_ok=True)
    sections, stage, _ = sections_of(kind.removesuffix(" separate"), folder)
    if kind.endswith("separate"):
        sections["rl"]["a"]["critic"] = "separate"
    compute = {"dtype": "float32", "threads": 1, "token_budget": 16, "activation_checkpointing": choice}
    return RunConfig.model_validate(make_config(folder, **sections) | {"compute": compute} | changed), stage


def warnings_of(folder):
    texts = [event["text"] for event in read_events(folder / "events.jsonl") if event["kind"] == "warning"]
    return [text for text in texts if "does not fit" in text]


def learner(choice, **settings):
    base = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": 4}, "steps": 4}
    policy = Policy.load(resolve_model("tiny"))
    critic = Critic.beside(policy.model)
    config = ActorCriticConfig.model_validate({**base, "critic": "separate", **settings})
    compute = replace(COMPUTE, activation_checkpointing=choice)
    return OnlineLearner(policy, Reference.frozen_copy(policy), config, compute, critic=critic)


def recomputes(made):
    return recomputing(made.policy.model), recomputing(made.critic.trunk)


_MORE = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("reward_model", "dpo", "kto", "ppo separate", "online_dpo")]


@pytest.mark.parametrize("kind", ["sft", pytest.param("grpo", marks=pytest.mark.slow), *_MORE])
def test_by_need_equals_from_the_start_bit_for_bit(kind, scarce, tmp_path):
    config, stage = config_of(kind, tmp_path / "by_need", "auto")
    by_need = run(config).folder
    assert len(scarce) == 1  # the step was repeated once
    from_the_start = run(config_of(kind, tmp_path / "from_the_start", True)[0]).folder
    assert len(scarce) == 1
    assert_same(from_the_start, by_need, stage)
    (text,) = warnings_of(by_need)
    assert "single row" in text
    assert "compute.activation_checkpointing = true" in text
    assert warnings_of(from_the_start) == []


def test_several_rows_are_split_first(scarce, tmp_path):
    config, stage = config_of("sft", tmp_path, "auto")
    wide = config.model_copy(update={"compute": config.compute.model_copy(update={"token_budget": 4096}), "name": "wide"})
    folder = run(wide).folder
    found = warnings_of(folder)
    assert len(found) > 1
    assert all("a pass of" in text for text in found[:-1])
    assert "single row" in found[-1]
    assert load_file(folder / stage / "model.safetensors")


def test_nothing_is_recomputed_while_memory_lasts(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Policy, "enable_activation_checkpointing", lambda self: asked.append(self))
    run(config_of("sft", tmp_path, "auto")[0])
    assert asked == []


@pytest.mark.slow
def test_the_decision_is_kept_over_an_interruption(scarce, tmp_path):
    whole, stage = config_of("grpo", tmp_path / "whole", "auto")
    unbroken = run(whole).folder
    scarce.clear()
    config, _ = config_of("grpo", tmp_path / "broken", "auto")
    with pytest.raises(Crash):
        run(config, observer=CrashAt(stage, 4))
    folder = run(config).folder
    assert resumed_after(folder) == [2]
    assert len(scarce) == 1  # not a second time after the resume
    assert_same(unbroken, folder, stage)


@pytest.mark.parametrize(("then", "expected"), [("auto", (True, True)), (False, (False, False)), (True, (True, True))])
def test_the_state_of_a_learner_says_so_and_the_setting_has_the_last_word(then, expected, scarce):
    made = learner("auto")
    assert recomputes(made) == (False, False)
    made.learn(ROWS)
    assert recomputes(made) == (True, True)
    state = made.state()
    assert json.loads(json.dumps(state.values["guard"]))["recomputing"] is True
    again = learner(then)
    again.restore(state)
    assert recomputes(again) == expected


@pytest.mark.parametrize(("choice", "fails_first"), [pytest.param("auto", True, marks=pytest.mark.slow), (True, False)])
def test_the_functions_for_python_follow_the_setting_too(choice, fails_first, scarce):
    policy = Policy.load(resolve_model("tiny"))
    compute = {"dtype": "float32", "threads": 1, "token_budget": 16, "activation_checkpointing": choice}
    tether.grpo(policy, ["a", "b"], lambda prompt, answer: float(len(answer)), steps=1, sampling={"max_new_tokens": 4}, compute=compute)
    assert bool(scarce) == fails_first
    assert recomputing(policy.model)


def test_a_state_from_before_the_option_is_read():
    guard = MemoryGuard(COMPUTE, [])
    state = guard.state()
    guard.restore(type(state)(values={"limit": None}))
    assert guard.state().values == {"limit": None, "recomputing": False}


# -- the end -----------------------------------------------------------------------------------------------------------------


class Model:
    """Counts how often it was asked; ``able`` says whether it can."""

    def __init__(self, able=True):
        self.able, self.asked = able, 0

    def enable_activation_checkpointing(self):
        self.asked += 1
        if not self.able:
            raise ModelError("Model does not support activation checkpointing: switch it off")


def never_fits():
    raise DoesNotFitError(1, 900)


@pytest.mark.parametrize(
    ("choice", "able", "asked", "words"),
    [
        ("auto", True, 1, "cannot be split, although activations are recomputed .*: shorten rows .*max_length"),
        (True, True, 1, "cannot be split, although activations are recomputed"),
        ("auto", False, 1, "cannot be split, and this model cannot recompute its activations: shorten rows"),
        (False, True, 0, r'cannot be split: shorten rows .*set compute\.activation_checkpointing = "auto"'),
    ],
)
def test_a_row_that_does_not_fit_either_way_ends_the_run_in_words(choice, able, asked, words):
    model, discarded = Model(able), []
    guard = MemoryGuard(replace(COMPUTE, activation_checkpointing=choice), [model])
    with pytest.raises(DoesNotFitError, match=words) as caught:
        guard.repeat(never_fits, lambda: discarded.append(1))
    assert model.asked == asked
    assert discarded
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_model_that_cannot_is_refused_at_once_where_it_was_asked_for():
    with pytest.raises(ModelError, match="does not support"):
        MemoryGuard(replace(COMPUTE, activation_checkpointing=True), [Model(able=False)])
