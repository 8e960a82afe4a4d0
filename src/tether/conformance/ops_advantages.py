"""Operations on group advantages and the rewards they start from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tether import maths

from .inputs import Inputs, Outputs, by_name, gradient


def _moment_settings(i: Inputs) -> dict[str, Any]:
    return i.given(i.whole, "ddof") | i.given(i.number, "eps")


def _std(i: Inputs) -> dict[str, Any]:
    return i.given(lambda name: i.choice(name, maths.StdKind), "std") | i.given(i.number, "eps")


def grpo_advantages(i: Inputs) -> Outputs:
    mode = i.given(lambda name: i.choice(name, maths.EpsMode), "eps_mode")
    return {"advantages": maths.grpo_advantages(i.floats("rewards"), i.ints("group_ids"), **_std(i), **mode)}


def rloo_advantages(i: Inputs) -> Outputs:
    return {"advantages": maths.rloo_advantages(i.floats("rewards"), i.ints("group_ids"), **_std(i))}


def grpo_batch_std_advantages(i: Inputs) -> Outputs:
    rewards, ids = i.floats("rewards"), i.ints("group_ids")
    return {"advantages": maths.grpo_batch_std_advantages(rewards, ids, **_moment_settings(i))}


def opo_advantages(i: Inputs) -> Outputs:
    return {"advantages": maths.opo_advantages(i.floats("rewards"), i.floats("lengths"), i.ints("group_ids"))}


def reinforce_pp_advantages(i: Inputs) -> Outputs:
    advantages = maths.reinforce_pp_advantages(
        i.floats("score"),
        i.floats("old_logprobs"),
        i.floats("ref_logprobs"),
        i.bools("mask"),
        i.number("beta"),
        **i.given(i.number, "gamma"),
        **_moment_settings(i),
    )
    return {"advantages": advantages}


def reinforce_pp_baseline_advantages(i: Inputs) -> Outputs:
    score, ids, mask = i.floats("score"), i.ints("group_ids"), i.bools("mask")
    return {"advantages": maths.reinforce_pp_baseline_advantages(score, ids, mask, **_moment_settings(i))}


def remax_advantages(i: Inputs) -> Outputs:
    return {"advantages": maths.remax_advantages(i.floats("rewards"), i.floats("greedy_rewards"))}


def gdpo_advantages(i: Inputs) -> Outputs:
    rewards, ids, weights = i.floats("rewards"), i.ints("group_ids"), i.floats("weights")
    return {"advantages": maths.gdpo_advantages(rewards, ids, weights, **_moment_settings(i))}


def sum_then_normalize_advantages(i: Inputs) -> Outputs:
    rewards, ids, weights = i.floats("rewards"), i.ints("group_ids"), i.floats("weights")
    return {"advantages": maths.sum_then_normalize_advantages(rewards, ids, weights, **_std(i))}


def process_advantages(i: Inputs) -> Outputs:
    steps, ends, mask = i.number_rows("step_rewards"), i.whole_rows("step_end_index"), i.bools("mask")
    return {"advantages": maths.process_advantages(steps, ends, mask, **_moment_settings(i), dtype=i.dtype)}


def overlong_penalty(i: Inputs) -> Outputs:
    lengths, max_len, cache = i.ints("lengths"), i.whole("max_len"), i.whole("cache")
    return {"penalty": maths.overlong_penalty(lengths, max_len, cache, dtype=i.dtype)}


def dynamic_sampling(i: Inputs) -> Outputs:
    result = maths.dynamic_sampling(i.floats("rewards"))
    return {"keep": result.keep_P, "dead_fraction": result.dead_fraction}


def mixed_reward(i: Inputs) -> Outputs:
    return {"total": maths.mixed_reward(i.floats("rewards"), i.floats("weights"))}


def pg_expectation(i: Inputs) -> Outputs:
    """Expected gradients of three baselines, exactly: the sum over every group that could be drawn."""
    logits, rewards, group_size = i.leaf("logits"), i.floats("rewards"), i.whole("group_size")
    logprobs = torch.log_softmax(logits, -1)
    draws = torch.cartesian_prod(*[torch.arange(len(rewards))] * group_size).view(-1, group_size)
    ids = torch.arange(len(draws)).repeat_interleave(group_size)
    probs_of_draw = logprobs.detach()[draws].sum(-1).exp()

    def expected_gradient(advantages: Tensor) -> Tensor:
        per_draw = (advantages.view(draws.shape) * logprobs[draws]).mean(-1)
        return torch.autograd.grad((probs_of_draw * per_draw).sum(), logits, retain_graph=True)[0]

    drawn = rewards[draws].flatten()
    none, population = maths.StdKind.NONE, maths.StdKind.POPULATION
    return {
        "mean_baseline": expected_gradient(maths.grpo_advantages(drawn, ids, none)),
        "rloo": expected_gradient(maths.rloo_advantages(drawn, ids)),
        "std_normalised": expected_gradient(maths.grpo_advantages(drawn, ids, population, 0.0)),
        "true_grad": gradient((logprobs.exp() * rewards).sum(), logits)[0],
    }


OPERATIONS = by_name(
    grpo_advantages,
    rloo_advantages,
    grpo_batch_std_advantages,
    opo_advantages,
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
    remax_advantages,
    gdpo_advantages,
    sum_then_normalize_advantages,
    process_advantages,
    overlong_penalty,
    dynamic_sampling,
    mixed_reward,
    pg_expectation,
)
