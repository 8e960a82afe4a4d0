"""A reward model scores in the precision of the run, whichever way it came into it."""

from __future__ import annotations

import pytest
import torch

import tether
from tether.backends.compute import Compute
from tether.config import RunConfig
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.records import write_jsonl
from tether.run.observer import Quiet
from tether.run.pipeline import run
from tether.run.scorer import RunScorer, scorer_loader

TEXTS = ["one", "two"], ["a", "b b"]


@pytest.fixture
def folder(tmp_path):
    RewardModel.from_base(resolve_model("tiny"), seed=3).save(tmp_path / "reward")
    return tmp_path / "reward"


@pytest.fixture
def precisions(monkeypatch):
    """The dtype of matrix products in every call that scores texts."""
    seen = []
    honest = RewardModel.score_texts_with_std

    def watched(self, *arguments, **named):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return honest(self, *arguments, **named)

    monkeypatch.setattr(RewardModel, "score_texts_with_std", watched)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_in_the_precision_of_the_run_and_the_score_is_float32(folder, dtype):
    scorer = scorer_loader(Compute(torch.device("cpu"), dtype, 4096))(folder)
    assert isinstance(scorer, RunScorer)
    dtypes = set()
    for part in scorer._model.trunk.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    told = scorer.score_texts(*TEXTS, token_budget=64)
    assert dtypes == {dtype}
    exact = RewardModel.load(folder).score_texts(*TEXTS)
    assert told == exact if dtype == torch.float32 else told == pytest.approx(exact, abs=0.05)
    assert told != exact or dtype == torch.float32


def test_from_python(folder, precisions):
    policy, reward = tether.Policy.load(resolve_model("tiny")), RewardModel.load(folder)
    settings = {"steps": 1, "prompts_per_step": 2, "sampling": {"max_new_tokens": 4}}
    tether.ppo(policy, ["one", "two"], reward, compute={"dtype": "bfloat16", "threads": 1}, **settings)
    assert precisions == [torch.bfloat16]


def test_in_a_run_by_path_in_training_checks_and_evaluation(folder, precisions, tmp_path):
    for name in ("asked", "held"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"prompt_id": f"{name}{n}", "prompt": f"Say {name} {n}."} for n in range(8)])
    asked, held = ({"path": str(tmp_path / f"{name}.jsonl")} for name in ("asked", "held"))
    reward = {"kind": "learned", "params": {"path": str(folder)}}
    stage = {"kind": "ppo", "prompts": asked, "rewards": [reward], "steps": 1, "prompts_per_step": 2, "sampling": {"max_new_tokens": 4}}
    config = {
        "name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "bfloat16", "threads": 1},
        "rl": {"ppo": stage}, "evaluate": {"prompts": held, "score": "plainspoken"},
        "checks": {"prompts": held, "num_prompts": 8, "every": 1, "score": "plainspoken"},
    }  # fmt: skip
    run(RunConfig.model_validate(config), observer=Quiet())
    assert len(precisions) >= 4  # the step, two looks, evaluations of start and ppo
    assert set(precisions) == {torch.bfloat16}
