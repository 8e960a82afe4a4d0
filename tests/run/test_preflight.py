"""What is said before anything is trained: all of it at once, each sentence once, with file and row."""

from __future__ import annotations

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM

from tether.config import RunConfig
from tether.errors import ConfigError
from tether.models.resolve import resolve_model
from tether.records import write_jsonl
from tether.run.preflight import preflight

LENGTH = {"kind": "length", "params": {"low": 1, "high": 3, "falloff": 3}}


def prompts(count, word="Say", **columns):
    return [{"prompt": [{"role": "user", "content": f"{word} {i}."}], **columns} for i in range(count)]


@pytest.fixture
def settings(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", prompts(4, answer="1"))
    write_jsonl(tmp_path / "held.jsonl", prompts(3, "Tell", answer="1"))
    grpo = {"kind": "grpo", "prompts": {"path": str(tmp_path / "train.jsonl")}, "rewards": [LENGTH], "sampling": {"max_new_tokens": 8}}
    held = {"prompts": {"path": str(tmp_path / "held.jsonl")}, "sampling": {"max_new_tokens": 8}}
    return {"name": "p", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "rl": {"grpo": grpo}, "evaluate": held}


def problems(settings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        preflight(RunConfig.model_validate(settings))
    return list(caught.value.problems)


def test_a_run_that_fits_passes(settings, caplog):
    preflight(RunConfig.model_validate(settings))
    assert caplog.text == ""


def test_unreadable_lines_and_wrong_columns_come_together_and_once_for_two_stages(settings, tmp_path):
    with (tmp_path / "train.jsonl").open("ab") as file:
        file.write(b'{"prompt": null}\nno json\n')
    settings["rl"]["again"] = settings["rl"]["grpo"]
    (problem,) = problems(settings)
    assert problem.startswith("rl.grpo.prompts, rl.again.prompts: ")
    assert "2 of 6 rows" in problem
    assert "row 5: `prompt` is null" in problem
    assert "row 6: not JSON" in problem


def test_prompts_that_the_model_cannot_take_are_found_in_training_and_evaluation(settings, tmp_path):
    long = {"prompt": [{"role": "user", "content": "word " * 1500}], "answer": "1"}
    write_jsonl(tmp_path / "train.jsonl", [*prompts(2), long])
    write_jsonl(tmp_path / "held.jsonl", [long | {"prompt": "text " * 1500}, *prompts(2, "Tell")])
    training, held = problems(settings)
    assert "rl.grpo.prompts: " in training
    assert "row 3: the prompt has " in training
    assert "2040 leave room for max_new_tokens = 8 in the 2048 positions of the model" in training
    assert "evaluate.prompts: " in held
    assert "row 1: the prompt has " in held


def test_the_limit_of_a_stage_and_the_room_of_the_model_are_one_round(settings, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "word " * n}]} for n in (1, 100, 1500)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    grpo = settings["rl"]["grpo"]
    grpo["max_prompt_tokens"] = 60
    assert "rows" in problems(settings)[0]
    grpo["long_prompts"] = "filter"
    preflight(RunConfig.model_validate(settings))
    grpo["max_prompt_tokens"] = 5000
    assert "1 of 3 rows" in problems(settings)[0]
    grpo["sampling"] = {"max_new_tokens": 4000}
    assert "max_new_tokens = 4000 leaves no room for a prompt" in problems(settings)[0]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj", "v_prj"], r"no layer of the model is called v_prj; did you mean v_proj?"),
        (["xyz"], "no layer of the model is called xyz; its linear layers are: down_proj, gate_proj, "),
    ],
)
def test_adapters_without_a_layer_are_an_error(settings, targets, message):
    pytest.importorskip("peft")
    settings["model"]["lora"] = {"targets": targets}
    (problem,) = problems(settings)
    assert problem.startswith("model.lora.targets: ")
    assert message in problem


def test_adapters_that_fit_pass(settings):
    pytest.importorskip("peft")
    settings["model"]["lora"] = {"rank": 2}
    preflight(RunConfig.model_validate(settings))


def test_a_model_that_will_be_downloaded_is_skipped_with_a_sentence_and_one_that_is_missing_is_an_error(settings, caplog):
    settings["model"] = {"path": "org/not-here", "local_files_only": False}
    preflight(RunConfig.model_validate(settings))
    assert "org/not-here is not on this machine yet" in caplog.text
    settings["model"]["local_files_only"] = True
    assert problems(settings)[0].startswith("model: no folder org/not-here")


def test_models_that_later_stages_need_are_looked_for(settings, tmp_path):
    pairs = [{"prompt": f"q{i}", "chosen": " yes", "rejected": " no"} for i in range(4)]
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    settings["reward_model"] = {"data": {"path": str(tmp_path / "pairs.jsonl")}, "path": str(tmp_path / "nowhere")}
    settings["rl"]["grpo"]["rewards"] = [{"kind": "learned", "params": {"path": str(tmp_path / "nothing")}}]
    backbone, learned = problems(settings)
    assert backbone.startswith("reward_model.path: no model ")
    assert learned.startswith("rl.grpo.rewards: no model ")


def test_comparisons_that_cannot_be_trained_on_are_found(settings, tmp_path):
    pair = {"prompt": "q", "chosen": " yes", "rejected": " no"}
    settings["reward_model"] = {"data": {"path": str(tmp_path / "pairs.jsonl")}}
    write_jsonl(tmp_path / "pairs.jsonl", [pair, pair])
    assert "1 distinct prompt(s)" in problems(settings)[0]
    write_jsonl(tmp_path / "pairs.jsonl", [pair, pair | {"prompt": "p", "chosen": "a<|im_end|>b"}])
    assert "row 2: the answer holds the text of the special token" in problems(settings)[0]


def test_a_missing_chat_template_is_said_once_not_per_row(settings, tmp_path):
    import shutil

    folder = shutil.copytree(resolve_model("tiny"), tmp_path / "plain")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    settings["model"]["path"] = str(folder)
    training, _ = problems(settings)
    assert "rows 1-4: the data holds conversations but the tokenizer has no chat template" in training


def test_answers_that_cannot_be_compared_with_are_named_by_row(settings, tmp_path):
    settings["rl"]["grpo"]["rewards"] = [{"kind": "exact"}, {"kind": "exact", "params": {"column": "gold"}}, LENGTH]
    settings["evaluate"] |= {"score": "exact", "score_params": {"marker": 3}}
    rows = [row | {"answer": answer} for row, answer in zip(prompts(4), ("1", None, "twelve", 4), strict=True)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    answer, gold, marker = problems(settings)
    assert "2 of 4 rows" in answer
    assert "row 2: `answer` is null" in answer
    assert "row 3: `answer` holds no readable number: 'twelve'" in answer
    assert "has no column 'gold' (it has: answer)" in gold
    assert marker.startswith("evaluate.score_params: rewards.exact.params.marker = 3: expected")


def test_a_tokenizer_with_tokens_that_the_model_has_no_row_for_is_found(settings, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(resolve_model("tiny"), folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size - 20)
    model.save_pretrained(folder)
    (found,) = problems({**settings, "model": {"path": str(folder)}})
    assert "the tokenizer has 20 tokens, from id" in found
    assert "for which the model has no row" in found
