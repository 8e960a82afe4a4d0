"""A whole run on the tiny model: stages, files, reuse, refusals, the same numbers twice."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tether.config import RunConfig
from tether.errors import ConfigError, RunError
from tether.events import read_events
from tether.records import write_jsonl
from tether.run.pipeline import run


def turn(content, role="user"):
    return [{"role": role, "content": content}]


@pytest.fixture
def config(tmp_path):
    prompts = [{"prompt_id": f"t{i}", "prompt": turn(f"Say {i}."), "answer": str(i)} for i in range(12)]
    write_jsonl(tmp_path / "prompts.jsonl", prompts)
    write_jsonl(tmp_path / "held.jsonl", [{"prompt_id": f"h{i}", "prompt": turn(f"Tell {i}."), "answer": str(i)} for i in range(6)])
    write_jsonl(tmp_path / "demos.jsonl", [{"prompt": p["prompt"], "completion": turn(p["answer"] + ".", "assistant")} for p in prompts])
    pairs = [{"prompt": p["prompt"], "chosen": turn("Yes.", "assistant"), "rejected": turn("no no no no", "assistant")} for p in prompts]
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    sampling = {"max_new_tokens": 8}
    return {
        "name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
        "sft": {"data": {"path": str(tmp_path / "demos.jsonl")}, "batch_size": 5},
        "reward_model": {"data": {"path": str(tmp_path / "pairs.jsonl")}, "batch_size": 4, "epochs": 3, "optim": {"learning_rate": 1e-3}},
        "rl": {
            "ppo": {"kind": "ppo", "prompts": {"path": str(tmp_path / "prompts.jsonl")}, "rewards": [{"kind": "learned"}], "steps": 2,
                    "prompts_per_step": 4, "minibatches": 2, "sampling": sampling},
            "grpo": {"kind": "grpo", "prompts": {"path": str(tmp_path / "prompts.jsonl")}, "steps": 2, "prompts_per_step": 2,
                     "samples_per_prompt": 3, "sampling": sampling,
                     "rewards": [{"kind": "length", "params": {"low": 1, "high": 4, "falloff": 4}}]},
        },
        "evaluate": {"prompts": {"path": str(tmp_path / "held.jsonl")}, "sampling": sampling},
    }  # fmt: skip


def test_a_run_leaves_models_that_plain_transformers_load_events_and_a_report(config):
    result = run(RunConfig.model_validate(config))
    folder = result.folder
    for stage in ("sft", "rl.ppo", "rl.grpo"):
        AutoModelForCausalLM.from_pretrained(folder / stage, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder / "reward_model", local_files_only=True)
    assert model.config.num_labels == 1
    events = list(read_events(folder / "events.jsonl"))
    assert events[0]["kind"] == "run_started"
    assert events[-1]["kind"] == "run_finished"
    said = [event["text"] for event in events if event["kind"] == "message" and event["text"].startswith("sampler: ")]
    # once for all stages
    assert said == ["sampler: matrices are not prepacked, because the trained weights are read where they lie (none is copied)"]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert [p["name"] for p in evaluation["policies"]] == ["start", "ppo", "grpo"]
    assert [(g["before"], g["after"]) for g in evaluation["gains"]] == [("start", "ppo"), ("start", "grpo")]
    assert evaluation["policies"][1]["kl_sequence_sum_nats"] != 0
    for policy in evaluation["policies"][1:]:
        low, high = policy["kl_sequence_interval_nats"]
        assert low <= policy["kl_sequence_sum_nats"] <= high
        assert (low < high) == (policy["kl_sequence_sum_nats"] != 0)
    page = result.report.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "unfinished" not in page  # the report of a run that ended says so
    assert [(g["before"], g["after"]) for g in evaluation["proxy_gains"]] == [("start", "ppo"), ("start", "grpo")]
    length = evaluation["proxy_gains"][1]
    before, _, after = (policy["proxies"] for policy in evaluation["policies"])
    assert length["difference"] == pytest.approx(after["grpo"] - before["grpo"])
    assert length["low"] <= length["difference"] <= length["high"]


def steps_of(folder):
    timed = ("seconds", "per_second")
    return [
        (e["stage"], e["step"], {k: v for k, v in e["metrics"].items() if not k.endswith(timed)})
        for e in read_events(folder / "events.jsonl") if e["kind"] == "step"
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_numbers_and_finished_stages_are_reused(config):
    first = run(RunConfig.model_validate(config))
    once = steps_of(first.folder)
    run(RunConfig.model_validate(config))
    assert steps_of(first.folder) == once  # nothing was trained again
    second = run(RunConfig.model_validate({**config, "name": "again"}))
    assert steps_of(second.folder) == once
    one = AutoModelForCausalLM.from_pretrained(first.folder / "rl.ppo").state_dict()
    two = AutoModelForCausalLM.from_pretrained(second.folder / "rl.ppo").state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_interrupted_run_continues_with_the_stage_it_was_in(config, monkeypatch):
    import tether.run.pipeline as pipeline

    whole = RunConfig.model_validate(config)
    honest = pipeline.rl

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "rl", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(whole)
    events = list(read_events(whole.folder / "events.jsonl"))
    assert events[-1]["kind"] == "interrupted"
    monkeypatch.setattr(pipeline, "rl", honest)
    run(whole)
    started = [e["stage"] for e in read_events(whole.folder / "events.jsonl") if e["kind"] == "stage_started"]
    assert started == ["sft", "reward_model", "rl.ppo", "rl.ppo", "rl.grpo", "evaluate"]


def test_another_configuration_in_the_same_folder_is_refused_by_name_and_fresh_sets_the_old_one_aside(config):
    small = {**config, "rl": {}, "reward_model": None, "evaluate": None}
    run(RunConfig.model_validate(small))
    changed = RunConfig.model_validate({**small, "seed": 3})
    with pytest.raises(RunError, match=r"changed: seed"):
        run(changed)
    run(changed, fresh=True)
    assert (changed.folder.parent / "t.old1" / "sft" / "model.safetensors").exists()


def test_held_out_prompts_that_were_trained_on_are_refused(config, tmp_path):
    write_jsonl(tmp_path / "held.jsonl", [{"prompt_id": "h", "prompt": turn("Say 3."), "answer": "3"}])
    config["rl"].pop("ppo")
    with pytest.raises(ConfigError, match="training prompts too"):
        run(RunConfig.model_validate({**config, "sft": None, "reward_model": None}))


def test_case_H4_a_prompt_limit_has_an_effect(config, tmp_path):
    long = [{"prompt_id": "long", "prompt": turn("word " * 50), "answer": "x"}]
    short = [{"prompt_id": f"s{i}", "prompt": turn(f"Say {i}."), "answer": "x"} for i in range(4)]
    write_jsonl(tmp_path / "prompts.jsonl", long + short)
    base = {
        **config,
        "sft": None,
        "reward_model": None,
        "evaluate": None,
        "rl": {"grpo": {**config["rl"]["grpo"], "max_prompt_tokens": 60}},
    }
    with pytest.raises(ConfigError, match=r"rl\.grpo\.prompts: .*(?s:.*)row 1: the prompt has .* the limit is 60"):
        run(RunConfig.model_validate(base))
    base["rl"]["grpo"]["long_prompts"] = "filter"
    run(RunConfig.model_validate(base), fresh=True)


def test_what_can_be_known_to_fail_is_said_before_training_all_at_once(config, tmp_path):
    config["rl"]["grpo"]["rewards"] = [{"kind": "length"}, {"kind": "exact", "params": {"column": "nope"}}]
    config["rl"]["ppo"]["prompts"] = {"path": str(tmp_path / "missing.jsonl")}
    config["evaluate"]["score_params"] = {"colum": 1}
    with pytest.raises(ConfigError) as caught:
        run(RunConfig.model_validate(config))
    text = str(caught.value)
    for expected in ("rl.ppo.prompts: ", "rl.grpo.rewards: rewards.length", "no column 'nope'", "evaluate.score_params: "):
        assert expected in text
    assert not (tmp_path / "runs").exists()


def test_a_setting_that_no_finished_stage_depends_on_may_change_and_the_rest_is_reused(config):
    small = {**config, "rl": {"grpo": config["rl"]["grpo"]}, "reward_model": None}
    run(RunConfig.model_validate(small))
    small["evaluate"] = {**small["evaluate"], "samples_per_prompt": 2}
    run(RunConfig.model_validate(small))
    events = list(read_events(RunConfig.model_validate(small).folder / "events.jsonl"))
    started = [event["stage"] for event in events if event["kind"] == "stage_started"]
    assert started == ["sft", "rl.grpo", "evaluate", "evaluate"]
    kept = json.loads((RunConfig.model_validate(small).folder / "evaluation.old1.json").read_text())
    assert kept["policies"][0]["samples_per_prompt"] == 1  # the result of before is not lost
    run(RunConfig.model_validate(small))
    assert len(list(read_events(RunConfig.model_validate(small).folder / "events.jsonl"))) == len(events) + 2  # started, finished


def test_a_folder_that_cannot_be_written_is_a_run_error(config, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be used as a run folder"):
        run(RunConfig.model_validate({**config, "output": str(tmp_path / "file")}))


@pytest.mark.parametrize("stage", ["sft", "rl.grpo"])
def test_a_finished_stage_is_not_reused_for_other_data(config, tmp_path, stage):
    """The second round of a collection: more judgements, the same file name. Held-out prompts that changed are evaluated anew."""
    small = RunConfig.model_validate({**config, "rl": {"grpo": config["rl"]["grpo"]}, "reward_model": None})
    first = run(small)
    file = tmp_path / {"sft": "demos.jsonl", "rl.grpo": "prompts.jsonl"}[stage]
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match=rf"{stage} was made from other data: .*{file.name} has changed since.*--fresh.*--accept-changes"):
        run(small)
    run(small, accept_changes=True)
    file.write_text("".join(lines))
    run(small)
    held = tmp_path / "held.jsonl"
    held.write_text("".join(held.read_text().splitlines(keepends=True)[:-1]))
    again = run(small)
    assert again.evaluation["policies"][0]["num_prompts"] == first.evaluation["policies"][0]["num_prompts"] - 1
    assert (small.folder / "evaluation.old1.json").exists()

