"""`tether evaluate`: what it finds, that it is the machinery of the stage, provenance, win rates, refusals."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import run_folders
import torch
from run_folders import FINISHED, RL

from tether.backends.compute import Compute
from tether.config import EvaluateConfig, ModelConfig, RunConfig
from tether.errors import ConfigError, ModelError, RewardError
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.records import write_jsonl
from tether.rewards.exact import ExactPart
from tether.run.attempts import attempts, ks_up_to, majority
from tether.run.candidates import find_candidates
from tether.run.evaluate_command import EvaluateRequest, as_text, evaluate_command, settings_from_words
from tether.run.evaluate_models import Opponents, evaluate_models
from tether.run.folder import source_sha256
from tether.run.pipeline import run
from tether.run.win_rate import shares_by_judge, shares_by_scores, win_rate
from tether.stats import holm
from tether.types import Completion, Prompt, Rollout, RolloutGroup, Sampling, StopReason

COMPUTE = Compute(torch.device("cpu"), torch.float32, 4096)


def turn(content, role="user"):
    return [{"role": role, "content": content}]


@pytest.fixture
def held(tmp_path):
    rows = [{"prompt_id": f"h{i}", "prompt": turn(f"Tell {i}."), "answer": str(i)} for i in range(6)]
    write_jsonl(tmp_path / "held.jsonl", rows)
    return str(tmp_path / "held.jsonl")


def other_tiny(folder, seed, scale=0.05):
    policy = Policy.load(resolve_model("tiny"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    policy.save(folder)
    return str(folder)


def section(held, **settings):
    return EvaluateConfig.model_validate({"prompts": {"path": held}, "sampling": {"max_new_tokens": 8}, **settings})


# -- several answers per prompt ----------------------------------------------------------------------------------------------


def group(texts, gold="12", scores=None, stop=StopReason.STOP):
    prompt = Prompt("p", "What?", {"answer": gold})
    part, sampling = ExactPart(), Sampling(8)
    rollouts = tuple(Rollout(prompt, (1,), Completion("p", i, (2,), (-0.5,), (0,), stop, sampling), text) for i, text in enumerate(texts))
    scores = scores or tuple(float(s.value) for s in part.score(rollouts))
    return RolloutGroup(rollouts, tuple(scores), ({},) * len(texts), (None,) * len(texts))


def test_pass_at_k_counts_every_subset_of_the_samples():
    found = attempts([group(["Answer: 12"] + ["Answer: 1"] * 3), group(["Answer: 12"] * 4)], ExactPart(), confidence=0.95, seed=0)
    assert ks_up_to(4) == [1, 2, 4]
    assert {k: v.estimate for k, v in found.pass_at_k.items()} == pytest.approx({"1": (1 / 4 + 1) / 2, "2": (1 / 2 + 1) / 2, "4": 1.0})
    assert found.mean_at_k["4"].estimate == pytest.approx(5 / 8)
    assert found.majority_at_k["4"].estimate == 0.5


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    groups = [group(["Answer: 12" if x else "Answer: 1" for x in rng.random(4) < 0.3]) for _ in range(4000)]
    found = attempts(groups, ExactPart(), confidence=0.95, seed=0)
    assert found.pass_at_k["2"].estimate == pytest.approx(1 - 0.7**2, abs=0.02)


def test_the_majority_votes_by_what_is_stated_and_a_tie_is_shared():
    stated = ExactPart().stated
    assert majority(group(["Answer: 12", "So it is. Answer: 12.0", "Answer: 13"]), stated) == 1.0
    assert majority(group(["Answer: 12", "Answer: 13", "Answer: 13", "?"]), stated) == 0.0
    assert majority(group(["Answer: 12", "Answer: 13"]), stated) == 0.5
    assert majority(group(["?", "nothing"]), stated) == 0.0


def test_scores_that_are_not_right_or_wrong_have_no_pass_at_k():
    assert attempts([group(["a", "b"], scores=(0.5, 1.0))], ExactPart(), confidence=0.95, seed=0) is None
    assert attempts([group(["Answer: 12"])], ExactPart(), confidence=0.95, seed=0) is None
    found = attempts([group(["a", "b", "c"], scores=(0.0, 1.0, math.nan))], object(), confidence=0.95, seed=0)
    assert sorted(found.pass_at_k) == ["1", "2"]
    assert found.majority_at_k == {}


# -- win rates ---------------------------------------------------------------------------------------------------------------


def test_a_win_is_one_a_tie_one_half_and_prompts_are_the_unit():
    assert shares_by_scores([[1, 2]], [[2, 3]]) == [0.875]
    assert shares_by_scores([[1.0], [2.0]], [[1.0], [3.0]]) == [0.5, 1.0]
    assert math.isnan(shares_by_scores([[math.nan]], [[1.0]])[0])
    found = win_rate("a", "b", "score", [0.5, 1.0, math.nan], confidence=0.95, seed=0)
    assert (found.rate, found.num_prompts) == (0.75, 2)


def test_win_rates_of_the_two_sides_add_up_to_one():
    rng = np.random.default_rng(1)
    one, two = rng.integers(0, 3, (5, 4)).tolist(), rng.integers(0, 3, (5, 4)).tolist()
    assert [a + b for a, b in zip(shares_by_scores(one, two), shares_by_scores(two, one), strict=True)] == pytest.approx([1.0] * 5)


def test_a_judge_that_likes_the_first_place_says_nothing():
    found = shares_by_judge([group(["a", "same"])], [group(["b", "same"])], lambda prompt, first, second: 1.0)
    assert (found.shares, found.num_unjudged, found.num_pairs) == ((0.5,), 0, 2)
    longer = lambda prompt, first, second: float(len(first) > len(second))  # noqa: E731
    assert shares_by_judge([group(["a"])], [group(["bb"])], longer).shares == (1.0,)


def test_a_judge_that_breaks_is_counted_and_too_often_is_an_error():
    def breaks(prompt, first, second):
        if "bad" in first + second:
            raise OSError("no connection")
        return 0.5

    before, after = [group([f"x{i}"]) for i in range(20)], [group(["bad" if i == 3 else f"y{i}"]) for i in range(20)]
    found = shares_by_judge(before, after, breaks, "mine:breaks")
    assert (found.num_unjudged, found.num_pairs) == (1, 20)
    assert math.isnan(found.shares[3])
    with pytest.raises(RewardError, match=r"on 1 of 1 pairs.*the judge mine:breaks raised OSError: no connection, on prompt 'p'"):
        shares_by_judge(before[3:4], after[3:4], breaks, "mine:breaks")


@pytest.mark.parametrize("wrong", ["first", 7, "0.5", math.nan, [1], -0.1])
def test_a_judge_that_returns_no_verdict_of_the_kind_expected_is_told_so(wrong):
    with pytest.raises(RewardError) as caught:
        shares_by_judge([group(["a"])], [group(["b"])], lambda *_: wrong, "mine:odd")
    assert f"the judge mine:odd returned {wrong!r}; expected a number from 0 to 1 or None" in str(caught.value)


def test_none_is_no_verdict_however_often_it_comes():
    pairs = [group([f"x{i}"]) for i in range(4)], [group([f"y{i}"]) for i in range(4)]
    found = shares_by_judge(*pairs, lambda prompt, first, second: None)
    assert (found.num_unjudged, found.num_pairs) == (4, 4)
    assert all(map(math.isnan, found.shares))
    rate = win_rate("a", "b", "judge", found.shares, confidence=0.95, seed=0, num_unjudged=4, num_pairs=4)
    assert (rate.num_prompts, rate.num_unjudged, math.isnan(rate.rate), math.isnan(rate.p_value)) == (0, 4, True, True)
    one_order = shares_by_judge(*pairs, lambda prompt, first, second: 1.0 if first < second else None)
    assert one_order.num_unjudged == 4


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([1.5])


# -- the command -------------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_stage_and_the_stage_says_where_they_come_from(tmp_path, held):
    RewardModel.from_base(resolve_model("tiny"), seed=1).save(tmp_path / "rm")
    config = RunConfig.model_validate(
        {
            "name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
            "rl": {"grpo": {"kind": "grpo", "prompts": {"path": "tether:arithmetic_train.jsonl", "limit": 4}, "steps": 1,
                            "prompts_per_step": 2, "samples_per_prompt": 2, "sampling": {"max_new_tokens": 8},
                            "optim": {"learning_rate": 1e-3},
                            "rewards": [{"kind": "learned", "params": {"path": str(tmp_path / "rm")}}]}},
            "evaluate": {"prompts": {"path": held}, "samples_per_prompt": 2, "score": "exact", "sampling": {"max_new_tokens": 8}},
        }
    )  # fmt: skip
    folder = run(config).folder
    stage = json.loads((folder / "evaluation.json").read_text())
    request = EvaluateRequest((str(folder),), config=folder / "config.json", reference="tiny", output=tmp_path / "e.json")
    found, target = evaluate_command(request)
    assert target == tmp_path / "e.json"
    assert [p["name"] for p in found["policies"]] == ["t/start", "t/rl.grpo"]
    same = ("mean", "low", "high", "scores_by_prompt", "response_length", "truncated_share", "samples", "attempts", "provenance")
    for theirs, ours in zip(stage["policies"], json.loads(target.read_text())["policies"], strict=True):
        assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}
    assert found["policies"][1]["kl_sequence_sum_nats"] == pytest.approx(stage["policies"][1]["kl_sequence_sum_nats"])
    made = stage["policies"][1]["provenance"]
    assert made["weights_sha256"] == Policy.load(folder / "rl.grpo").weights_fingerprint()
    assert made["source_sha256"] == source_sha256()
    assert (made["data_sha256"], made["torch"]) == (stage["prompts_sha256"], torch.__version__)
    assert set(stage["policies"][1]["attempts"]["pass_at_k"]) == {"1", "2"}
    assert stage["gains"][0]["difference"] == found["gains"][0]["difference"]
    assert str(tmp_path) not in target.read_text()


def test_policies_are_compared_with_one_of_them_and_many_comparisons_are_adjusted(tmp_path, held):
    names = [other_tiny(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    rewards = RewardModel.from_base(resolve_model("tiny"), seed=1)
    rewards.save(tmp_path / "rm")
    opponents = Opponents(against="tiny", reward_model=str(tmp_path / "rm"), judge=lambda prompt, one, two: float(len(one) < len(two)))
    found = evaluate_models(names, section(held), COMPUTE, opponents, seeds=(3, 4))
    assert [p["name"] for p in found["policies"]] == ["tiny", "one", "two"]
    assert [(g["before"], g["after"]) for g in found["gains"]] == [("tiny", "one"), ("tiny", "two")]
    assert {w["by"] for w in found["wins"]} == {"plainspoken", "reward_model", "judge"}
    for family in ("plainspoken", "reward_model", "judge"):
        rows = [w for w in found["wins"] if w["by"] == family]
        assert [w["p_holm"] for w in rows] == pytest.approx(holm([w["p_value"] for w in rows]))
    first = found["policies"][0]
    assert (first["samples_per_prompt"], set(first["by_seed"])) == (2, {"3", "4"})
    assert first["mean"] == pytest.approx(np.mean(list(first["by_seed"].values())))
    assert first["kl_sequence_sum_nats"] is None
    assert any("Holm" in note for note in found["notes"])
    text = as_text(found)
    weights = first["provenance"]["weights_sha256"][:8]
    for expected in ("tiny", "one", "win rate", "p Holm", "held.jsonl (sha256", "sampling seeds 3, 4", weights):
        assert expected in text
    json.dumps(found, allow_nan=False)


def test_the_same_weights_are_one_row_and_no_comparison(held, tmp_path):
    same, different = other_tiny(tmp_path / "same", 0, scale=0.0), other_tiny(tmp_path / "different", 1)
    said = []
    found = evaluate_models(["tiny", different], section(held), COMPUTE, Opponents(against=same), say=said.append)
    assert [(p["name"], p["also"]) for p in found["policies"]] == [("same", ["tiny"]), ("different", [])]
    assert [(g["before"], g["after"]) for g in found["gains"]] == [("same", "different")]
    assert found["gains"][0]["p_holm"] == found["gains"][0]["p_value"]
    assert "tiny: the same weights as same, so shown once" in as_text(found)
    assert "tiny: the same model as one before it" in said
    assert not any("Holm" in note for note in found["notes"])
    alone = evaluate_models(["tiny"], section(held), COMPUTE, Opponents(against=same))
    assert (len(alone["policies"]), alone["gains"], alone["wins"]) == (1, [], [])
    assert "shown once" in as_text(alone)


def test_a_judge_without_a_verdict_and_rates_in_percent(held, tmp_path):
    other = other_tiny(tmp_path / "other", 1)
    found = evaluate_models([other], section(held), COMPUTE, Opponents(against="tiny", judge=lambda *_: None))
    by_judge = next(w for w in found["wins"] if w["by"] == "judge")
    assert (by_judge["rate"], by_judge["p_value"], by_judge["p_holm"]) == (None, None, None)
    assert (by_judge["num_unjudged"], by_judge["num_pairs"]) == (6, 6)
    text = as_text(found)
    assert "no verdict in 6 of 6 pairs" in text
    by_score = next(w for w in found["wins"] if w["by"] == "plainspoken")
    assert f"{by_score['rate']:.1%} [{by_score['low']:.1%}, {by_score['high']:.1%}]" in text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('answer')", "the judge broken_judge:decide raised KeyError: 'answer'"),
        ("return 'first'", "the judge broken_judge:decide returned 'first'; expected a number from 0 to 1 or None"),
    ],
)
def test_a_broken_judge_costs_no_generation(tmp_path, held, monkeypatch, body, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_judge", raising=False)
    importlib.invalidate_caches()
    Path("broken_judge.py").write_text(f"def decide(prompt, first, second):\n    {body}\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    said = []
    request = EvaluateRequest(("tiny",), settings={"prompts": {"path": held}}, judge="broken_judge:decide")
    with pytest.raises(RewardError) as caught:
        evaluate_command(request, say=said.append)
    assert words in str(caught.value)
    assert "held.jsonl, row 1 before anything was generated" in str(caught.value)
    assert said == []


# -- what a MODEL may be -----------------------------------------------------------------------------------------------------


def a_run(folder, *finished, **stages):
    """A run of two online stages, unless ``stages`` say otherwise."""
    return run_folders.a_run(folder, *finished, **({"rl": {"one": RL, "two": RL}} | stages))


def test_an_unfinished_run_says_what_it_lacks(tmp_path, held):
    run_folder = a_run(tmp_path / "half")
    other_tiny(run_folder / "rl.one", 1)
    (run_folder / "rl.one" / "stage.json").write_text(FINISHED)
    said = []
    found = evaluate_models([str(run_folder)], section(held), COMPUTE, say=said.append)
    assert [p["name"] for p in found["policies"]] == ["half/start", "half/rl.one"]
    assert "half is unfinished: it lacks rl.two." in said[0]
    assert "half is unfinished: it lacks rl.two." in as_text(found)
    whole = find_candidates([str(a_run(tmp_path / "whole", "rl.one", "rl.two"))], ModelConfig())
    assert [candidate.note for candidate in whole] == ["", "", ""]


def test_a_run_before_its_sft_says_what_its_start_is(tmp_path):
    sft = {"data": {"path": "tether:arithmetic_train.jsonl"}}
    (start,) = find_candidates([str(a_run(tmp_path / "early", sft=sft))], ModelConfig())
    assert "it lacks sft, rl.one, rl.two. early/start is the model before SFT." in start.note


def test_a_run_without_a_policy_is_an_error(tmp_path):
    stages = {"rl": {}, "reward_model": {"data": {"path": "tether:arithmetic_train.jsonl"}}}
    folder = a_run(tmp_path / "scorer", "reward_model", **stages)
    with pytest.raises(ModelError, match=r"run without any policy .*its reward model is for --reward-model .*scorer/reward_model"):
        find_candidates([str(folder)], ModelConfig())


def test_a_path_that_is_not_there_is_answered_as_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/quickstart/rl.ppo", "runs/quickstart/rl.grpo", "runs/other"):
        Path(name).mkdir(parents=True)
    Path("weights.bin").write_text("")
    for name, words in (
        ("runs/quikstart", r"there is no folder runs/quikstart; runs has quickstart, other; did you mean runs/quickstart\?"),
        ("runs/quickstart/rl.pop", r"there is no folder runs/quickstart/rl.pop; .* did you mean runs/quickstart/rl.ppo\?"),
        ("runs/quikstart/rl.ppo", r"there is no folder runs/quikstart/rl.ppo \(no runs/quikstart\); runs has quickstart, other"),
        ("./run", r"there is no folder ./run; this folder has runs; did you mean runs\?"),
        ("./weights.bin", r"./weights.bin is a file: expected a folder"),
    ):
        with pytest.raises(ModelError, match=words) as caught:
            find_candidates([name], ModelConfig())
        assert "hub" not in str(caught.value)
    with pytest.raises(ModelError, match="hub model nobody/nothing was not found"):
        find_candidates(["nobody/nothing"], ModelConfig())


def test_a_copy_of_a_fetched_model_is_a_model_and_no_checkpoint(tmp_path):
    shutil.copytree(resolve_model("tiny"), tmp_path / "copy")
    assert (tmp_path / "copy" / "manifest.json").is_file()
    (found,) = find_candidates([str(tmp_path / "copy")], ModelConfig())
    assert found.load().weights_fingerprint() == Policy.load("tiny").weights_fingerprint()


def test_a_reward_model_is_told_where_it_belongs(tmp_path):
    RewardModel.from_base(resolve_model("tiny"), seed=1).save(tmp_path / "rm")
    for settings in (True, False):  # without Tether's own file it is a scorer still
        if not settings:
            (tmp_path / "rm" / "tether_reward.json").unlink()
        with pytest.raises(ModelError, match=r"is a reward model: .* give --reward-model .*rm"):
            find_candidates([str(tmp_path / "rm")], ModelConfig())


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_a_checkpoint_of_a_run_is_the_policy_of_that_step(tmp_path, held, lora, monkeypatch):
    import tether.run.context as context

    monkeypatch.setattr(context, "remove", lambda path: None)  # keep the checkpoints of the finished stage
    RewardModel.from_base(resolve_model("tiny"), seed=1).save(tmp_path / "rm")
    rl = {"kind": "grpo", "prompts": {"path": held}, "prompts_per_step": 2, "samples_per_prompt": 3, "optim": {"learning_rate": 1e-3},
          "sampling": {"max_new_tokens": 8}, "rewards": [{"kind": "learned", "params": {"path": str(tmp_path / "rm")}}]}  # fmt: skip
    folders = {}
    for steps in (1, 2):
        told = {
            "name": f"t{steps}", "output": str(tmp_path / "runs"), "model": {"path": "tiny", **({"lora": lora} if lora else {})},
            "compute": {"dtype": "float32", "threads": 1}, "checkpoint": {"every": 1, "asynchronous": False},
            "rl": {"grpo": {**rl, "steps": steps}},
        }  # fmt: skip
        folders[steps] = run(RunConfig.model_validate(told)).folder
    names = [folders[2] / "checkpoints" / "rl.grpo" / "step-00000001", folders[1] / "rl.grpo", folders[2] / "rl.grpo"]
    found = evaluate_models(list(map(str, names)), section(held), COMPUTE, Opponents(reference="tiny"))
    assert [(p["name"], p["also"]) for p in found["policies"]] == [("rl.grpo/step-00000001", ["t1/rl.grpo"]), ("t2/rl.grpo", [])]
    saved, two = (p["provenance"]["weights_sha256"] for p in found["policies"])
    assert saved == Policy.load(folders[1] / "rl.grpo").weights_fingerprint() != two
    assert found["policies"][0]["kl_sequence_sum_nats"] != 0


def test_wrong_questions_are_refused_in_words(tmp_path, held):
    with pytest.raises(ConfigError, match="which prompts"):
        evaluate_command(EvaluateRequest(("tiny",)))
    with pytest.raises(ConfigError, match="at least one model"):
        evaluate_command(EvaluateRequest(()))
    with pytest.raises(ConfigError, match="did you mean"):
        evaluate_command(EvaluateRequest(("tiny",), settings={"prompts": {"path": held}, "scores": "exact"}))
    with pytest.raises(ConfigError, match="expected MODULE:FUNCTION"):
        evaluate_command(EvaluateRequest(("tiny",), settings={"prompts": {"path": held}}, judge="math:nothing"))
    with pytest.raises(ModelError, match="no model"):
        evaluate_command(EvaluateRequest(("tinny",), settings={"prompts": {"path": held}}))


def test_words_become_settings_and_a_file_is_named_by_its_content(tmp_path, held, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("verdicts.py").write_text("def shorter(prompt, first, second):\n    return float(len(first) < len(second))\n")
    settings = settings_from_words(held, "exact", ["column=answer", "compare=number"], 2, 8, 0.7, 4)
    assert settings["score_params"] == {"column": "answer", "compare": "number"}
    request = EvaluateRequest(("tiny",), settings=settings, against=other_tiny(tmp_path / "other", 1), judge="verdicts:shorter")
    found, target = evaluate_command(request)
    assert target.parent == Path("evaluations")
    assert found["policies"][0]["provenance"]["sampling"]["temperature"] == 0.7
    assert found["policies"][0]["num_prompts"] == 4
    assert [w["by"] for w in found["wins"]] == ["exact", "judge"]
    assert evaluate_command(request)[1] == target
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        settings_from_words(None, None, ["column"], None, None, None, None)
