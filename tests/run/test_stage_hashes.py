"""A stage is known by what it is made from; how the file that says so is ordered makes no difference to `tether resume`."""

from __future__ import annotations

import pytest

from tether.config import parse_config, resolved_json
from tether.run.made_from import stage_hashes

PROMPTS = 'prompts = {path = "tether:quickstart_prompts_train.jsonl"}'
PARAMS = "{low = 3, high = 4, falloff = 4, unit = 'tokens'}"


def text(params: str = PARAMS) -> str:
    """Stages and parameters in no alphabetical order."""
    stages = [f"[rl.{name}]\nkind = '{name}'\n{PROMPTS}\nrewards = [{{kind = 'length', params = {params}}}]" for name in ("ppo", "dapo")]
    evaluate = '[evaluate]\nscore = "exact"\nscore_params = {marker = "=", column = "answer"}\nprompts = {path = "held.jsonl"}'
    return "\n".join(["[model]\npath = 'tiny'", *stages, evaluate])


def test_the_stored_configuration_makes_the_same_stages_in_the_same_order():
    config = parse_config(text(), ".toml")
    stored = parse_config(resolved_json(config), ".json")
    assert stage_hashes(stored) == stage_hashes(config)
    assert list(stage_hashes(stored)) == ["rl.ppo", "rl.dapo", "evaluate"]


@pytest.mark.parametrize(
    ("params", "same"), [("{unit = 'tokens', falloff = 4, high = 4, low = 3}", True), (PARAMS.replace("low = 3", "low = 2"), False)]
)
def test_parameters_count_and_their_order_does_not(params, same):
    here, there = stage_hashes(parse_config(text(), ".toml")), stage_hashes(parse_config(text(params), ".toml"))
    assert (here == there) == same
