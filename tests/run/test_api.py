"""The Python entrance."""

from __future__ import annotations

import pytest

import tether
from tether.api import PolicyUpdater
from tether.errors import ConfigError, RewardError
from tether.events import read_events
from tether.models.reference import Reference
from tether.models.resolve import resolve_model

SETTINGS = {"steps": 2, "prompts_per_step": 2, "sampling": {"max_new_tokens": 6}, "compute": {"dtype": "float32", "threads": 1}}


@pytest.fixture
def policy():
    return tether.Policy.load(resolve_model("tiny"))


@pytest.mark.parametrize(("function", "extra"), [(tether.ppo, {}), (tether.grpo, {"samples_per_prompt": 3})])
def test_a_run_from_python(policy, function, extra, tmp_path):
    metrics = function(
        policy, ["one two", "three"], lambda prompt, answer: float(len(answer)), log=tmp_path / "log.jsonl", **SETTINGS, **extra
    )
    assert metrics["reward"] >= 0
    assert [e["step"] for e in read_events(tmp_path / "log.jsonl") if e["kind"] == "step"] == [1, 2]


def test_a_reward_that_always_breaks_stops_the_run_and_is_never_a_zero(policy):
    def broken(prompt, answer):
        raise KeyError("no such column")

    with pytest.raises(RewardError, match="no such column"):
        tether.ppo(policy, ["one"], broken, **SETTINGS)


def test_a_reward_that_is_not_a_number_is_a_failure_and_messages_may_be_plain_dicts(policy):
    prompts = [[{"role": "user", "content": "one"}]]
    with pytest.raises(RewardError, match="it returned nan"):
        tether.ppo(policy, prompts, lambda prompt, answer: float("nan"), **SETTINGS)


def test_unknown_settings_are_named(policy):
    with pytest.raises(ConfigError, match="stepss: unknown setting; did you mean 'steps'"):
        tether.ppo(policy, ["one"], lambda prompt, answer: 0.0, stepss=3)
    with pytest.raises(ConfigError, match="no such algorithm; known: ppo"):
        PolicyUpdater(policy, "a2c")


def test_the_single_update_returns_its_statistics_and_keeps_its_state(policy):
    updater = PolicyUpdater(policy, "grpo", settings={"compute": {"dtype": "float32"}, "optim": {"learning_rate": 1e-3}})
    queries, responses = [[5, 6]] * 4, [[7], [8, 9], [7], [10]]
    first = updater.update(queries, responses, [1.0, 0.0, 1.0, 0.0])
    assert first["kl_k1_sequence"] == pytest.approx(0, abs=1e-5)
    assert first["dead_group_share"] == 0
    second = updater.update(queries, responses, [1.0, 0.0, 1.0, 0.0])
    assert second["kl_k3_token"] > 0
    with pytest.raises(ValueError, match="response_ids, row 1: token id 1000000 is outside"):
        updater.update(queries, [[7], [10**6], [7], [10]], [0.0] * 4)
    with pytest.raises(ValueError, match="no group has two rows"):
        updater.update(queries, responses, [0.0] * 4, groups=list("abcd"))
    with pytest.raises(ValueError, match="response_ids has 3 rows, scores has 4"):
        updater.update(queries, responses[:3], [0.0] * 4)


def test_one_update_with_a_given_reference(policy):
    reference = Reference.frozen_copy(policy)
    statistics = tether.update_policy(policy, [[5, 6], [5, 6]], [[7], [8]], [1.0, 0.0], reference=reference, compute={"dtype": "float32"})
    assert statistics["optimiser_steps"] == 1


def test_a_separate_critic_works_from_python_and_one_from_a_reward_model_needs_a_run(policy):
    metrics = tether.rl(policy, ["one", "two"], lambda prompt, answer: float(len(answer)), algorithm="vapo", **{**SETTINGS, "steps": 3})
    assert metrics["value_loss"] > 0
    assert policy.value_head is None
    with pytest.raises(ConfigError, match="have no reward_model stage"):
        tether.ppo(policy, ["one"], lambda prompt, answer: 0.0, critic="reward_model", **SETTINGS)
