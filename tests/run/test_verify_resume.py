"""`tether verify-resume`: says yes where resume is exact, and finds what makes it inexact."""

from __future__ import annotations

import itertools

import pytest
from small_runs import make_config, sections_of

from tether.config import RunConfig
from tether.errors import ConfigError
from tether.rewards.length import LengthPart
from tether.run.verify_resume import shortened, verify_resume


def config_of(folder, *kinds):
    sections = {}
    for kind in kinds:
        sections |= sections_of(kind, folder)[0]
    return RunConfig.model_validate(make_config(folder, **sections))


def test_every_stage_of_a_run_is_interrupted_resumed_and_found_equal(tmp_path):
    said = []
    verdict = verify_resume(config_of(tmp_path, "sft", "reward_model", "dpo", "ppo"), say=said.append)
    assert verdict.ok, verdict
    assert "no bit differs" in verdict.sentence
    assert [stage.stage for stage in verdict.stages] == ["sft", "reward_model", "rl.a", "direct.d"]
    assert all(0 < stage.resumed_after < stage.steps for stage in verdict.stages)
    assert said[-1].startswith("direct.d: ")
    assert list((tmp_path / "runs").glob("[!.]*")) == []  # nothing is left of the scratch runs but their locks


def test_a_reward_with_a_memory_of_its_own_is_found(tmp_path, monkeypatch):
    """It counts its calls: a run that starts again counts from elsewhere."""
    calls = itertools.count()
    real = LengthPart.score
    monkeypatch.setattr(
        LengthPart, "score", lambda self, rollouts: [type(s)(s.value + 1e-3 * next(calls)) for s in real(self, rollouts)]
    )
    verdict = verify_resume(config_of(tmp_path, "grpo"))
    assert not verdict.ok
    assert "NOT exact for rl.a" in verdict.sentence
    assert any("weights" in told for told in verdict.stages[0].differences)
    assert "NOT equal" in str(verdict.stages[0])


def test_the_shortened_run_keeps_the_settings_and_loses_the_length(tmp_path):
    config = config_of(tmp_path, "grpo")
    short = shortened(config, 8, tmp_path).rl["a"]
    assert (short.steps, short.prompts_per_step, short.samples_per_prompt) == (4, 2, 3)
    assert short.optim == config.rl["a"].optim


def test_without_training_there_is_nothing_to_verify(tmp_path):
    config = config_of(tmp_path, "sft").model_copy(update={"sft": None})
    with pytest.raises(ConfigError, match="nothing to resume"):
        verify_resume(config)
