"""The Python entrance with inputs as people give them: what fits is taken, what does not is named before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tether
from tether.errors import ConfigError, DataError, RewardError
from tether.models.reference import Reference
from tether.models.resolve import resolve_model

SETTINGS: dict[str, Any] = {
    "steps": 1,
    "prompts_per_step": 1,
    "samples_per_prompt": 2,
    "sampling": {"max_new_tokens": 3},
    "compute": {"dtype": "float32", "threads": 1},
}
UPDATE: dict[str, Any] = {"compute": {"dtype": "float32", "threads": 1}, "algorithm": "grpo"}


@pytest.fixture
def policy():
    return tether.Policy.load(resolve_model("tiny"))


def length(prompt, answer):
    return float(len(answer))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1.0", r"it returned '1.0' \(str\)"),
        ([1.0], r"it returned \[1.0\] \(list\)"),
        (1e300, "it returned 1e"),
        (10**400, "it returned 1000"),
    ],
)
def test_a_reward_that_is_no_float32_number_is_named_with_its_type(policy, value, shown):
    with pytest.raises(RewardError, match=shown):
        tether.grpo(policy, ["one"], lambda prompt, answer: value, **SETTINGS)


@pytest.mark.parametrize("value", [np.float32(1), np.bool_(True), True, torch.tensor(1.0), 1])
def test_numbers_of_other_libraries_are_rewards(policy, value):
    assert tether.grpo(policy, ["one"], lambda prompt, answer: value, **SETTINGS)["reward"] == 1


def test_one_prompt_is_no_list_of_prompts(policy):
    with pytest.raises(TypeError, match=r"got one str; write \[...\] around it"):
        tether.grpo(policy, "Say a word.", length, **SETTINGS)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ("", "the prompt is empty"),
        (None, "`prompt`"),
        (3, "must be a string or a list"),
        ([], "empty list"),
        ([tether.Message("user", "one"), tether.Message("assistant", "two")], "its last role is assistant"),
    ],
)
def test_a_prompt_that_is_none_is_named_by_its_place(policy, prompt, problem):
    with pytest.raises(DataError, match=rf"prompts\[1\]: .*{problem}"):
        tether.grpo(policy, ["one", prompt], length, **SETTINGS)


@pytest.mark.parametrize("reward", [None, 5, [], [length], "length"])
def test_what_is_no_reward_is_refused(policy, reward):
    with pytest.raises(TypeError, match="reward: expected a function"):
        tether.grpo(policy, ["one"], reward, **SETTINGS)


def test_what_is_no_policy_is_refused(policy):
    wrong: Any = ("tiny", policy.model)
    for given in wrong:
        with pytest.raises(TypeError, match=r"policy: expected a tether.Policy, got .*Policy.load"):
            tether.grpo(given, ["one"], length, **SETTINGS)
        with pytest.raises(TypeError, match=r"policy: expected a tether\.Policy"):
            tether.dpo(given, [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(TypeError, match=r"reference: expected a Reference, got Policy"):
        tether.update_policy(policy, [[5], [5]], [[7], [8]], [1.0, 0.0], reference=policy, **UPDATE)


def test_settings_that_would_have_no_effect_are_refused(policy):
    with pytest.raises(ConfigError, match="rewards: give it as the argument 'reward'"):
        tether.grpo(policy, ["one"], length, rewards=[{"kind": "format"}], **SETTINGS)
    with pytest.raises(ConfigError, match="data: give it as the argument 'comparisons'"):
        tether.dpo(policy, [{"prompt": "a", "chosen": "b", "rejected": "c"}], data={"path": "x"})
    with pytest.raises(ConfigError, match=r"compute.device = 'gpu': expected auto, cpu"):
        tether.grpo(policy, ["one"], length, compute={"device": "gpu"})
    with pytest.raises(ConfigError, match=r"compute = 'cpu': expected a section"):
        tether.dpo(policy, [{"prompt": "a", "chosen": "b", "rejected": "c"}], compute="cpu")


def test_ids_may_be_lists_arrays_or_tensors(policy):
    reference = Reference.frozen_copy(policy)
    twin = tether.Policy.load(resolve_model("tiny"))
    other = Reference.frozen_copy(twin)
    listed = tether.update_policy(policy, [[5, 6], [5, 6]], [[7], [8]], [1.0, 0.0], reference=reference, **UPDATE)
    tensors: Any = [torch.tensor([5, 6]), np.array([5, 6])]
    answers: Any = [torch.tensor([7]), np.array([8])]
    scores: Any = torch.tensor([1.0, 0.0])
    given = tether.update_policy(twin, tensors, answers, scores, reference=other, **UPDATE)
    assert given["grad_norm"] == listed["grad_norm"] > 0


@pytest.mark.parametrize(
    ("responses", "problem"),
    [
        ([[7], [1.5]], r"response_ids, row 1: token ids are whole numbers, got \[1.5\]"),
        ([[7], "ab"], "response_ids, row 1: expected a list of token ids, got str"),
        ([[7], [8] * 5000], "row 1: 5001 tokens exceed the 2048 positions"),
    ],
)
def test_ids_that_are_none_are_refused_instead_of_rounded(policy, responses, problem):
    with pytest.raises(ValueError, match=problem):
        tether.update_policy(policy, [[5], [5]], responses, [1.0, 0.0], reference=Reference.frozen_copy(policy), **UPDATE)


def test_updates_that_an_update_on_ids_cannot_make_are_refused(policy):
    with pytest.raises(ConfigError, match="needs the score of the greedy answer"):
        tether.PolicyUpdater(policy, "remax")
    with pytest.raises(ConfigError, match="needs the score of every reward part"):
        tether.PolicyUpdater(policy, "grpo", settings={"advantage": "gdpo"})
    with pytest.raises(ValueError, match="scores is empty"):
        tether.PolicyUpdater(policy, "grpo").update([], [], [])
    arguments = ([[5], [5]], [[7], [8]], [1.0, 0.0])
    reference = Reference.frozen_copy(policy)
    with pytest.raises(ConfigError, match="would train the value function alone"):
        tether.update_policy(policy, *arguments, reference=reference, algorithm="vapo")
    assert tether.update_policy(policy, *arguments, reference=reference, algorithm="vapo", value_pretrain_steps=0)["optimiser_steps"] == 1


PAIRS = [{"prompt": f"Say {i}.", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(8)]
SMALL: dict[str, Any] = {"compute": {"dtype": "float32", "threads": 1}}


def test_few_prompts_are_enough_for_kto_with_its_defaults(policy):
    """A tenth of eight prompts is one, and kto matches answers with those to other prompts."""
    result = tether.dpo(policy, PAIRS, kind="kto", **SMALL)
    assert result.held_out is not None
    assert result.held_out.num_units == 4


@pytest.mark.parametrize(("kind", "share", "least"), [("dpo", 0.999, 1), ("kto", 0.9, 2)])
def test_a_split_that_leaves_too_little_says_what_it_leaves(policy, kind, share, least):
    with pytest.raises(DataError, match=rf"held_out_share = {share} of 8 prompts leaves \d to train on, and {kind} needs {least} there"):
        tether.dpo(policy, PAIRS, kind=kind, held_out_share=share, **SMALL)


def test_rows_longer_than_the_model_takes_are_refused_before_training(policy):
    with pytest.raises(DataError, match=r"rows of up to \d+ tokens exceed the 2048 positions of the model; set max_length = 2048"):
        tether.dpo(policy, [*PAIRS, {**PAIRS[0], "prompt": "x " * 3000}], max_length=100_000, **SMALL)


def test_columns_instead_of_rows_are_named(policy):
    columns: Any = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}
    with pytest.raises(DataError, match=r"expected a list of rows, got a dict that yields 'prompt'"):
        tether.dpo(policy, columns)
