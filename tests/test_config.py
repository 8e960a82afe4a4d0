"""The configuration: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tether.config import ActorCriticConfig, CriticFreeConfig, RunConfig, load_config, parse_config, resolved_json
from tether.errors import ConfigError

BASE = """
name = "try"
[sft]
data.path = "rows.jsonl"
[reward_model]
data.path = "pairs.jsonl"
[rl.ppo]
kind = "ppo"
prompts.path = "prompts.jsonl"
rewards = [{kind = "learned"}]
[rl.grpo]
kind = "grpo"
prompts.path = "prompts.jsonl"
rewards = [{kind = "exact", weight = 2.0}, {kind = "format", params = {pattern = "x"}}]
[evaluate]
prompts.path = "held.jsonl"
"""


def _problems(text: str, *overrides: str, suffix: str = ".toml") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, suffix, overrides, "run.toml")
    return str(caught.value)


def test_sections_become_stages_with_their_kinds():
    config = parse_config(BASE, ".toml")
    assert isinstance(config.rl["ppo"], ActorCriticConfig)
    assert isinstance(config.rl["grpo"], CriticFreeConfig)
    assert config.folder == Path("runs/try")


def test_yaml_toml_and_json_say_the_same():
    toml = parse_config('seed = 4\n[sft]\nepochs = 2\n[sft.data]\npath = "a"\n', ".toml")
    yaml = parse_config("seed: 4\nsft:\n  epochs: 2\n  data: {path: a}\n", ".yaml")
    assert toml == yaml == parse_config('{"seed": 4, "sft": {"epochs": 2, "data": {"path": "a"}}}', ".json")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".json", '{"name": "a", "sft": {"epochs": 1, "epochs": 2}}'),
        (".yaml", "name: a\nsft:\n  epochs: 1\n  epochs: 2\n"),
        (".yaml", "rl:\n  a:\n    rewards:\n      - {kind: length, epochs: 1, epochs: 2}\n"),
        (".toml", "[sft]\nepochs = 1\nepochs = 2\n"),
    ],
)
def test_a_key_that_stands_twice_is_refused_in_every_language(suffix, text):
    with pytest.raises(ConfigError, match=r"epochs stands twice|overwrite a value"):
        parse_config(text, suffix)


def test_resolved_json_reads_back_and_is_stable():
    config = parse_config(BASE, ".toml")
    text = resolved_json(config)
    assert parse_config(text, ".json") == config
    assert resolved_json(parse_config(text, ".json")) == text


def test_partial_section_keeps_the_defaults_of_its_parent():
    config = parse_config(BASE, ".toml", ["rl.grpo.kl.beta=0.3", "sft.optim.schedule=cosine"])
    kl = config.rl["grpo"].kl
    assert (kl.beta, kl.where, kl.estimator) == (0.3, "loss", "k3_corrected")
    assert config.sft is not None
    assert (config.sft.optim.learning_rate, config.sft.optim.warmup_steps) == (2e-5, 2)


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("seed=7", lambda config: config.seed == 7),
        ("name=run-2", lambda config: config.name == "run-2"),
        ("sft.optim.betas=[0.5, 0.6]", lambda config: config.sft.optim.betas == (0.5, 0.6)),
        ("compute.activation-checkpointing=true", lambda config: config.compute.activation_checkpointing is True),
        ("compute.activation_checkpointing=auto", lambda config: config.compute.activation_checkpointing == "auto"),
        ("sft.optim.states=int8", lambda config: config.sft.optim.states == "int8"),
        ("rl.grpo.rewards.1.weight=0.25", lambda config: config.rl["grpo"].rewards[1].weight == 0.25),
        ("sft.data.path=a=b", lambda config: config.sft.data.path == "a=b"),
    ],
)
def test_override(override: str, read):
    assert read(parse_config(BASE, ".toml", [override]))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sft.epoch=2"], ["sft.epoch", "did you mean 'epochs'?"]),
        (["rl.ppo.lambda=1"], ["rl.ppo.lambda", "did you mean 'lam'?"]),
        (["rl.grpo.learning_rate=1"], ["rl.grpo.learning_rate", "did you mean 'optim.learning_rate'?"]),
        (["rl.grpo.beta=1"], ["rl.grpo.beta", "did you mean 'kl.beta'?"]),
        (["rl.grpo.temperature=1"], ["did you mean 'sampling.temperature'?"]),
        (["epochs=2"], ["epochs: unknown setting", "did you mean 'sft.epochs' or 'reward_model.epochs'?"]),
        (["name=../up"], ["name = '../up': expected letters, digits", "`output` is the folder around it"]),
        (["compute.activation_checkpointing=often"], ["activation_checkpointing = 'often': expected 'auto', True or False"]),
        (["sft.optim.states=int4"], ["sft.optim.states = 'int4': expected 'float32', 'bfloat16' or 'int8'"]),
        (["compute.device=gpu"], ["compute.device = 'gpu': expected auto, cpu, cuda or cuda:N"]),
        (["rl.grpo.rewards=[]"], ["rl.grpo.rewards = []: expected at least 1 in the list"]),
        (["sft.epochs=0"], ["sft.epochs = 0", "greater than or equal to 1"]),
        (["name.first=a"], ["name is the value 'try', not a section"]),
        (["rl.grpo.rewards.5.weight=1"], ["index from 0 to 1", "'5'"]),
        (["nonsense"], ["expected dotted.path=value"]),
        (["rl.ppo.kl.where=loss"], ["k1", "it would tether nothing"]),
        (["rl.grpo.kl.where=reward"], ["k3_corrected", "only k1 in the reward"]),
        (["rl.ppo.kl.beta=0", "rl.ppo.kl.target=6"], ["a controller that multiplies 0 never moves"]),
        (["rl.ppo.kl.beta=0.1", "rl.ppo.kl.reference_pass=false"], ["the tether needs the log-probabilities of the reference"]),
        (["rl.grpo.samples_per_prompt=1"], ["rl.grpo: advantage = 'group'", "samples_per_prompt must be 2 or more"]),
        (["rl.grpo.kind=grop"], ["no such algorithm", "did you mean 'grpo'?"]),
        (["model=tiny"], ["model = 'tiny'", "expected a section with settings"]),
        (["name=5"], ["name = 5", "expected text, in quotes"]),
        (["rl.ppo.eps_low=of"], ["rl.ppo.eps_low = 'of'", "expected a number"]),
        (["rl.grpo.kind=dapo", "rl.grpo.dynamic_sampling.max_batches=0"], ["dynamic_sampling.max_batches = 0"]),
        (["rl.ppo.minibatches=17"], ["rl.ppo.minibatches = 17", "16 rows"]),
        (["evaluate.prompts.path=prompts.jsonl"], ["evaluate.prompts", "held-out"]),
        (["rl.ppo.aggregation=token_sum_norm"], ["whiten_advantages", "choose one"]),
    ],
)
def test_refusal_names_path_value_and_remedy(overrides: list[str], words: list[str]):
    message = _problems(BASE, *overrides)
    assert [word for word in words if word not in message] == []


def test_all_problems_come_at_once():
    message = _problems(
        BASE, "sft.epoch=2", "rl.grpo.steps=0", "compute.dtype=float16", "evaluate.prompts.pathh=x"
    )
    assert message.startswith("4 problems in run.toml")
    assert "rl.grpo.steps = 0" in message  # the kind of the union is no part of the path
    assert "rl.grpo.grpo" not in message


def test_kinds_start_from_their_preset_and_every_part_can_be_replaced():
    text = BASE.replace('kind = "grpo"', 'kind = "dapo"')
    config = parse_config(text, ".toml", ["rl.grpo.eps_low=0.1", "rl.grpo.overlong_share=off", "rl.grpo.kl.beta=0.3"])
    dapo = config.rl["grpo"]
    assert (dapo.eps_low, dapo.eps_high, dapo.aggregation, dapo.overlong_share) == (0.1, 0.28, "token_mean", None)
    assert (dapo.kl.beta, dapo.kl.where, dapo.kl.estimator) == (0.3, "loss", "k3_corrected")
    assert parse_config(resolved_json(config), ".json") == config


def test_learned_reward_needs_a_model():
    assert "needs a [reward_model] stage" in _problems(
        '[rl.a]\nkind = "ppo"\nprompts.path = "p"\nrewards = [{kind = "learned"}]\n'
    )


def test_empty_run_is_refused():
    assert "no stage" in _problems("seed = 1\n")


def test_missing_and_unknown_kind_are_explained():
    assert "rl.a" in _problems('[rl.a]\nprompts.path = "p"\nrewards = [{kind = "exact"}]\n')
    assert "online_dpo" in _problems('[rl.a]\nkind = "dpo"\nprompts.path = "p"\nrewards = [{kind = "exact"}]\n')


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        ("a = ", ".toml", "not readable as toml"),
        ("a: [", ".yaml", "not readable as yaml"),
        ("[1]", ".json", "expected sections, got a list"),
        ("", ".yaml", "expected sections, got a NoneType"),
        ("", ".ini", "not '.ini'"),
        ("!!python/object/apply:os.system ['true']", ".yaml", "not readable as yaml"),
        ("[" * 100_000, ".json", "not readable as json"),
    ],
)
def test_unreadable_text_is_one_problem(text: str, suffix: str, words: str):
    assert words in _problems(text, suffix=suffix)


def test_missing_file_is_a_problem_of_the_configuration(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot read the file"):
        load_config(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read the file"):
        load_config(tmp_path / "binary.toml")


def test_configuration_never_changes():
    config = parse_config(BASE, ".toml")
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1  # pyright: ignore[reportAttributeAccessIssue]


def _config_or_error(text: str, suffix: str, *overrides: str) -> RunConfig | ConfigError:
    try:
        return parse_config(text, suffix, overrides)
    except ConfigError as error:
        return error


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)
_NAMES = st.sampled_from(["sft", "rl", "name", "model", "evaluate", "x"])


@given(st.text(max_size=40))
def test_any_override_is_accepted_or_refused_in_words(override: str):
    outcome = _config_or_error(BASE, ".toml", override)
    assert isinstance(outcome, RunConfig) or all(outcome.problems)


@given(st.dictionaries(_NAMES, _ANYTHING))
def test_any_document_is_accepted_or_refused_in_words(document: dict):
    outcome = _config_or_error(json.dumps(document), ".json")
    assert isinstance(outcome, RunConfig) or all(outcome.problems)
