"""Model cards: beside every saved model, in the hub's format, with the figures of the run and nothing of the machine."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from tether.config import RunConfig
from tether.models.card import CardFacts, CardKind, front_matter, model_card
from tether.records import write_jsonl
from tether.run.pipeline import run


def turn(content, role="user"):
    return [{"role": role, "content": content}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("home-of-somebody")
    prompts = [{"prompt_id": f"t{i}", "prompt": turn(f"Say {i}."), "answer": str(i)} for i in range(8)]
    write_jsonl(home / "prompts.jsonl", prompts)
    write_jsonl(home / "held.jsonl", [{"prompt_id": f"h{i}", "prompt": turn(f"Tell {i}."), "answer": str(i)} for i in range(6)])
    write_jsonl(home / "demos.jsonl", [{"prompt": p["prompt"], "completion": turn(p["answer"] + ".", "assistant")} for p in prompts])
    sampling = {"max_new_tokens": 8}
    config = {
        "name": "cards", "output": str(home / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
        "sft": {"data": {"path": str(home / "demos.jsonl")}, "batch_size": 4},
        "reward_model": {"data": {"path": "tether:quickstart_comparisons.jsonl", "limit": 16}, "batch_size": 8},
        "rl": {"ppo": {"kind": "ppo", "prompts": {"path": str(home / "prompts.jsonl")}, "rewards": [{"kind": "learned"}], "steps": 1,
                       "prompts_per_step": 4, "sampling": sampling},
               "grpo": {"kind": "grpo", "prompts": {"path": str(home / "prompts.jsonl")}, "steps": 1, "prompts_per_step": 2,
                        "samples_per_prompt": 2, "sampling": sampling,
                        "rewards": [{"kind": "length", "params": {"low": 1, "high": 4, "falloff": 4}}]}},
        "evaluate": {"prompts": {"path": str(home / "held.jsonl")}, "score": "exact", "sampling": sampling},
    }  # fmt: skip
    return run(RunConfig.model_validate(config)).folder


STAGES = ("sft", "reward_model", "rl.ppo", "rl.grpo")


@pytest.mark.parametrize("stage", STAGES)
def test_every_saved_model_has_a_card_that_the_hub_can_read(folder, stage):
    text = (folder / stage / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\n")
    head = yaml.safe_load(text.split("---\n")[1])
    assert head == front_matter(folder / stage)
    assert head["library_name"] == "transformers"
    assert head["tags"][0] == "tether"
    assert head["pipeline_tag"] == ("text-classification" if stage == "reward_model" else "text-generation")
    for section in ("## How it was trained", "## Evaluation", "## Intended use and limits", "## How to load it"):
        assert section in text
    summary = json.loads((folder / stage / "stage.json").read_text())["summary"]
    assert summary["weights_sha256"] in text
    assert summary["data_sha256"] in text


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_of_the_machine_is_in_a_card(folder, stage):
    text = (folder / stage / "README.md").read_text(encoding="utf-8")
    for private in (str(Path.home()), "home-of-somebody", f"/{getpass.getuser()}", "/tmp", str(folder)):
        assert private not in text


def test_a_card_tells_the_kl_the_score_and_the_gain_with_intervals(folder):
    text = (folder / "rl.ppo" / "README.md").read_text(encoding="utf-8")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    row, gain = evaluation["policies"][1], evaluation["gains"][0]
    assert f"{row['mean']:z.3f} [{row['low']:z.3f}, {row['high']:z.3f}]" in text
    assert f"{gain['difference']:+z.3f} [{gain['low']:+z.3f}, {gain['high']:+z.3f}]" in text
    assert f"KL(policy || start) {row['kl_sequence_sum_nats']:z.3f} nats per answer" in text
    assert evaluation["prompts_sha256"] in text
    assert "| `kl.beta` |" in text


def test_simulated_judgements_are_said_where_they_were_used_and_only_there(folder):
    said = {stage: "simulated rater" in (folder / stage / "README.md").read_text(encoding="utf-8") for stage in STAGES}
    assert said == {"sft": False, "reward_model": True, "rl.ppo": True, "rl.grpo": False}


def test_a_saved_policy_is_what_evaluation_harnesses_load(folder):
    """lm-evaluation-harness's hf model reads exactly these: config, weights, tokenizer, chat template."""
    model = AutoModelForCausalLM.from_pretrained(folder / "rl.ppo", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "rl.ppo", local_files_only=True)
    ids = tokenizer.apply_chat_template(turn("Say 1."), add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
    assert tokenizer.chat_template
    assert tokenizer.eos_token_id is not None
    assert model(ids).logits.shape == (1, ids.shape[1], model.config.vocab_size)
    assert model.config.max_position_embeddings >= 64


def test_the_head_names_what_is_known_and_leaves_out_the_rest():
    facts = CardFacts("x", CardKind.POLICY, "ppo", "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0", ["org/data"])
    head = yaml.safe_load(model_card(facts).split("---\n")[1])
    assert (head["base_model"], head["license"], head["datasets"]) == (facts.base_model, "apache-2.0", ["org/data"])
    bare = yaml.safe_load(model_card(CardFacts("x", CardKind.POLICY, "ppo", "my-model")).split("---\n")[1])
    assert bare.keys().isdisjoint({"base_model", "license", "datasets"})
    assert "was not evaluated" in model_card(CardFacts("x", CardKind.POLICY, "ppo", "my-model"))


def test_a_readme_without_a_head_is_no_head(tmp_path):
    assert front_matter(tmp_path) == {}
    (tmp_path / "README.md").write_text("# hello\n---\n: [\n---\n")
    assert front_matter(tmp_path) == {}
