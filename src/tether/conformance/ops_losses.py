"""Operations on policy and value losses. The loss is aggregated as the case says; its gradient comes from autograd."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import Tensor

from tether import maths

from .inputs import Inputs, Outputs, by_name, gradient


def _aggregation(i: Inputs) -> maths.Aggregation:
    return i.choice("aggregation", maths.Aggregation)


def ppo_policy_loss(i: Inputs) -> Outputs:
    logprobs, mask = i.leaf("logprobs"), i.bools("mask")
    data = (logprobs, i.floats("old_logprobs"), i.floats("advantages"), mask)
    clip = i.given(i.number, "eps_low", "eps_high", "dual_clip")
    losses = maths.ppo_surrogate(*data, **clip).losses_BT
    loss = maths.aggregate(losses, mask, _aggregation(i), **i.given(i.whole, "norm_len"))
    stats = asdict(maths.policy_stats(*data, **clip).means())
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "stats": stats}


def microbatch_invariance(i: Inputs) -> Outputs:
    logprobs, mask, aggregation = i.leaf("logprobs"), i.bools("mask"), _aggregation(i)
    old, advantages = i.floats("old_logprobs"), i.floats("advantages")
    norm, splits = i.given(i.whole, "norm_len"), i.nested("splits")
    count = maths.aggregate_count(mask, aggregation)
    total, means = torch.zeros((), dtype=i.dtype), []
    for part in torch.split(torch.arange(len(mask)), splits):
        losses = maths.ppo_surrogate(
            logprobs[part], old[part], advantages[part], mask[part], i.number("eps_low"), i.number("eps_high")
        ).losses_BT
        total = total + maths.aggregate_sum(losses, mask[part], aggregation, **norm) / count
        live = bool(mask[part].any())
        means.append(
            float(maths.aggregate(losses.detach(), mask[part], aggregation, **norm)) if live else math.nan
        )
    return {
        "loss": total,
        "wrong_mean_of_micro_means": sum(means) / len(means),
        "grad_logprobs": gradient(total, logprobs)[0],
    }


def value_loss(i: Inputs) -> Outputs:
    values, mask = i.leaf("values"), i.bools("mask")
    old, returns = i.floats("old_values"), i.floats("returns")
    result = maths.value_loss(values, old, returns, mask, **i.given(i.number, "clip"))
    loss = maths.aggregate(result.losses_BT, mask, _aggregation(i))
    return {
        "loss": loss,
        "grad_values": gradient(loss, values)[0],
        "clipfrac": maths.masked_mean(result.clipped_BT.to(i.dtype), mask),
        "explained_variance": maths.explained_variance(old, returns, mask),
    }


def entropy_bonus(i: Inputs) -> Outputs:
    logits, mask = i.leaf("logits"), i.bools("mask")
    entropy = maths.token_entropy(logits, mask)
    losses = maths.entropy_bonus(entropy, mask, i.number("coef"))
    term = maths.aggregate(losses, mask, maths.Aggregation.TOKEN_MEAN)
    return {
        "entropy": maths.masked_mean(entropy, mask),
        "loss_term": term,
        "grad_logits_of_loss_term": gradient(term, logits)[0],
    }


def _mean_over_rows(losses_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return maths.aggregate(losses_BT, mask_BT, maths.Aggregation.SEQ_MEAN_TOKEN_MEAN)


def gspo_loss(i: Inputs) -> Outputs:
    logprobs, mask = i.leaf("logprobs"), i.bools("mask")
    old, advantages, clip = (
        i.floats("old_logprobs"),
        i.floats("advantages"),
        i.given(i.number, "eps_low", "eps_high"),
    )
    surrogate = maths.gspo(logprobs, old, advantages, mask, **clip)
    loss = _mean_over_rows(surrogate.losses_BT, mask)
    return {
        "loss": loss,
        "grad_logprobs": gradient(loss, logprobs)[0],
        "seq_ratio": surrogate.ratio_B,
        "clipped_beneficial": surrogate.clipped_B,
    }


def gspo_token_loss(i: Inputs) -> Outputs:
    logprobs, mask = i.leaf("logprobs"), i.bools("mask")
    old, advantages, clip = (
        i.floats("old_logprobs"),
        i.floats("advantages"),
        i.given(i.number, "eps_low", "eps_high"),
    )
    loss = _mean_over_rows(maths.gspo_token(logprobs, old, advantages, mask, **clip).losses_BT, mask)
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0]}


def cispo_loss(i: Inputs) -> Outputs:
    logprobs, mask = i.leaf("logprobs"), i.bools("mask")
    old, advantages, clip = (
        i.floats("old_logprobs"),
        i.floats("advantages"),
        i.given(i.number, "eps_high", "eps_low"),
    )
    surrogate = maths.cispo(logprobs, old, advantages, mask, **clip)
    loss = maths.aggregate(surrogate.losses_BT, mask, _aggregation(i), **i.given(i.whole, "norm_len"))
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "weights": surrogate.weights_BT}


def gmpo_loss(i: Inputs) -> Outputs:
    logprobs, mask = i.leaf("logprobs"), i.bools("mask")
    old, advantages, clip = (
        i.floats("old_logprobs"),
        i.floats("advantages"),
        i.given(i.number, "log_eps_low", "log_eps_high"),
    )
    surrogate = maths.gmpo(logprobs, old, advantages, mask, **clip)
    loss = _mean_over_rows(surrogate.losses_BT, mask)
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "seq_coef": surrogate.ratio_B}


def grpo_loss(i: Inputs) -> Outputs:
    logprobs, mask, aggregation = i.leaf("logprobs"), i.bools("mask"), _aggregation(i)
    old, ref, norm = i.floats("old_logprobs"), i.floats("ref_logprobs"), i.given(i.whole, "norm_len")
    advantages = maths.broadcast_to_tokens(i.floats("advantages"), mask)
    corrected = i.given(i.flag, "kl_is_correction").get("kl_is_correction", False)
    function = maths.grpo_loss_ratio_corrected if corrected else maths.grpo_loss
    settings = i.given(i.number, "eps_low", "eps_high", "beta")
    tethered = function(logprobs, old, ref, advantages, mask, **settings)
    loss = maths.aggregate(tethered.losses_BT, mask, aggregation, **norm)
    kl = maths.aggregate(tethered.kl_BT, mask, aggregation, **norm)
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "kl": kl}


OPERATIONS = by_name(
    ppo_policy_loss,
    microbatch_invariance,
    value_loss,
    entropy_bonus,
    gspo_loss,
    gspo_token_loss,
    cispo_loss,
    gmpo_loss,
    grpo_loss,
)
