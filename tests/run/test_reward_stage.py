"""The reward model stage: rankings as InstructGPT has them, ties, soft labels, heads, LoRA, normalisation, what is stored."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tether.backends.compute import Compute
from tether.config import RewardModelConfig, RunConfig
from tether.data.groups import JudgedPair, TokenizedGroup, as_pairs
from tether.errors import ConfigError, DataError
from tether.events import EventLog, read_events
from tether.maths import davidson_loss, instructgpt_rm_loss, pair_metrics
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.records import write_jsonl
from tether.run.direct_stage import prepare_units
from tether.run.observer import Quiet
from tether.run.pipeline import run
from tether.run.recorder import Recorder
from tether.run.reward_audit.pairs import load_pairs
from tether.run.reward_model import num_steps, train_reward_model
from tether.run.reward_stage import prepare_groups
from tether.text.chat import sampled_example
from tether.types import Comparison, Ranking

COMPUTE = Compute(torch.device("cpu"), torch.float32, 4096)
STILL = {"learning_rate": 1e-12, "warmup_steps": 0}


def settings(**changed) -> RewardModelConfig:
    return RewardModelConfig.model_validate({"data": {"path": "f"}, "centering": 0.0, "optim": STILL, **changed})


def ranking(key: str, *sizes: int) -> TokenizedGroup:
    """Answers of these lengths, the best first, with all their pairs."""
    answers = tuple(sampled_example([1, 2, len(key)], [5 + k] * size) for k, size in enumerate(sizes))
    pairs = tuple(JudgedPair(i, j) for i in range(len(sizes)) for j in range(i + 1, len(sizes)))
    return TokenizedGroup(answers, pairs, key)


def train(groups, held, config, folder, model=None, seed=0):
    model = model or RewardModel.from_base(resolve_model("tiny"), seed=3)
    log = EventLog(folder / "events.jsonl")
    recorder = Recorder(log, Quiet(), "reward_model", num_steps(len(groups), config))
    result = train_reward_model(model, groups, held, config, COMPUTE, recorder, seed)
    log.close()
    return model, result, [e["metrics"] for e in read_events(folder / "events.jsonl") if e["kind"] == "step"]


def raw(model, group) -> torch.Tensor:
    return torch.tensor([float(model.score_batch(_batch(model, answer)).detach()) for answer in group.answers])


def _batch(model, answer):
    from tether.data.batches import pad_examples

    return pad_examples([answer], model.format.pad_id)


# -- rankings ----------------------------------------------------------------------------------------------------------------


def test_a_batch_of_prompts_has_the_loss_of_instructgpt_and_reads_every_answer_once(tmp_path, monkeypatch):
    groups = [ranking("p", 3, 4), ranking("qq", 2, 5, 3, 4), ranking("rrr", 1, 2, 3)]
    rows = []
    real = RewardModel.score_batch_by_head

    def counted(self, batch):
        rows.append(len(batch.token_ids_BT))
        return real(self, batch)

    monkeypatch.setattr(RewardModel, "score_batch_by_head", counted)
    model, _, steps = train(groups, groups, settings(batch_by="prompts", batch_size=3), tmp_path)
    assert sum(rows[: len(rows) // 2]) == 9  # one step, then the measure
    monkeypatch.undo()
    assert steps[0]["loss"] == pytest.approx(float(instructgpt_rm_loss([raw(model, group) for group in groups])), rel=1e-5)


def test_flattened_to_pairs_the_prompt_with_more_answers_weighs_more(tmp_path):
    groups = [ranking("p", 3, 4), ranking("qq", 2, 5, 3, 4)]
    model, _, steps = train(as_pairs(groups), groups, settings(batch_size=7), tmp_path)
    scores = [raw(model, group) for group in groups]
    sides = [([pair.first for pair in group.pairs], [pair.second for pair in group.pairs]) for group in groups]
    gaps = [scores_K[first] - scores_K[second] for scores_K, (first, second) in zip(scores, sides, strict=True)]
    assert steps[0]["loss"] == pytest.approx(float(torch.nn.functional.softplus(-torch.cat(gaps)).mean()), rel=1e-5)


def test_a_step_of_rankings_does_not_depend_on_how_it_is_cut_into_passes(tmp_path):
    groups = [ranking("p", 3, 4), ranking("qq", 2, 5, 3, 4), ranking("rrr", 9, 2, 3)]
    found = []
    for number, budget in enumerate((4096, 16)):
        (tmp_path / str(number)).mkdir()
        log = EventLog(tmp_path / str(number) / "events.jsonl")
        config = settings(batch_by="prompts", batch_size=3, heads=2, ties={}, optim={"learning_rate": 1e-3, "warmup_steps": 0, "eps": 1e-3})
        model = RewardModel.from_base(resolve_model("tiny"), seed=3)
        recorder = Recorder(log, Quiet(), "reward_model", num_steps(3, config))
        train_reward_model(model, groups, groups, config, replace(COMPUTE, token_budget=budget), recorder, 0)
        log.close()
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*found, atol=2e-6, rtol=1e-5)


def test_one_prompt_with_all_its_comparisons_is_one_unit_and_its_answers_are_read_once():
    records = [Comparison(f"q{i % 2}", "yes", "no" if i < 2 else "never", label=0.8) for i in range(4)]
    format = RewardModel.from_base(resolve_model("tiny")).format
    together = prepare_groups(records, settings(batch_by="prompts", held_out_share=0.5), format, "f", 0)
    assert [len(group.answers) for group in (*together.training, *together.held_out)] == [3, 3]
    apart = prepare_groups([*records, Ranking("q0", ("a", "b", "c"), (1, 2, 2))], settings(held_out_share=0.5), format, "f", 0)
    assert "rankings flattened to pairs" in str(apart)
    assert "ties: 1;" in str(apart)
    with pytest.raises(DataError, match="every pair to train on is a tie"):
        prepare_groups([Comparison(f"q{i}", "a", "b", label=0.5) for i in range(4)], settings(), format, "f", 0)


# -- ties and soft labels ----------------------------------------------------------------------------------------------------


def tied(count: int) -> list[TokenizedGroup]:
    """Pairs whose better side begins with 5; every other comparison is a tie of two alike."""
    made = []
    for i in range(count):
        same, label = i % 2 == 0, 0.5 if i % 2 == 0 else 1.0
        answers = (sampled_example([1, i % 7], [5, 9]), sampled_example([1, i % 7], [5 if same else 6, 10]))
        made.append(TokenizedGroup(answers, (JudgedPair(0, 1, label),), f"p{i % 7}"))
    return made


@pytest.mark.parametrize("kind", ["davidson", "rao_kupper"])
def test_the_tie_parameter_is_learned_stored_and_lowers_the_loss(kind, tmp_path):
    optim = {"learning_rate": 3e-3}
    config = settings(ties={"model": kind, "parameter": 0.1}, batch_size=16, epochs=6, optim=optim, head_learning_rate=5e-2)
    model, result, steps = train(tied(48), tied(24), config, tmp_path)
    assert result.num_decided == 12 < result.num_pairs
    assert result.tie_parameter == model.tie_parameter == pytest.approx(steps[-1]["tie_parameter"], rel=0.2)
    assert model.tie_parameter > 0.2  # half of the pairs are ties
    assert steps[-1]["loss"] < steps[0]["loss"]
    fixed = settings(ties={"model": kind, "parameter": 0.1, "learned": False}, batch_size=16, optim=optim)
    (tmp_path / "fixed").mkdir()
    assert train(tied(48), tied(24), fixed, tmp_path / "fixed")[0].tie_parameter == pytest.approx(0.1)


def test_the_loss_of_a_step_with_ties_is_that_of_the_maths(tmp_path):
    groups = tied(8)
    model, result, steps = train(groups, groups, settings(ties={"parameter": 0.7}, batch_size=8), tmp_path)
    first, second = (torch.stack([raw(model, group)[k] for group in groups]) for k in (0, 1))
    labels = torch.tensor([group.pairs[0].label for group in groups])
    expected = float(davidson_loss(first - second, labels, math.log(0.7)).mean())
    assert (steps[0]["loss"], result.nll) == (pytest.approx(expected, rel=1e-5), pytest.approx(expected, rel=1e-5))


def test_soft_labels_are_fitted_and_measured(tmp_path):
    groups = [replace(group, pairs=(replace(group.pairs[0], label=0.75),)) for group in tied(8)]
    model, result, steps = train(groups, groups, settings(batch_size=8), tmp_path)
    first, second = (torch.stack([raw(model, group)[k] for group in groups]) for k in (0, 1))
    told = pair_metrics(first, second, labels=torch.full((8,), 0.75))
    assert steps[0]["loss"] == pytest.approx(told.nll, rel=1e-5)
    assert (result.brier, result.ece) == (pytest.approx(told.brier, rel=1e-5), pytest.approx(told.ece, abs=1e-5))


def test_losses_that_take_no_labels_say_so():
    from tether.config import DirectConfig

    format = RewardModel.from_base(resolve_model("tiny")).format
    config = DirectConfig.model_validate({"kind": "dpo", "data": {"path": "f"}, "held_out_share": 0})
    good = [Comparison("q", "a", "b", label=0.9)]
    assert "labels of 1 rows are for a reward model" in str(prepare_units(good, config, format, "f", 0))
    with pytest.raises(DataError, match=r"row 2: `label` is 0\.5"):
        prepare_units([*good, Comparison("q", "a", "b", label=0.5)], config, format, "f", 0)


# -- the whole stage ---------------------------------------------------------------------------------------------------------


def turn(content, role="user"):
    return [{"role": role, "content": content}]


def run_config(folder, **section) -> RunConfig:
    rows = [{"prompt": turn(f"Say {i % 8}."), "chosen": f"Yes {i}.", "rejected": "no " * (1 + i % 3)} for i in range(24)]
    write_jsonl(folder / "pairs.jsonl", rows)
    write_jsonl(folder / "demos.jsonl", [{"prompt": turn(f"Tell {i}."), "completion": f"Well {i}."} for i in range(5)])
    told = {"data": {"path": str(folder / "pairs.jsonl")}, "batch_size": 6, "optim": {"learning_rate": 1e-3}, **section}
    base = {"name": "t", "output": str(folder / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1}}
    return RunConfig.model_validate({**base, "reward_model": told})


def test_heads_give_a_mean_and_a_standard_deviation_and_plain_transformers_gives_the_mean(tmp_path):
    reference = {"path": str(tmp_path / "demos.jsonl")}
    config = run_config(tmp_path, heads=4, lora={"rank": 2}, batch_by="prompts", normalise={"to": "mean_std", "reference": reference})
    folder = run(config).folder / "reward_model"
    model = RewardModel.load(folder)
    prompts, answers = [tuple(model_turns(f"Tell {i}.")) for i in range(5)], [f"Well {i}." for i in range(5)]
    scored = model.score_texts_with_std(prompts, answers)
    assert all(0 < one.std < 10 for one in scored)
    by_head = model.score_heads.weight.shape[0]
    assert by_head == 4
    scores = [one.mean + model.score_offset for one in scored]
    assert sum(scores) / 5 == pytest.approx(0, abs=1e-4)  # the reference answers, as the configuration says
    assert float(torch.tensor(scores).std()) == pytest.approx(1, abs=1e-3)
    plain = AutoModelForSequenceClassification.from_pretrained(folder)
    ids = torch.tensor([model.format.example(prompts[0], answers[0]).token_ids])
    assert float(plain(input_ids=ids).logits.detach()) == pytest.approx(scored[0].mean, abs=1e-4)
    summary = json.loads((folder / "stage.json").read_text())["summary"]
    assert summary["held_out"]["head_std"] > 0
    (folder / "tether_heads.safetensors").unlink()
    single = RewardModel.load(folder)
    assert math.isnan(single.score_texts_with_std(prompts[:1], answers[:1])[0].std)
    assert single.score_texts(prompts[:1], answers[:1])[0] == pytest.approx(scored[0].mean, abs=1e-4)


def model_turns(text):
    from tether.types import Message

    return [Message("user", text)]


def test_what_the_scores_mean_and_what_they_were_fitted_to_is_stored(tmp_path):
    told = {}
    for to in ("mean", "none"):
        (tmp_path / to).mkdir()
        folder = run(run_config(tmp_path / to, normalise={"to": to}, max_length=40, truncation="left", ties={})).folder / "reward_model"
        told[to] = json.loads((folder / "tether_reward.json").read_text())
        model = RewardModel.load(folder)
        assert (model.max_length, model.truncation) == (40, "left")
    assert told["none"]["score_offset"] == 0
    assert told["mean"]["score_offset"] != 0
    assert told["mean"]["log_odds_per_unit"] == 1
    assert told["mean"]["tie_model"] == "davidson"
    fitted_to = told["mean"]["fitted_to"]
    assert fitted_to["tokens"][0] < fitted_to["tokens"][1] <= 40
    assert len(fitted_to["prompts"].split()) == 6  # of 8 prompts two are held out
    assert len(told["mean"]["tokenizer_sha256"]) == 64
    assert "demonstrated_prompts" not in fitted_to


def test_held_out_prompts_that_the_start_was_fine_tuned_on_are_told(tmp_path):
    config = run_config(tmp_path)
    write_jsonl(tmp_path / "demos.jsonl", [{"prompt": f"Say {i}.", "completion": "Yes."} for i in range(8)])
    sft = {"data": {"path": str(tmp_path / "demos.jsonl")}, "optim": STILL}
    folder = run(RunConfig.model_validate(config.model_dump() | {"sft": sft})).folder
    (told,) = [e["text"] for e in read_events(folder / "events.jsonl") if "prompts of [sft]" in str(e.get("text"))]
    assert told.startswith("reward_model: 2 of the 2 held-out prompts are prompts of [sft]")
    fitted_to = json.loads((folder / "reward_model" / "tether_reward.json").read_text())["fitted_to"]
    pairs = load_pairs(str(tmp_path / "pairs.jsonl"), None, None, fitted_to)
    assert (pairs.num_seen, len(pairs.pairs)) == (18, 6)
    assert pairs.notes[0].startswith("6 of the 6 pairs have prompts of the demonstrations")


def test_pairs_over_the_limit_are_refused_by_row_where_the_rule_is_error(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)reward_model\.data: .*row 9: prompt and answer have \d+ tokens, the limit is"):
        run(run_config(tmp_path, max_length=24, truncation="error"))


def test_the_spread_over_heads_is_among_the_components_of_a_reward(tmp_path):
    from tether.rewards.learned import LearnedPart
    from tether.types import Completion, Message, Prompt, Rollout, Sampling, StopReason

    model = RewardModel.from_base(resolve_model("tiny"), seed=3)
    completion = Completion("p", 0, (5, 2), (0.0, 0.0), (0, 0), StopReason.STOP, Sampling(4))
    rollout = Rollout(Prompt("p", (Message("user", "Say hello."),)), (1,), completion, "Hello.")
    (one,) = LearnedPart(model).score([rollout])
    assert set(one.parts) == {"raw"}
    model.grow_heads(3, seed=0)
    (three,) = LearnedPart(model).score([rollout])
    assert three.parts["head_std"] > 0
    assert three.value == three.parts["raw"]


def test_the_plan_counts_what_a_batch_counts(tmp_path):
    from tether.dryrun import plan_lines

    write_jsonl(tmp_path / "r.jsonl", [{"prompt": f"q{i % 5}", "answers": ["a", "b", "c"], "ranking": [2, 0, 1]} for i in range(10)])
    base = {"model": {"path": "tiny"}, "reward_model": {"data": {"path": str(tmp_path / "r.jsonl")}, "batch_size": 4}}
    assert "30 comparisons" in plan_lines(RunConfig.model_validate(base))[1]
    base["reward_model"]["batch_by"] = "prompts"
    assert "5 prompts with comparisons" in plan_lines(RunConfig.model_validate(base))[1]


def test_what_would_fail_at_the_end_is_said_before_training(tmp_path):
    section = {"lora": {"targets": ["q_projj"]}, "normalise": {"to": "mean", "reference": {"path": str(tmp_path / "none.jsonl")}}}
    with pytest.raises(ConfigError, match=r"(?s)reward_model\.lora\.targets: .*q_proj.*reward_model\.normalise\.reference: .*no such file"):
        run(run_config(tmp_path, **section))
    with pytest.raises(ValueError, match="reference has no effect"):
        settings(normalise={"to": "none", "reference": {"path": "f"}})
