"""Operations on token rewards, returns, GAE, whitening and running moments."""

from __future__ import annotations

import torch

from tether import maths

from .inputs import Inputs, Outputs, by_name


def shaped_rewards(i: Inputs) -> Outputs:
    rewards = maths.shaped_rewards(
        i.floats("score"),
        i.floats("old_logprobs"),
        i.floats("ref_logprobs"),
        i.bools("mask"),
        i.number("beta"),
        **i.given(lambda name: i.choice(name, maths.KLEstimator), estimator="kind"),
    )
    return {"rewards": rewards}


def reward_to_go(i: Inputs) -> Outputs:
    returns = maths.reward_to_go(i.floats("rewards"), i.bools("mask"), **i.given(i.number, "gamma"))
    return {"returns": returns}


def gae(i: Inputs) -> Outputs:
    result = maths.gae(
        i.floats("rewards"),
        i.floats("values"),
        i.bools("mask"),
        i.number("gamma"),
        i.number("lam"),
        i.bools("terminated"),
        **i.given(i.floats, bootstrap_values_B="bootstrap_values"),
        **i.given(i.bools, dones_BT="dones"),
    )
    return {"advantages": result.advantages_BT, "returns": result.returns_BT}


def gae_vapo(i: Inputs) -> Outputs:
    mask = i.bools("mask")
    lengths = (mask.sum(-1) * i.number("length_multiplier")).to(i.dtype)
    lam_policy = maths.vapo_lambda(lengths, **i.given(i.number, "alpha"))
    terminated = torch.ones(len(mask), dtype=torch.bool)
    rewards, values, gamma = i.floats("rewards"), i.floats("values"), i.number("gamma")
    result = maths.decoupled_gae(rewards, values, mask, gamma, lam_policy, i.number("lam_critic"), terminated)
    return {"lam_policy": lam_policy, "advantages": result.advantages_BT, "returns": result.returns_BT}


def whiten(i: Inputs) -> Outputs:
    function = maths.whiten if i.flag("shift_mean") else maths.scale_only_whiten
    settings = i.given(i.whole, "ddof") | i.given(i.number, "eps")
    return {"out": function(i.floats("x"), i.bools("mask"), **settings)}


def running_moments(i: Inputs) -> Outputs:
    seen = maths.Moments()
    for x in i.rows("batches"):
        seen = seen + maths.moments(x, torch.ones_like(x, dtype=torch.bool))
    return {
        "count": seen.count,
        "mean": seen.mean,
        "var_population": seen.variance,
        "std_sample": seen.sample_std,
    }


OPERATIONS = by_name(shaped_rewards, reward_to_go, gae, gae_vapo, whiten, running_moments)
