"""Which policy `tether collect generate RUN` draws from, and what it is called."""

from __future__ import annotations

import pytest
from run_folders import RL, a_run

from tether.config import ModelConfig
from tether.errors import ModelError
from tether.run.candidates import final_candidates

SFT = {"data": {"path": "tether:arithmetic_train.jsonl"}}


@pytest.fixture
def loaded(monkeypatch):
    paths = []
    monkeypatch.setattr("tether.run.candidates._load", lambda path, model, lora=None: paths.append(path))
    return paths


_RUNS = [(("sft",), {"sft": SFT}, "sft"), (("sft", "rl.one"), {"sft": SFT, "rl": {"one": RL}}, "rl.one")]


@pytest.mark.parametrize(("finished", "stages", "last"), _RUNS)
def test_a_run_is_its_last_policy_with_its_name_and_stage(tmp_path, loaded, finished, stages, last):
    run = a_run(tmp_path / "sft", *finished, **stages)
    (found,) = final_candidates([str(run)], ModelConfig())
    assert found.label == f"sft/{last}"
    found.load()
    assert loaded == [run / last]


def test_a_run_that_lacks_its_last_policy_or_has_several_says_so(tmp_path):
    half = a_run(tmp_path / "half", "sft", sft=SFT, rl={"one": RL})
    with pytest.raises(ModelError, match=r"half is unfinished, .*`tether resume"):
        final_candidates([str(half)], ModelConfig())
    both = a_run(tmp_path / "both", "rl.one", "rl.two", rl={"one": RL, "two": RL})
    with pytest.raises(ModelError, match=r"2 policies side by side, and .*both/rl\.one, .*both/rl\.two"):
        final_candidates([str(both)], ModelConfig())
    with pytest.raises(ModelError, match="run without any policy"):
        final_candidates([str(a_run(tmp_path / "none", reward_model=SFT))], ModelConfig())


def test_a_checkpoint_is_called_by_its_run_too(tmp_path):
    checkpoint = a_run(tmp_path / "mine", rl={"one": RL}) / "checkpoints" / "rl.one" / "step-000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (found,) = final_candidates([str(checkpoint)], ModelConfig())
    assert found.label == "mine/rl.one/step-000004"
