"""`tether conformance --config`: a sound run passes, and a fault planted in it fails the check that names it, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tether.algorithms.advantages as estimators
import tether.models.policy as policies
import tether.models.trunk as trunk
import tether.run.learner as trainer
import tether.run.rounds as rounds
from tether.algorithms.policy_gradient import LossSum
from tether.config import RunConfig
from tether.errors import ConfigError
from tether.models.reference import Reference
from tether.records import write_jsonl
from tether.rewards.length import LengthPart
from tether.rollout.local import LocalSampler
from tether.run.learner import OnlineLearner
from tether.run.selfcheck import ConfigVerdict, Limits, Outcome, as_json, as_text, check_config
from tether.text.chat import TokenizedExample
from tether.types import Failure, Score

NAMES = ["tokens", "repeatable", "pads", "ratio", "reference", "sampler", "score", "split", "gradient", "rewards"]
LENGTH = {"kind": "length", "params": {"low": 1, "high": 4, "falloff": 30}}


@pytest.fixture
def check(tmp_path) -> Callable[..., ConfigVerdict]:
    """Check a stage of this kind on the tiny model, in float32 at temperature 0.7."""
    prompts = [{"prompt_id": f"t{i}", "prompt": [{"role": "user", "content": f"Say {i}."}], "answer": str(i)} for i in range(12)]
    write_jsonl(tmp_path / "prompts.jsonl", prompts)
    pairs = [{"prompt": p["prompt"], "chosen": p["answer"], "rejected": "no no"} for p in prompts]
    for pair in pairs:
        pair |= {side: [{"role": "assistant", "content": pair[side]}] for side in ("chosen", "rejected")}
    write_jsonl(tmp_path / "pairs.jsonl", pairs)

    def run(kind: str = "grpo", *, sections: dict[str, Any] | None = None, **settings: Any) -> ConfigVerdict:
        sampling = {"max_new_tokens": 40, "temperature": 0.7}
        stage = {"kind": kind, "prompts": {"path": str(tmp_path / "prompts.jsonl")}, "rewards": [LENGTH], "sampling": sampling, **settings}
        config = {
            "name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
            "rl": {"x": stage}, **(sections or {}),
        }  # fmt: skip
        if "reward_model" in config:
            config["reward_model"] = {"data": {"path": str(tmp_path / "pairs.jsonl")}}
        verdict = check_config(RunConfig.model_validate(config), Limits(max_new_tokens=24))
        assert not (tmp_path / "runs").exists()
        return verdict

    return run


def outcomes(verdict: ConfigVerdict) -> dict[str, Outcome]:
    return {check.name: check.outcome for stage in verdict.stages for check in stage.checks}


def only_failure(verdict: ConfigVerdict) -> Any:
    """The one check that failed; those that do not rest on it passed."""
    failed = [check for stage in verdict.stages for check in stage.checks if check.outcome is Outcome.FAIL]
    assert len(failed) == 1, as_text(verdict)
    assert not verdict.ok
    assert f"1 of 10 checks failed (rl.x: {failed[0].name})" in verdict.sentence
    assert failed[0].advice
    return failed[0]


# -- sound runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("grpo", {}),
        ("grpo", {"kl": {"beta": 0.1, "where": "reward", "estimator": "k1"}, "entropy_coef": 0.01}),
        ("ppo", {}),
        ("ppo", {"kl": {"beta": 0.0, "reference_pass": False}}),
        ("ppo", {"critic": "separate", "value_pretrain_steps": 2, "minibatches": 2, "target_kl": 1e-6}),
        *((kind, {}) for kind in ("vapo", "rloo", "reinforce_pp", "gspo")),
        *(pytest.param(kind, {}, marks=pytest.mark.slow) for kind in ("dr_grpo", "dapo", "reinforce_pp_baseline", "remax")),
        *(pytest.param(kind, {}, marks=pytest.mark.slow) for kind in ("cispo", "gmpo", "opo", "gdpo")),
    ],
)
def test_a_sound_run_passes_every_check(check, kind, settings):
    verdict = check(kind, **settings)
    assert list(outcomes(verdict)) == NAMES
    assert set(outcomes(verdict).values()) <= {Outcome.PASS, Outcome.WARN}, as_text(verdict)
    assert verdict.sentence.startswith("This run computes what it says: 10 of 10 checks passed")


def test_a_lora_run_passes_and_its_reference_is_the_model_with_the_adapter_off(check):
    pytest.importorskip("peft")
    verdict = check("ppo", sections={"model": {"path": "tiny", "lora": {"rank": 4}}})
    assert verdict.ok, as_text(verdict)
    assert "with LoRA" in verdict.stages[0].title


def test_a_reward_model_that_is_not_trained_yet_gets_a_stand_in_that_is_said(check):
    verdict = check("ppo", sections={"reward_model": {}}, rewards=[{"kind": "learned"}], critic="reward_model")
    assert verdict.ok, as_text(verdict)
    told = " ".join(verdict.stages[0].notes)
    assert "made-up scores" in told
    assert "untrained head stands in" in told


def test_online_dpo_is_left_out_with_a_sentence(check):
    verdict = check("online_dpo")
    assert verdict.ok
    assert verdict.skipped == ("rl.x: online_dpo was left out; these checks are of policy gradients (ratios, token rewards)",)
    assert verdict.sentence.startswith("Nothing was checked")


def test_text_has_a_line_a_check_and_json_the_same_figures(check):
    verdict = check()
    text = as_text(verdict)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("  PASS")] == NAMES
    assert text.splitlines()[-1] == verdict.sentence
    data = json.loads(as_json(verdict))
    assert data["ok"] is True
    assert [c["name"] for c in data["stages"][0]["checks"]] == NAMES


def test_what_the_run_would_refuse_is_refused(check, tmp_path):
    with pytest.raises(ConfigError, match="no column 'gold'"):
        check(rewards=[{"kind": "exact", "params": {"column": "gold"}}])


# -- planted faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_a_trainer_without_the_temperature(check, monkeypatch, kind):
    honest = policies.Policy.forward_response
    monkeypatch.setattr(policies.Policy, "forward_response", lambda self, batch, _t, **kw: honest(self, batch, 1.0, **kw))
    failure = only_failure(check(kind))
    assert failure.name == "sampler"
    assert "temperature" in failure.advice


def test_an_update_without_the_temperature(check, monkeypatch):
    honest = OnlineLearner._forward

    def forgetful(self, part, **kw):
        if not torch.is_grad_enabled():
            return honest(self, part, **kw)
        return self.policy.forward_response(part, 1.0, **kw)

    monkeypatch.setattr(OnlineLearner, "_forward", forgetful)
    failure = only_failure(check())
    assert failure.name == "ratio"
    assert "temperature that one of the two passes lacks" in failure.advice


def change_hidden_states(monkeypatch, change):
    """What the policy reads of its trunk becomes ``change(hidden)``."""
    honest = trunk.hidden_states
    monkeypatch.setattr(policies, "hidden_states", lambda *args: replace(hidden := honest(*args), states_NH=change(hidden)))


def test_logits_that_are_not_shifted(check, monkeypatch):
    monkeypatch.setattr(trunk.HiddenStates, "before_live", lambda self, live_BT: self.states_NH[self.place_BT[live_BT]])
    failure = only_failure(check())
    assert failure.name == "sampler"
    assert "off by one position" in failure.advice


def test_dropout(check, monkeypatch):
    change_hidden_states(monkeypatch, lambda hidden: torch.nn.functional.dropout(hidden.states_NH, 0.1))
    monkeypatch.setattr(policies, "_head_is_plain", lambda model: True)
    verdict = check()
    failure = only_failure(verdict)
    assert failure.name == "repeatable"
    assert "dropout" in failure.advice
    skipped = [name for name, outcome in outcomes(verdict).items() if outcome is Outcome.SKIP]
    assert skipped == ["pads", "ratio", "reference", "sampler", "split", "gradient"]
    assert "6 wait for it" in verdict.sentence


def test_a_score_one_past_the_end(check, monkeypatch):
    honest = estimators.shaped_rewards

    def one_past(scores_B, old_BT, ref_BT, mask_BT, beta):
        rewards_BT = honest(torch.zeros_like(scores_B), old_BT, ref_BT, mask_BT, beta)
        past_B1 = (mask_BT * torch.arange(mask_BT.shape[1])).amax(-1, keepdim=True) + 1
        wide_BT = torch.nn.functional.pad(rewards_BT, (0, 1))
        return wide_BT.scatter_add(1, past_B1, scores_B[:, None].to(wide_BT.dtype))[:, :-1]

    monkeypatch.setattr(estimators, "shaped_rewards", one_past)
    failure = only_failure(check("ppo"))
    assert failure.name == "score"
    assert "trained token the last is" in failure.said
    assert "one past it is a pad" in failure.advice


def test_advantages_that_miss_the_last_token(check, monkeypatch):
    honest = estimators.broadcast_to_tokens

    def short(rewards_B, mask_BT):
        return honest(rewards_B, mask_BT & torch.nn.functional.pad(mask_BT[:, 1:], (0, 1)))

    monkeypatch.setattr(estimators, "broadcast_to_tokens", short)
    assert only_failure(check("rloo")).name == "score"


def test_a_kl_that_is_counted_twice_in_the_reward(check, monkeypatch):
    honest = estimators._kl_sums
    monkeypatch.setattr(estimators, "_kl_sums", lambda *args: 2 * honest(*args))
    settings = {"kl": {"beta": 0.1, "where": "reward", "estimator": "k1"}}
    assert only_failure(check("rloo", **settings)).name == "score"


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_a_mean_of_means(check, monkeypatch, aggregation):
    def averaged(self, batch, step, metrics, *, check_ratio):
        for micro in step:
            part = batch.rows(micro)
            loss = self._microbatch(part, metrics, check_ratio=check_ratio)
            counts = trainer.step_counts(part.text.response_mask_BT, self.config)
            self.worker.accumulate(loss.total(self.config, counts) / len(step))
            metrics.add("policy_loss", float(loss.policy.detach()) / counts.policy)
        self.worker.step()
        return True

    monkeypatch.setattr(OnlineLearner, "_optimiser_step", averaged)
    failure = only_failure(check("grpo", aggregation=aggregation))
    assert failure.name == "split"
    assert "mean of means" in failure.advice


def test_a_sampler_that_lies_about_its_log_probabilities(check, monkeypatch):
    honest = LocalSampler.generate

    def lying(self, requests, sampling):
        for completion in honest(self, requests, sampling):
            yield replace(completion, sampler_logprobs=tuple(value - 0.02 for value in completion.sampler_logprobs))

    monkeypatch.setattr(LocalSampler, "generate", lying)
    failure = only_failure(check())
    assert failure.name == "sampler"
    assert "-0.02" in failure.advice


def test_a_reference_that_is_not_the_start(check, monkeypatch):
    honest = Reference.frozen_copy.__func__

    def other(cls, policy, products=torch.float32):
        made = honest(cls, policy, products)
        with torch.no_grad():
            next(made._policy.parameters()).mul_(1.02)
        return made

    monkeypatch.setattr(Reference, "frozen_copy", classmethod(other))
    failure = only_failure(check())
    assert failure.name == "reference"
    assert "not the model that the policy starts from" in failure.advice


def _example(prompt_ids, completion_ids, live):
    return TokenizedExample((*prompt_ids, *completion_ids), tuple(live))


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (lambda p, c: [False] * (p - 2) + [True] * (c + 2), "trains 2 tokens of its prompt"),
        (lambda p, c: [False] * p + [True] * (c - 1) + [False], "leaves out 1 of its"),
    ],
    ids=["prompt tokens in", "end token out"],
)
def test_a_wrong_mask(check, monkeypatch, mask, said):
    monkeypatch.setattr(rounds, "sampled_example", lambda p, c: _example(p, c, mask(len(p), len(c))))
    verdict = check()
    failure = only_failure(verdict)
    assert failure.name == "tokens"
    assert said in failure.said
    assert set(outcomes(verdict).values()) == {Outcome.FAIL, Outcome.SKIP, Outcome.PASS}
    assert outcomes(verdict)["rewards"] is Outcome.PASS


def test_text_that_was_encoded_again(check, monkeypatch):
    monkeypatch.setattr(rounds, "sampled_example", lambda p, c: _example(p, (*c[:-1], c[-1] ^ 1), [False] * len(p) + [True] * len(c)))
    failure = only_failure(check())
    assert failure.name == "tokens"
    assert "not its prompt and its sampled answer" in failure.said


def test_a_model_that_sees_its_pads(check, monkeypatch):
    monkeypatch.setattr(trunk, "packs", lambda trunk: False)  # packed rows have no pads to see

    def leaky(hidden):
        hidden_BTH = hidden.states_NH[hidden.place_BT]
        return (hidden_BTH + 0.01 * hidden_BTH[:, -1:]).flatten(0, 1)

    change_hidden_states(monkeypatch, leaky)
    failure = only_failure(check())
    assert failure.name == "pads"
    assert "attention mask" in failure.advice


def test_a_model_that_sees_the_other_rows(check, monkeypatch):
    change_hidden_states(monkeypatch, lambda hidden: hidden.states_NH + 0.01 * hidden.states_NH.mean(0))
    assert only_failure(check()).name == "pads"


@pytest.mark.parametrize("fault", ["doubled", "detached", "layer"])
def test_a_gradient_of_another_function(check, monkeypatch, fault):
    if fault == "layer":  # one matrix gets a third of its gradient
        honest_init = OnlineLearner.__init__

        def init(self, policy, *args, **kw):
            policy.model.model.layers[1].self_attn.o_proj.weight.register_hook(lambda gradient: gradient / 3)
            honest_init(self, policy, *args, **kw)

        monkeypatch.setattr(OnlineLearner, "__init__", init)
    elif fault == "doubled":
        honest = LossSum.total
        scaled = lambda x: x.detach() + 2 * (x - x.detach())  # noqa: E731
        monkeypatch.setattr(LossSum, "total", lambda self, *args: scaled(honest(self, *args)))
    else:  # the trunk is cut off: the tied embedding is trained as the head alone
        change_hidden_states(monkeypatch, lambda hidden: hidden.states_NH.detach())
    failure = only_failure(check())
    assert failure.name == "gradient"
    assert "another function's gradient" in failure.advice


# -- rewards -----------------------------------------------------------------------------------------------------------------


def test_a_verifier_that_breaks(check, monkeypatch):
    monkeypatch.setattr(LengthPart, "score", lambda self, rollouts: [Failure("length", "no ruler")] * len(rollouts))
    failure = only_failure(check())
    assert failure.name == "rewards"
    assert "no ruler" in failure.said


def test_no_part_applies(check, monkeypatch):
    monkeypatch.setattr(LengthPart, "score", lambda self, rollouts: [Score(None)] * len(rollouts))
    assert only_failure(check()).name == "rewards"


def test_equal_scores_are_worth_a_warning_and_the_gradient_is_checked_all_the_same(check, monkeypatch):
    monkeypatch.setattr(LengthPart, "score", lambda self, rollouts: [Score(1.0)] * len(rollouts))
    verdict = check()
    assert verdict.ok
    assert outcomes(verdict)["rewards"] is Outcome.WARN
    assert "all answers score 1" in as_text(verdict)
    assert "made-up ones take their place" in as_text(verdict)
    assert "something to look at (rl.x: rewards)" in verdict.sentence


# -- the run's folder --------------------------------------------------------------------------------------------------------


def test_a_finished_stage_is_read_and_the_folder_is_left_as_it_was(tmp_path):
    from tether.run.pipeline import run

    prompts = [{"prompt_id": f"t{i}", "prompt": f"Say {i}.", "completion": f"{i}."} for i in range(4)]
    write_jsonl(tmp_path / "rows.jsonl", prompts)
    rows = {"path": str(tmp_path / "rows.jsonl")}
    config = RunConfig.model_validate(
        {
            "output": str(tmp_path), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1}, "sft": {"data": rows},
            "rl": {"x": {"kind": "grpo", "prompts": rows, "rewards": [LENGTH], "steps": 1, "sampling": {"max_new_tokens": 4}}},
        }
    )  # fmt: skip
    assert "the sft stage has not run" in check_config(config, Limits(max_new_tokens=4)).stages[0].notes[0]
    run(config)

    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in config.folder.rglob("*") if path.is_file()}

    before = files()
    verdict = check_config(config, Limits(max_new_tokens=4))
    assert verdict.ok, as_text(verdict)
    assert not any("sft" in note for note in verdict.stages[0].notes)
    assert files() == before
