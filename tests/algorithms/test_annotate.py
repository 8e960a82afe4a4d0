"""Advantages as wired: every estimator on one small round, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tether.algorithms.advantages import annotate
from tether.algorithms.experience import Experience, as_groups
from tether.config import ActorCriticConfig, CriticFreeConfig

DATA = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}]}
IN_LOSS = {"where": "loss", "estimator": "k2", "beta": 0.5}
IN_REWARD = {"where": "reward", "estimator": "k1", "beta": 0.5}

# Two prompts, two answers each, of 2, 1, 1 and 2 tokens; the second group is dead. k1 per token: (.1, .3), (-.2), (0), (.1, .1).
MASK = torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.bool)
K1 = torch.tensor([[0, 0.1, 0.3], [0, -0.2, 0], [0, 0, 0], [0, 0.1, 0.1]], dtype=torch.float64)
ROUND = Experience(
    mask_BT=MASK,
    scores_B=torch.tensor([1.0, 0.0, 3.0, 3.0], dtype=torch.float64),
    group_ids_B=as_groups(["a", "a", "b", "b"]),
    terminated_B=torch.ones(4, dtype=torch.bool),
    old_logprobs_BT=torch.where(MASK, K1 - 1, torch.nan),
    ref_logprobs_BT=torch.where(MASK, torch.full_like(K1, -1.0), torch.nan),
    baseline_scores_B=torch.tensor([0.5, 0.5, 2.0, 2.0], dtype=torch.float64),
    parts_BK=torch.tensor([[1.0, 0.0], [0.0, 100.0], [0.0, 100.0], [1.0, 0.0]], dtype=torch.float64),
    part_weights_K=torch.tensor([1.0, 0.5], dtype=torch.float64),
)


def critic_free(**settings):
    """Without the small number beside a standard deviation, where there is one: exact figures by hand."""
    divided = settings.get("advantage", "group") in {"group", "group_batch_std", "rloo", "gdpo"}
    return CriticFreeConfig.model_validate({**DATA, **({"std_eps": 0.0} if divided else {}), **settings})


def live(experience, config, beta=0.5):
    """Advantages at live tokens in reading order, after checking that pads hold 0."""
    advantages_BT = annotate(experience, config, beta).advantages_BT
    assert not advantages_BT.requires_grad
    assert torch.all(advantages_BT[~experience.mask_BT] == 0)
    return advantages_BT[experience.mask_BT].tolist()


def per_row(a, b, c, d):
    return [a, a, b, c, d, d]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # group a has scores 1, 0: mean .5, std .5; group b has no spread
        ({"advantage": "group"}, per_row(1, -1, 0, 0)),
        ({"advantage": "group", "std": "sample"}, per_row(0.5**0.5, -(0.5**0.5), 0, 0)),
        ({"advantage": "group", "std": "none"}, per_row(0.5, -0.5, 0, 0)),
        # summed k1 .4, -.2, 0, .2: rewards .8, .1, 3, 2.9; group b is alive now
        ({"advantage": "group", "std": "none", "kl": IN_REWARD}, per_row(0.35, -0.35, 0.05, -0.05)),
        # all scores 1, 0, 3, 3: sample variance 6.75 / 3
        ({"advantage": "group_batch_std", "std": "sample"}, per_row(1 / 3, -1 / 3, 0, 0)),
        ({"advantage": "rloo", "std": "none"}, per_row(1, -1, 0, 0)),
        ({"advantage": "rloo", "std": "none", "kl": IN_REWARD}, per_row(0.7, -0.7, 0.1, -0.1)),
        # baseline (2 * 1 + 1 * 0) / 3
        ({"advantage": "opo"}, per_row(1 / 3, -2 / 3, 0, 0)),
        # rewards .8, .1 and 3, 2.9: baselines 1.7 / 3 and 8.8 / 3
        ({"advantage": "opo", "kl": IN_REWARD}, per_row(0.7 / 3, -1.4 / 3, 0.2 / 3, -0.1 / 3)),
        ({"advantage": "remax"}, per_row(0.5, -0.5, 1, 1)),
        ({"advantage": "remax", "kl": IN_REWARD}, per_row(0.3, -0.4, 1, 0.9)),
        # z of the parts (1, -1), (-1, 1) in a and (-1, 1), (1, -1) in b, weights 1 and .5: .5, -.5, -.5, .5, over their std .5
        ({"advantage": "gdpo"}, per_row(1, -1, -1, 1)),
        # .5, .5, -.5, 0, 0, 0: mean 1/12, variance 17/144; the dead group b is not moved by the mean
        ({"advantage": "reinforce_pp_baseline"}, [x / 17**0.5 for x in (5, 5, -7, 0, 0, 0)]),
        # tokens .35, .35, -.35, .05, -.05, -.05: mean .05, variance .06
        (
            {"advantage": "reinforce_pp_baseline", "kl": IN_REWARD},
            [x / 0.06**0.5 for x in (0.3, 0.3, -0.4, 0.0, -0.1, -0.1)],
        ),
        # scores to go 1, 1, 0, 3, 3, 3: mean 11/6, variance 53/36
        ({"advantage": "reinforce_pp"}, [x / 53**0.5 for x in (-5, -5, -11, 7, 7, 7)]),
        # to go .8, .85, .1, 3, 2.9, 2.95: mean 10.6 / 6, variance 1.459722
        (
            {"advantage": "reinforce_pp", "kl": IN_REWARD},
            [(x - 10.6 / 6) / 1.4597222**0.5 for x in (0.8, 0.85, 0.1, 3.0, 2.9, 2.95)],
        ),
    ],
    ids=lambda value: "-".join(str(v["where"] if isinstance(v, dict) else v) for v in value.values()) if isinstance(value, dict) else "",
)
def test_estimators_without_a_critic_by_hand(settings, expected):
    config = critic_free(**{"kl": IN_LOSS, **settings})
    assert live(ROUND, config) == pytest.approx(expected, abs=1e-6)


def test_rows_may_stand_in_any_order():
    order = torch.tensor([2, 0, 3, 1])
    fields = ("mask_BT", "scores_B", "group_ids_B", "terminated_B", "old_logprobs_BT", "ref_logprobs_BT", "baseline_scores_B", "parts_BK")
    shuffled = replace(ROUND, **{name: getattr(ROUND, name)[order] for name in fields})
    for advantage in ("group", "rloo", "opo", "gdpo", "reinforce_pp", "reinforce_pp_baseline", "remax", "group_batch_std"):
        config = critic_free(kl=IN_LOSS, advantage=advantage)
        both = annotate(ROUND, config, 0.5).advantages_BT, annotate(shuffled, config, 0.5).advantages_BT
        assert torch.allclose(both[0][order], both[1])


@pytest.mark.parametrize("advantage", ["group", "group_batch_std", "rloo", "opo", "gdpo", "reinforce_pp_baseline"])
def test_a_dead_group_gets_exactly_nothing(advantage):
    # .1 + .2 and .3: group a leaves rounding behind in the mean over the batch
    parts_BK = torch.tensor([[0.1 + 0.2, 0.7], [0.9, 0.1], [0.3, 0.1], [0.3, 0.1]], dtype=torch.float64)
    dead = replace(ROUND, parts_BK=parts_BK, part_weights_K=torch.tensor([1.0, 0.3], dtype=torch.float64))
    assert live(dead, critic_free(kl=IN_LOSS, advantage=advantage))[3:] == [0, 0, 0]


def test_dead_groups_are_counted_by_their_scores():
    result = annotate(ROUND, critic_free(), 0.04)
    assert (result.dead_groups, result.num_groups, result.returns_BT) == (1, 2, None)


def test_a_part_that_does_not_apply_to_a_row_says_nothing_about_it():
    parts_BK = ROUND.parts_BK.clone()
    parts_BK[2:, 1] = torch.nan  # the second part speaks of group a alone
    config = critic_free(kl=IN_LOSS, advantage="gdpo")
    # sums .5, -.5 in a and -1, 1 in b: std of the batch sqrt(.625)
    expected = [x / 0.625**0.5 for x in per_row(0.5, -0.5, -1, 1)]
    assert live(replace(ROUND, parts_BK=parts_BK), config) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("advantage", "missing"), [("remax", "baseline_scores_B"), ("gdpo", "parts_BK")])
def test_what_an_estimator_needs_is_asked_for(advantage, missing):
    config = critic_free(kl=IN_LOSS, advantage=advantage)
    with pytest.raises(ValueError, match=f"{advantage} needs {missing}"):
        annotate(replace(ROUND, **{missing: None}), config, 0.5)
    with pytest.raises(ValueError, match="ppo needs old_values_BT"):
        annotate(ROUND, ActorCriticConfig.model_validate({"prompts": {"path": "p"}, "rewards": [{"kind": "format"}]}), 0.5)


# -- actor-critic ------------------------------------------------------------------------------------------------------------


def critic_round(mask, rewards, values, terminated, bootstrap, k1=None):
    mask_BT = torch.tensor(mask, dtype=torch.bool)
    k1_BT = torch.zeros(mask_BT.shape, dtype=torch.float64) if k1 is None else torch.tensor(k1, dtype=torch.float64)
    return Experience(
        mask_BT,
        torch.tensor(rewards, dtype=torch.float64),
        torch.arange(len(rewards)),
        torch.tensor(terminated),
        k1_BT,
        torch.zeros_like(k1_BT),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(bootstrap, dtype=torch.float64),
    )


def actor_critic(kind="ppo", **settings):
    return ActorCriticConfig.model_validate({"kind": kind, "prompts": {"path": "p"}, "rewards": [{"kind": "format"}], **settings})


CUT = critic_round([[1, 1], [1, 0]], [1.0, 0.0], [[0.2, 0.4], [0.3, 0]], [True, False], [9.0, 0.5], [[0.1, 0.3], [-0.2, 0]])


def test_ppo_pays_the_kl_per_token_the_score_last_and_continues_a_cut_answer():
    """Rewards -.05, .85 and .1. Row 0: deltas .15, .45. Row 1 is cut in a state worth .5: .1 + .5 - .3."""
    result = annotate(CUT, actor_critic(lam=0.5, whiten_advantages=False), 0.5)
    assert result.advantages_BT[CUT.mask_BT].tolist() == pytest.approx([0.375, 0.45, 0.3])
    assert result.returns_BT[CUT.mask_BT].tolist() == pytest.approx([0.575, 0.85, 0.6])


def test_ppo_whitens_advantages_and_never_returns():
    """.375, .45, .3: mean .375, variance .00375."""
    result = annotate(CUT, actor_critic(lam=0.5), 0.5)
    assert result.advantages_BT[CUT.mask_BT].tolist() == pytest.approx([0, 1.5**0.5, -(1.5**0.5)], abs=1e-5)
    assert result.returns_BT[CUT.mask_BT].tolist() == pytest.approx([0.575, 0.85, 0.6])


def test_with_the_kl_in_the_loss_the_rewards_of_ppo_are_the_scores():
    """Row 0: rewards 0, 1, deltas .2, .6. Row 1: 0 + .5 - .3."""
    config = actor_critic(lam=0.5, whiten_advantages=False, kl={"where": "loss", "estimator": "k2"})
    assert annotate(CUT, config, 0.5).advantages_BT[CUT.mask_BT].tolist() == pytest.approx([0.5, 0.6, 0.2])


LENGTHS = critic_round([[1, 1, 1, 1], [1, 1, 0, 0]], [1.0, 1.0], [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0, 0]], [True, True], [0.0, 0.0])


@pytest.mark.parametrize(
    ("critic_lam", "returns"),
    [(1.0, [1, 1, 1, 1, 1, 1]), ("off", [0.35, 0.5, 0.7, 1.0, 0.5, 1.0])],
)
def test_vapo_lambda_follows_the_length_and_the_critic_has_its_own(critic_lam, returns):
    """lam_alpha .5: lambda 1 - 1/2 for four tokens, 0 for two. Deltas .1, .1, .1, .6 and 0, .5."""
    config = actor_critic("vapo", lam_alpha=0.5, critic_lam=critic_lam, whiten_advantages=False)
    result = annotate(LENGTHS, config, 0.0)
    assert result.advantages_BT[LENGTHS.mask_BT].tolist() == pytest.approx([0.25, 0.3, 0.4, 0.6, 0, 0.5])
    assert result.returns_BT[LENGTHS.mask_BT].tolist() == pytest.approx(returns)
