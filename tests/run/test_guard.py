"""Around every optimiser step: what does not fit is split and repeated, what is not finite is skipped and counted (R16)."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import tether
from tether.backends.compute import Compute
from tether.config import ActorCriticConfig, CriticFreeConfig, OnlineDPOConfig, RunConfig
from tether.errors import DoesNotFitError, NumericsError, RewardError
from tether.events import read_events
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.records import write_jsonl
from tether.run.learner import OnlineLearner
from tether.run.online_dpo import OnlineDPOLearner
from tether.run.pipeline import run
from tether.run.rows import RolloutRow
from tether.types import Score

FLOAT32 = Compute(torch.device("cpu"), torch.float32, 4096)
NAN = float("nan")
OPTIM = {"learning_rate": 1e-3, "eps": 1e-3}  # an eps that does not blow rounding up to the size of an update
OUT_OF_MEMORY = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError(),
                 RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]  # fmt: skip


@pytest.fixture
def policy():
    return Policy.load(resolve_model("tiny"), value_head="shared")


def turn(content, role="user"):
    return [{"role": role, "content": content}]


def config_of(kind, folder, **optim):
    prompts = [{"prompt_id": f"t{i}", "prompt": turn(f"Say {i}.")} for i in range(6)]
    write_jsonl(folder / "prompts.jsonl", prompts)
    demos = [{"prompt": p["prompt"], "completion": turn("a" * (1 + i), "assistant")} for i, p in enumerate(prompts)]
    write_jsonl(folder / "demos.jsonl", demos)
    answers = [{"prompt": p["prompt"], "chosen": turn(f"Yes {i}.", "assistant"), "rejected": turn("no " * (1 + i), "assistant")}
               for i, p in enumerate(prompts * 2)]  # fmt: skip
    write_jsonl(folder / "pairs.jsonl", answers)
    pairs, optim = {"path": str(folder / "pairs.jsonl")}, {**OPTIM, **optim}
    online = {"kind": kind, "prompts": {"path": str(folder / "prompts.jsonl")}, "steps": 6, "prompts_per_step": 3, "optim": optim,
              "samples_per_prompt": 3, "sampling": {"max_new_tokens": 6},
              "rewards": [{"kind": "length", "params": {"low": 1, "high": 3, "falloff": 4}}]}  # fmt: skip
    sections = {
        "sft": {"sft": {"data": {"path": str(folder / "demos.jsonl")}, "batch_size": 3, "epochs": 3, "optim": optim}},
        "reward_model": {"reward_model": {"data": pairs, "batch_size": 2, "epochs": 2, "optim": optim}},
        "dpo": {"direct": {"a": {"kind": "dpo", "data": pairs, "batch_size": 2, "optim": optim, "held_out_share": 0}}},
        "kto": {"direct": {"a": {"kind": "kto", "data": pairs, "batch_size": 4, "optim": optim, "held_out_share": 0}}},
    }.get(kind, {"rl": {"a": online}})
    base = {"name": "t", "output": str(folder / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1}}
    return RunConfig.model_validate({**base, **sections})


STAGES = {"sft": "sft", "reward_model": "reward_model", "dpo": "direct.a", "kto": "direct.a", "grpo": "rl.a", "ppo": "rl.a",
          "online_dpo": "rl.a"}  # fmt: skip


def passes(monkeypatch, change):
    """Every pass of a model that makes a gradient goes through ``change(number, tokens, run)``, run() giving the tensor that counts."""
    forward, score, count = Policy.forward_response, RewardModel.score_batch_by_head, iter(range(10**9))

    def of_policy(self, batch, *args, **options):
        if not torch.is_grad_enabled():
            return forward(self, batch, *args, **options)
        output = forward(self, batch, *args, **options)
        return replace(output, logprobs_BT=change(next(count), batch.token_ids_BT.numel(), output.logprobs_BT))

    def of_reward(self, batch, *args, **options):
        scores = score(self, batch, *args, **options)
        return change(next(count), batch.token_ids_BT.numel(), scores) if torch.is_grad_enabled() else scores

    monkeypatch.setattr(Policy, "forward_response", of_policy)
    monkeypatch.setattr(RewardModel, "score_batch_by_head", of_reward)


def too_large(cap, errors=OUT_OF_MEMORY):
    """As a machine on which ``cap`` padded tokens fit."""

    def change(number, tokens, values):
        if tokens > cap:
            raise errors[number % len(errors)]
        return values

    return change


def steps_of(folder):
    return [event["metrics"] for event in read_events(folder / "events.jsonl") if event["kind"] == "step"]


def warnings_of(folder):
    return [event["text"] for event in read_events(folder / "events.jsonl") if event["kind"] == "warning"]


def weights(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


def make_rows(num_prompts=3, samples=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for prompt in range(num_prompts):
        query = tuple(torch.randint(5, 100, (4 + prompt,), generator=generator).tolist())
        for sample in range(samples):
            length = int(torch.randint(1, 8, (1,), generator=generator))
            answer = tuple(torch.randint(5, 100, (length,), generator=generator).tolist())
            rows.append(RolloutRow(query, answer, None, float(sample), f"p{prompt}", sample % 3 != 0))
    return rows


def learner(policy, kind, token_budget=4096, folder=None, **settings):
    base = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": 8}, "steps": 4, "optim": OPTIM}
    made, config = (OnlineDPOLearner if kind is OnlineDPOConfig else OnlineLearner), kind.model_validate({**base, **settings})
    return made(policy, Reference.frozen_copy(policy), config, replace(FLOAT32, token_budget=token_budget), folder=folder, stage="rl.a")


ONLINE = [CriticFreeConfig, ActorCriticConfig, OnlineDPOConfig]

# -- memory ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cap"),
    [
        ("sft", 40), ("grpo", 60),
        *(pytest.param(*slow, marks=pytest.mark.slow) for slow in (("reward_model", 90), ("dpo", 90), ("kto", 60), ("ppo", 60))),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_split_and_the_result_is_the_same(kind, cap, tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    (tmp_path / "split").mkdir()
    whole = run(config_of(kind, tmp_path / "whole")).folder
    passes(monkeypatch, too_large(cap))
    split = run(config_of(kind, tmp_path / "split")).folder
    found, stage = warnings_of(split), STAGES[kind]
    assert any("does not fit in memory" in text for text in found), found
    one, two = load_file(whole / stage / "model.safetensors"), load_file(split / stage / "model.safetensors")
    for name in one:
        assert torch.allclose(one[name], two[name], atol=2e-5), name
    assert len(steps_of(split)) == len(steps_of(whole))
    assert all(step["skipped_steps"] == 0 for step in steps_of(split))


@pytest.mark.parametrize("kind", ONLINE)
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_round_begins_again_with_old_logprobs_of_the_new_passes(kind, minibatches, policy, monkeypatch):
    settings = {"minibatches": minibatches, "epochs": 2}
    twin = Policy.load(resolve_model("tiny"), value_head="shared")
    passes(monkeypatch, too_large(45))
    repeated = learner(policy, kind, **settings)
    metrics = repeated.learn(make_rows())
    limit = repeated.guard.memory.token_budget
    assert 20 <= limit <= 45
    assert metrics["first_ratio_error"] == 0
    planned = learner(twin, kind, token_budget=limit, **settings)
    assert {k: v for k, v in planned.learn(make_rows()).items() if "seconds" not in k} == {
        k: v for k, v in metrics.items() if "seconds" not in k
    }
    assert torch.equal(weights(policy), weights(twin))


def test_memory_that_runs_out_in_a_later_step_of_a_round_repeats_that_step_alone(policy, monkeypatch):
    seen = []

    def change(number, tokens, values):
        seen.append(tokens)
        if number == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return values

    passes(monkeypatch, change)
    made = learner(policy, CriticFreeConfig, epochs=2)
    metrics = made.learn(make_rows())
    assert metrics["optimiser_steps"] == 2
    assert len(seen) == 5  # the first step, the one that failed, and its three groups: two of them are more than a half
    assert made.guard.memory.token_budget == seen[0] // 2


def test_the_gradient_after_a_repeat_is_that_of_the_same_split(policy, monkeypatch):
    gradients = []

    def keep(made):
        honest = made.worker.step

        def step():
            gradients.append([p.grad.clone() for p in made.worker.parameters if p.grad is not None])
            return honest()

        monkeypatch.setattr(made.worker, "step", step)
        return made

    start = {name: p.clone() for name, p in policy.state_dict().items()}
    keep(learner(policy, CriticFreeConfig)).learn(make_rows())
    policy.load_state_dict(start)
    passes(monkeypatch, too_large(45))
    keep(learner(policy, CriticFreeConfig)).learn(make_rows())
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("kind", [ONLINE[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in ONLINE[1:])])
def test_a_row_that_does_not_fit_alone_says_what_to_do(kind, policy, monkeypatch):
    passes(monkeypatch, too_large(3))
    before = weights(policy)
    with pytest.raises(DoesNotFitError, match=r"cannot be split, although activations are recomputed .*: shorten rows"):
        learner(policy, kind).learn(make_rows())
    assert torch.equal(before, weights(policy))


@pytest.mark.parametrize("kind", ["sft", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("reward_model", "dpo", "kto"))])
def test_a_row_of_a_file_that_does_not_fit_alone_says_what_to_do(kind, tmp_path, monkeypatch):
    passes(monkeypatch, too_large(3))
    with pytest.raises(DoesNotFitError, match="single row"):
        run(config_of(kind, tmp_path))


def test_the_limit_is_part_of_the_state_and_never_above_what_is_asked(policy, monkeypatch):
    passes(monkeypatch, too_large(45))
    made = learner(policy, CriticFreeConfig)
    made.learn(make_rows())
    state = made.state()
    json.dumps(dict(state.values))
    for asked in (4096, 16):
        again = learner(policy, CriticFreeConfig, token_budget=asked)
        again.restore(state)
        assert again.guard.memory.token_budget == min(asked, made.guard.memory.token_budget)


def test_other_runtime_errors_are_not_taken_for_memory(policy, monkeypatch):
    passes(monkeypatch, too_large(0, [RuntimeError("shape mismatch")]))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        learner(policy, CriticFreeConfig).learn(make_rows())


# -- numbers that are not finite ---------------------------------------------------------------------------------------------


def spoil(at, value=NAN):
    """One live number of the passes ``at`` becomes ``value``."""

    def change(number, tokens, values):
        if number not in at:
            return values
        bad = torch.zeros_like(values)
        bad.view(-1)[int(values.detach().flatten().abs().argmax())] = value
        return values + bad

    return change


@pytest.mark.parametrize("value", [NAN, math.inf])
@pytest.mark.parametrize("kind", ["sft", "reward_model", "dpo", "kto", "grpo", "ppo"])
def test_r16_a_step_that_is_not_finite_is_skipped_and_counted(kind, value, tmp_path, monkeypatch):
    passes(monkeypatch, spoil({4}, value))
    folder = run(config_of(kind, tmp_path)).folder
    skipped = [step["skipped_steps"] for step in steps_of(folder)]
    assert sum(skipped) == 1
    assert skipped[4] == 1
    assert any("step 5: the optimiser step was skipped" in text and f"is {value} at row" in text for text in warnings_of(folder))
    assert all(torch.isfinite(tensor).all() for tensor in load_file(folder / STAGES[kind] / "model.safetensors").values())


@pytest.mark.parametrize("kind", list(STAGES))
def test_r16_too_many_in_a_row_stop_the_run_and_keep_the_batch(kind, tmp_path, monkeypatch):
    passes(monkeypatch, spoil({1, 2}))
    config = config_of(kind, tmp_path, max_skipped_steps=2)
    with pytest.raises(NumericsError, match=r"step \d: 2 optimiser steps in a row .* is nan at row \d.*The batch is in .*evidence"):
        run(config)
    (kept,) = (config.folder / "evidence").iterdir()
    facts = json.loads((kept / "facts.json").read_text())
    assert (facts["stage"], facts["skipped_in_a_row"]) == (STAGES[kind], 2)
    assert facts["step"] == 3 or kind == "online_dpo"  # where a round of ties makes no pass
    tensors = load_file(kept / "batch.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == facts["tensors"]
    assert any(name.endswith("token_ids") for name in tensors)


@pytest.mark.parametrize("kind", ONLINE)
def test_r16_a_spoilt_gradient_leaves_every_weight_as_it_was(kind, policy, tmp_path):
    made = learner(policy, kind, folder=tmp_path, optim={**OPTIM, "max_skipped_steps": 3})
    made.learn(make_rows())
    before = weights(policy)
    name, parameter = next((n, p) for n, p in policy.model.named_parameters() if p.ndim == 2)
    hook = parameter.register_hook(lambda gradient: torch.full_like(gradient, NAN))
    for _ in range(2):
        metrics = made.learn(make_rows())
        assert (metrics["skipped_steps"], metrics["optimiser_steps"]) == (1, 0)
        assert torch.equal(before, weights(policy))
    again = learner(policy, kind, folder=tmp_path, optim={**OPTIM, "max_skipped_steps": 3})
    again.restore(made.state())  # the count goes on where it was
    with pytest.raises(NumericsError, match=f"the gradient of model.{name} is nan"):
        again.learn(make_rows())
    assert torch.equal(before, weights(policy))
    hook.remove()
    assert made.learn(make_rows())["skipped_steps"] == 0
    assert made.state().values["guard"]["in_a_row"] == 0


def test_r16_values_that_are_not_finite_skip_the_round_before_anything_is_updated(policy):
    made = learner(policy, ActorCriticConfig)
    made.learn(make_rows())
    before, beta = weights(policy), made.beta
    hook = policy.value_head.register_forward_hook(lambda module, inputs, output: output * NAN)
    metrics = made.learn(make_rows())
    hook.remove()
    assert (metrics["skipped_steps"], metrics["optimiser_steps"], made.beta) == (1, 0, beta)
    assert torch.equal(before, weights(policy))
    assert made.worker.steps == 2 * made.config.epochs * made.config.minibatches  # the schedule moves on all the same


class OncePart:
    """Says ``value`` of every answer of the third step."""

    name = "part"

    def __init__(self, value):
        self.value, self.asked = value, 0

    def score(self, rollouts):
        self.asked += 1
        return [Score(self.value if self.asked == 3 else float(i)) for i, _ in enumerate(rollouts)]


def grpo(policy, part, folder):
    settings = {"steps": 4, "sampling": {"max_new_tokens": 4}, "compute": {"dtype": "float32"}}
    tether.grpo(policy, ["a", "b"], [part], log=folder / "log.jsonl", **settings)


def test_r16_a_round_without_a_reward_is_skipped(policy, tmp_path, caplog):
    grpo(policy, OncePart(NAN), tmp_path)
    steps = [event["metrics"] for event in read_events(tmp_path / "log.jsonl") if event["kind"] == "step"]
    assert [step["skipped_steps"] for step in steps] == [0, 0, 1, 0]
    told = "no rollout of the step has a finite score: reward 'part' said of every answer that it does not apply (None or NaN); to score"
    assert told in caplog.text
    assert "1 in a row; the run stops at optim.max_skipped_steps = 10" in caplog.text


def test_a_reward_function_that_forgets_its_return_is_what_the_last_message_points_to(policy, caplog):
    settings = {"steps": 4, "sampling": {"max_new_tokens": 4}, "compute": {"dtype": "float32"}, "optim": {"max_skipped_steps": 2}}
    before = weights(policy)
    with pytest.raises(NumericsError, match=r"step 2: 2 .* in a row were skipped.*'reward' said of every answer.*lacks a `return`$"):
        tether.grpo(policy, ["a", "b"], lambda prompt, answer: None, **settings)
    assert torch.equal(weights(policy), before)


def test_r16_an_infinite_reward_is_a_fault_of_its_part_and_reaches_no_gradient(policy, tmp_path):
    with pytest.raises(RewardError, match="the score is inf"):
        grpo(policy, OncePart(math.inf), tmp_path)
    assert all(torch.isfinite(weights(policy)))
