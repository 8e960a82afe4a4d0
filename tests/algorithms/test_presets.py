"""Which parts every algorithm is made of, against algorithms.md and the papers; and the table that users read."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
from pydantic import ValidationError

from tether.algorithms.table import as_markdown, as_text, parts_table
from tether.config import ActorCriticConfig, CriticFreeConfig, OnlineDPOConfig, parse_config, rl_kind
from tether.config.presets import ACTOR_CRITIC, CRITIC_FREE, TITLES

KINDS = [*ACTOR_CRITIC, *CRITIC_FREE]
NONE = ("loss", "k3_corrected", 0.0)

# kind: estimator, std, surrogate, eps_low, eps_high, aggregation, KL (place, estimator, beta), samples per prompt.
# Where a paper leaves a value open the choice is ours and said in docs/algorithms/KIND.md.
PARTS = {
    # DeepSeekMath 4.1.2 and 4.2 (beta .04); k3 there, ratio-corrected here so that the gradient is that of KL(policy || reference)
    "grpo": ("group", "population", "ppo_clip", 0.2, 0.2, "seq_mean_token_mean", ("loss", "k3_corrected", 0.04), 8),
    # 2503.20783: no std, constant normaliser, no KL
    "dr_grpo": ("group", "none", "ppo_clip", 0.2, 0.2, "token_sum_norm", NONE, 8),
    # 2503.14476: clip-higher .2 / .28, eq. 12 token mean, no KL
    "dapo": ("group", "population", "ppo_clip", 0.2, 0.28, "token_mean", NONE, 8),
    # 2402.14740: plain REINFORCE on the whole answer, KL in the reward
    "rloo": ("rloo", "none", "ppo_clip", None, None, "seq_mean_token_sum", ("reward", "k1", 0.05), 8),
    # 2501.03262 eq. 8-10: KL in the reward, whitened over the batch, PPO clip
    "reinforce_pp": ("reinforce_pp", "population", "ppo_clip", 0.2, 0.2, "token_mean", ("reward", "k1", 0.01), 1),
    # App. A: group mean, whitened over tokens, k2 as loss
    "reinforce_pp_baseline": ("reinforce_pp_baseline", "population", "ppo_clip", 0.2, 0.2, "token_mean", ("loss", "k2", 0.01), 8),
    # 2310.10505: minus the greedy answer's reward; REINFORCE, KL in the reward
    "remax": ("remax", "population", "ppo_clip", None, None, "seq_mean_token_sum", ("reward", "k1", 0.05), 1),
    # 2507.18071: eq. 5, clip 3e-4 / 4e-4
    "gspo": ("group", "population", "gspo", 3e-4, 4e-4, "seq_mean_token_mean", NONE, 8),
    # 2506.13585 eq. 4-5: no lower bound, token mean
    "cispo": ("group", "population", "cispo", None, 0.28, "token_mean", NONE, 8),
    # 2507.20673: log-ratio clipped to [-.4, .4]
    "gmpo": ("group", "population", "gmpo", 0.4, 0.4, "seq_mean_token_mean", NONE, 8),
    # 2505.23585: length-weighted baseline, exact on-policy, no KL
    "opo": ("opo", "population", "ppo_clip", None, None, "seq_mean_token_sum", NONE, 8),
    # 2601.05242: each reward standardised by itself, rest as GRPO
    "gdpo": ("gdpo", "population", "ppo_clip", 0.2, 0.2, "seq_mean_token_mean", ("loss", "k3_corrected", 0.04), 8),
}


def resolved(kind, **settings):
    return rl_kind(kind).model_validate({"kind": kind, "prompts": {"path": "p"}, "rewards": [{"kind": "format"}], **settings})


def tether_of(config):
    return (config.kl.where, config.kl.estimator, config.kl.beta)


@pytest.mark.parametrize("kind", CRITIC_FREE)
def test_parts_without_a_critic(kind):
    c = resolved(kind)
    common = (c.surrogate, c.eps_low, c.eps_high, c.aggregation, tether_of(c), c.samples_per_prompt)
    assert (c.advantage, c.std, *common) == PARTS[kind]
    assert c.std_eps == 1e-6
    assert (c.dual_clip, c.entropy_coef, c.target_kl, c.epochs, c.minibatches) == (None, 0, None, 1, 1)
    assert (c.sampler_correction.mode, c.kl.target) == ("off", None)
    if kind == "dapo":  # eq. 11 and eq. 13 with the paper's 4096 of 20480 tokens
        assert (c.dynamic_sampling.max_batches, c.overlong_share) == (3, pytest.approx(4096 / 20480))
    else:
        assert (c.dynamic_sampling, c.overlong_share) == (None, None)


def test_parts_of_ppo():
    """1707.06347 with the constants of RLHF: clip .2, lambda .95, gamma 1, value coefficient .1, KL in the reward (Ziegler 2019)."""
    c = resolved("ppo")
    assert (c.surrogate, c.eps_low, c.eps_high, c.aggregation, tether_of(c)) == ("ppo_clip", 0.2, 0.2, "token_mean", ("reward", "k1", 0.05))
    assert (c.gamma, c.lam, c.lam_alpha, c.critic_lam, c.whiten_advantages) == (1.0, 0.95, None, None, True)
    assert (c.critic, c.value_coef, c.value_clip, c.value_pretrain_steps) == ("shared", 0.1, 0.2, 0)


def test_parts_of_vapo():
    """2504.05118: alpha .05, critic lambda 1, value pretraining, clip-higher, token mean, no KL."""
    c = resolved("vapo")
    assert (c.surrogate, c.eps_low, c.eps_high, c.aggregation, tether_of(c)) == ("ppo_clip", 0.2, 0.28, "token_mean", NONE)
    assert (c.gamma, c.lam_alpha, c.critic_lam, c.whiten_advantages) == (1.0, 0.05, 1.0, True)
    assert (c.critic, c.value_coef, c.value_clip, c.value_pretrain_steps) == ("separate", 0.1, None, 2)


def test_the_table_lists_every_kind_of_the_configuration():
    kinds = [kind for section in (ActorCriticConfig, CriticFreeConfig, OnlineDPOConfig) for kind in _kinds(section)]
    assert sorted(kinds) == sorted(TITLES) == sorted(row.kind for row in parts_table())
    assert set(PARTS) == set(CRITIC_FREE)
    text = as_text()
    assert all(f"\n{kind} " in text for kind in kinds)
    assert all(f"[{kind}]({kind}.md)" in as_markdown() for kind in kinds)


def _kinds(section):
    return get_args(section.model_fields["kind"].annotation)


def test_rows_say_what_the_preset_resolves_to():
    rows = {row.kind: row for row in parts_table()}
    assert (rows["dapo"].surrogate, rows["dapo"].extras) == ("ppo_clip 0.2/0.28", "G 8, dynamic sampling 3, overlong 0.2")
    assert (rows["cispo"].surrogate, rows["cispo"].kl) == ("cispo off/0.28", "none")
    assert (rows["rloo"].surrogate, rows["rloo"].kl) == ("ppo_clip unclipped", "reward k1 0.05")
    assert rows["vapo"].advantage == "gae lam 1-1/(0.05 L), whitened"
    assert (rows["dr_grpo"].advantage, rows["dr_grpo"].normaliser) == ("group std none", "token_sum_norm")
    assert rows["remax"].extras == "G 1 and a greedy answer"


def test_the_table_costs_no_torch():
    code = "import sys, tether.algorithms.table as t; t.as_text(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_the_composition_that_the_table_shows_is_valid():
    shown = as_text().split("for instance:")[1]
    text = "\n".join(line.strip() for line in shown.splitlines())
    config = parse_config(text + '\nprompts.path = "p"\nrewards = [{kind = "format"}]\n', ".toml").rl["mine"]
    assert (config.advantage, config.surrogate, config.aggregation) == ("rloo", "cispo", "token_mean")
    assert (config.kl.where, config.kl.beta) == ("loss", 0.04)  # what is not named stays that of the start


@pytest.mark.parametrize("kind", KINDS)
def test_a_beta_alone_switches_the_tether_on_in_the_place_of_the_preset(kind):
    assert resolved(kind, kl={"beta": 0.3}).kl == resolved(kind).kl.model_copy(update={"beta": 0.3})


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("grpo", {"kl": {"where": "reward"}}, "only k1 in the reward"),
        ("rloo", {"kl": {"where": "loss"}}, "its expected gradient is zero"),
        ("gdpo", {"kl": {"where": "reward", "estimator": "k1"}}, "no place for the KL in the reward"),
        ("gspo", {"advantage": "reinforce_pp"}, "one advantage per answer"),
        ("ppo", {"surrogate": "gmpo"}, "one advantage per answer"),
        ("gspo", {"dual_clip": 3.0}, "dual_clip has no meaning"),
        ("rloo", {"samples_per_prompt": 1}, "must be 2 or more"),
        ("dapo", {"rewards": [{"kind": "overlong"}]}, "punish the same length twice"),
        ("vapo", {"critic": "shared"}, "a shared trunk would move the policy"),
        ("vapo", {"steps": 2}, "value_pretrain_steps = 2 of steps = 2: the policy would never be trained"),
        ("opo", {"std": "none"}, "std has no effect with advantage = 'opo'; drop it or use one of group"),
        ("remax", {"std_eps": 1e-3}, "std_eps has no effect with advantage = 'remax'"),
        ("gdpo", {"std": "none"}, "divides by a standard deviation"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(kind, settings, message):
    with pytest.raises(ValidationError, match=message):
        resolved(kind, **settings)


def test_what_is_off_may_be_called_so():
    config = resolved("ppo", kl={"target": "off"}, sampler_correction="off")
    assert (config.kl.target, config.sampler_correction.mode) == (None, "off")
    assert config == resolved("ppo")
