"""The golden operations by name: plain JSON inputs and a dtype in, plain outputs (floats, lists, dicts) out.

Gradients come from autograd. Where a case file gives an exact enumeration (kl_expectations, pg_expectation,
kl_sequence_gradient), the sum over outcomes is made here out of the library's own functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from tether import maths

Inputs = dict[str, Any]
Outputs = dict[str, Any]
Operation = Callable[[Inputs, torch.dtype], Outputs]
OPS: dict[str, Operation] = {}


def _op(function: Operation) -> Operation:
    OPS[function.__name__.removeprefix("op_")] = function
    return function


def floats(x: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(x, dtype=dtype)


def leaf(x: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(x, dtype=dtype, requires_grad=True)


def bools(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.bool)


def ints(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.long)


def gradient(loss: Tensor, *wrt: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, wrt))


# --- log-probabilities  ---


@_op
def op_token_logprobs(i: Inputs, d: torch.dtype) -> Outputs:
    logits, mask = leaf(i["logits"], d), bools(i["mask"])
    logprobs = maths.token_logprobs(logits, ints(i["tokens"]), mask, i["temperature"])
    entropy = maths.token_entropy(logits, mask, i["temperature"])
    weighted = (logprobs * maths.select(floats(i["weights"], d), mask)).sum()
    return {
        "logprobs": logprobs,
        "entropy": entropy,
        "grad_logits_of_weighted_sum": gradient(weighted, logits)[0],
    }


@_op
def op_logprob_shift(i: Inputs, d: torch.dtype) -> Outputs:
    logits = floats(i["logits"], d)
    mask = bools(i["completion_mask"])
    return {"logprobs": maths.shift_logprobs(logits, ints(i["input_ids"]), mask, i["prompt_len"])}


@_op
def op_filtered_logprobs(i: Inputs, d: torch.dtype) -> Outputs:
    logits = floats([i["logits"]], d)
    filtered = maths.filter_logits(logits, i["temperature"], i["top_k"], i["top_p"])
    return {
        "keep": filtered.keep_NV[0],
        "logprobs": filtered.logprobs_NV[0],
        "unfiltered_logprobs": maths.filter_logits(logits, i["temperature"]).logprobs_NV[0],
        "log_kept_mass": filtered.log_kept_mass_N[0],
    }


# --- importance  ---


@_op
def op_is_weights(i: Inputs, d: torch.dtype) -> Outputs:
    old, sampler = floats(i["old_logprobs"], d), floats(i["rollout_logprobs"], d)
    return {
        "weights": maths.is_weights(
            old, sampler, bools(i["mask"]), maths.ImportanceMode(i["mode"]), i["lo"], i["hi"]
        )
    }


@_op
def op_mismatch_kl(i: Inputs, d: torch.dtype) -> Outputs:
    old, sampler = floats(i["old_logprobs"], d), floats(i["rollout_logprobs"], d)
    return asdict(maths.mismatch_kl(old, sampler, bools(i["mask"])))


@_op
def op_off_policy_sequence_mask(i: Inputs, d: torch.dtype) -> Outputs:
    result = maths.off_policy_sequence_mask(
        floats(i["logprobs"], d),
        floats(i["sampling_logprobs"], d),
        floats(i["advantages"], d),
        bools(i["mask"]),
        i["delta"],
    )
    return {"keep": result.keep_B, "seq_kl": result.seq_kl_B}


# --- KL  ---


@_op
def op_kl_token(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    kl = maths.kl_tokens(logprobs, floats(i["ref_logprobs"], d), mask, maths.KLEstimator(i["kind"]))
    return {
        "values": kl,
        "grad_sum": gradient(kl.sum(), logprobs)[0],
        "token_mean": maths.aggregate(kl, mask, maths.Aggregation.TOKEN_MEAN),
        "seq_sum_mean": maths.aggregate(kl, mask, maths.Aggregation.SEQ_MEAN_TOKEN_SUM),
    }


@_op
def op_kl_full(i: Inputs, d: torch.dtype) -> Outputs:
    logits, ref = leaf(i["logits"], d), floats(i["ref_logits"], d)
    kl = maths.kl_full(logits, ref)
    return {
        "kl": kl,
        "grad_logits_of_sum": gradient(kl.sum(), logits)[0],
        "reverse_direction_kl": maths.kl_full(ref, logits),
    }


@_op
def op_kl_expectations(i: Inputs, d: torch.dtype) -> Outputs:
    logits, ref = leaf(i["logits"], d), floats(i["ref_logits"], d)
    logprobs = torch.log_softmax(logits, -1)
    ref_logprobs = torch.log_softmax(ref, -1)
    probs = logprobs.detach().exp()
    estimates = {
        name: function(logprobs, ref_logprobs)
        for name, function in (("k1", maths.kl_k1), ("k2", maths.kl_k2), ("k3", maths.kl_k3))
    }

    def expected_gradient(per_outcome: Tensor) -> Tensor:
        return torch.autograd.grad((probs * per_outcome).sum(), logits, retain_graph=True)[0]

    out: Outputs = {f"E_{name}": (probs * k).sum() for name, k in estimates.items()}
    out |= {f"Egrad_{name}_as_loss": expected_gradient(k) for name, k in estimates.items()}
    ratio = (logprobs - logprobs.detach()).exp()
    out["Egrad_k3_times_ratio_as_loss"] = expected_gradient(ratio * estimates["k3"])
    for name in ("k1", "k3"):
        out[f"Egrad_{name}_in_reward"] = expected_gradient(estimates[name].detach() * logprobs)
    out["kl"] = maths.kl_full(logits, ref)
    out["grad_kl"] = gradient(maths.kl_full(logits, ref), logits)[0]
    out["grad_forward_kl_ref_pi"] = gradient(maths.kl_full(ref, logits), logits)[0]
    return out


@_op
def op_adaptive_kl(i: Inputs, d: torch.dtype) -> Outputs:
    def path(rule: Callable[[float, float, int], float]) -> list[float]:
        betas = itertools.accumulate(
            zip(i["kls"], i["n_steps"], strict=True), lambda beta, step: rule(beta, *step), initial=i["init"]
        )
        return list(betas)[1:]

    target = i["target"]
    return {
        "betas": path(lambda beta, kl, n: maths.adaptive_beta(beta, kl, target, n, i["horizon"])),
        "betas_ziegler_paper": path(
            lambda beta, kl, _: maths.adaptive_beta_ziegler(beta, kl, target, i["k_beta"])
        ),
        "betas_ppo_paper": path(lambda beta, kl, _: maths.adaptive_beta_ppo(beta, kl, target)),
    }


@_op
def op_target_kl_stop(i: Inputs, d: torch.dtype) -> Outputs:
    stop_at = maths.target_kl_stop(list(i["approx_kls"]), i["target_kl"], i["factor"])
    return {"stop_at": stop_at, "steps_applied": len(i["approx_kls"]) if stop_at is None else stop_at}


@_op
def op_kl_units(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, ref = floats(i["logprobs"], d), floats(i["ref_logprobs"], d)
    return asdict(maths.kl_units(logprobs, ref, bools(i["mask"])))


@_op
def op_kl_sequence_gradient(i: Inputs, d: torch.dtype) -> Outputs:
    first, second = leaf(i["first_logits"], d), leaf(i["second_logits"], d)
    ref_first, ref_second = floats(i["ref_first_logits"], d), floats(i["ref_second_logits"], d)
    num_first, num_second = second.shape
    pairs = list(itertools.product(range(num_first), range(num_second)))  # every two-token sequence
    actions_BT = ints(pairs)
    mask_BT = torch.ones(len(pairs), 2, dtype=torch.bool)

    def logprobs_of(first_V: Tensor, second_VV: Tensor) -> Tensor:
        logits_BTV = torch.stack([first_V.expand(len(pairs), -1), second_VV[actions_BT[:, 0]]], 1)
        return maths.token_logprobs(logits_BTV, actions_BT, mask_BT)

    logprobs_BT = logprobs_of(first, second)
    ref_logprobs_BT = logprobs_of(ref_first, ref_second)
    probs_B = logprobs_BT.detach().sum(-1).exp()
    kl_BT = maths.kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, maths.KLEstimator.K1).detach()
    to_go_BT = maths.reward_to_go(kl_BT, mask_BT, 1.0)
    score_function = (probs_B[:, None] * to_go_BT * logprobs_BT).sum()
    grad_first, grad_second = torch.autograd.grad(score_function, (first, second), retain_graph=True)
    first_probs = torch.softmax(first, -1).detach()
    token_level = maths.kl_full(first, ref_first) + (first_probs * maths.kl_full(second, ref_second)).sum()
    return {
        "kl": (probs_B[:, None] * kl_BT).sum(),
        "grad_first": grad_first,
        "grad_second": grad_second,
        "token_level_partial_grad_first": gradient(token_level, first)[0],
    }


# --- returns  ---


@_op
def op_shaped_rewards(i: Inputs, d: torch.dtype) -> Outputs:
    score, old, ref = floats(i["score"], d), floats(i["old_logprobs"], d), floats(i["ref_logprobs"], d)
    return {
        "rewards": maths.shaped_rewards(
            score, old, ref, bools(i["mask"]), i["beta"], maths.KLEstimator(i["kind"])
        )
    }


@_op
def op_reward_to_go(i: Inputs, d: torch.dtype) -> Outputs:
    return {"returns": maths.reward_to_go(floats(i["rewards"], d), bools(i["mask"]), i["gamma"])}


@_op
def op_gae(i: Inputs, d: torch.dtype) -> Outputs:
    bootstrap = i.get("bootstrap_values")
    result = maths.gae(
        floats(i["rewards"], d),
        floats(i["values"], d),
        bools(i["mask"]),
        i["gamma"],
        i["lam"],
        bools(i["terminated"]),
        None if bootstrap is None else floats(bootstrap, d),
        None if i.get("dones") is None else bools(i["dones"]),
    )
    return {"advantages": result.advantages_BT, "returns": result.returns_BT}


@_op
def op_gae_vapo(i: Inputs, d: torch.dtype) -> Outputs:
    mask = bools(i["mask"])
    lam_policy = maths.vapo_lambda((mask.sum(-1) * i["length_multiplier"]).to(d), i["alpha"])
    terminated = torch.ones(len(mask), dtype=torch.bool)
    rewards, values = floats(i["rewards"], d), floats(i["values"], d)
    result = maths.decoupled_gae(rewards, values, mask, i["gamma"], lam_policy, i["lam_critic"], terminated)
    return {"lam_policy": lam_policy, "advantages": result.advantages_BT, "returns": result.returns_BT}


@_op
def op_whiten(i: Inputs, d: torch.dtype) -> Outputs:
    function = maths.whiten if i["shift_mean"] else maths.scale_only_whiten
    return {"out": function(floats(i["x"], d), bools(i["mask"]), ddof=i["ddof"], eps=i["eps"])}


@_op
def op_running_moments(i: Inputs, d: torch.dtype) -> Outputs:
    seen = maths.Moments()
    for batch in i["batches"]:
        x = floats(batch, d)
        seen = seen + maths.moments(x, torch.ones_like(x, dtype=torch.bool))
    return {
        "count": seen.count,
        "mean": seen.mean,
        "var_population": seen.variance,
        "std_sample": seen.sample_std,
    }


# --- advantages  ---


@_op
def op_grpo_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    rewards, ids = floats(i["rewards"], d), ints(i["group_ids"])
    return {
        "advantages": maths.grpo_advantages(
            rewards, ids, maths.StdKind(i["std"]), i["eps"], maths.EpsMode(i["eps_mode"])
        )
    }


@_op
def op_rloo_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    return {"advantages": maths.rloo_advantages(floats(i["rewards"], d), ints(i["group_ids"]))}


@_op
def op_grpo_batch_std_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    rewards, ids = floats(i["rewards"], d), ints(i["group_ids"])
    return {"advantages": maths.grpo_batch_std_advantages(rewards, ids, i["ddof"], i["eps"])}


@_op
def op_opo_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    rewards, lengths = floats(i["rewards"], d), floats(i["lengths"], d)
    return {"advantages": maths.opo_advantages(rewards, lengths, ints(i["group_ids"]))}


@_op
def op_reinforce_pp_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    score, old, ref = floats(i["score"], d), floats(i["old_logprobs"], d), floats(i["ref_logprobs"], d)
    mask = bools(i["mask"])
    advantages = maths.reinforce_pp_advantages(
        score, old, ref, mask, i["beta"], i["gamma"], i["ddof"], i["eps"]
    )
    return {"advantages": advantages}


@_op
def op_reinforce_pp_baseline_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    score, ids, mask = floats(i["score"], d), ints(i["group_ids"]), bools(i["mask"])
    return {"advantages": maths.reinforce_pp_baseline_advantages(score, ids, mask, i["ddof"], i["eps"])}


@_op
def op_remax_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    return {"advantages": maths.remax_advantages(floats(i["rewards"], d), floats(i["greedy_rewards"], d))}


@_op
def op_gdpo_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    rewards, ids, weights = floats(i["rewards"], d), ints(i["group_ids"]), floats(i["weights"], d)
    return {"advantages": maths.gdpo_advantages(rewards, ids, weights, i["ddof"], i["eps"])}


@_op
def op_sum_then_normalize_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    rewards, ids, weights = floats(i["rewards"], d), ints(i["group_ids"]), floats(i["weights"], d)
    return {
        "advantages": maths.sum_then_normalize_advantages(
            rewards, ids, weights, maths.StdKind(i["std"]), i["eps"]
        )
    }


@_op
def op_process_advantages(i: Inputs, d: torch.dtype) -> Outputs:
    steps, ends, mask = i["step_rewards"], i["step_end_index"], bools(i["mask"])
    return {"advantages": maths.process_advantages(steps, ends, mask, i["ddof"], dtype=d)}


@_op
def op_overlong_penalty(i: Inputs, d: torch.dtype) -> Outputs:
    return {"penalty": maths.overlong_penalty(ints(i["lengths"]), i["max_len"], i["cache"], dtype=d)}


@_op
def op_dynamic_sampling(i: Inputs, d: torch.dtype) -> Outputs:
    result = maths.dynamic_sampling(floats(i["rewards"], d))
    return {"keep": result.keep_P, "dead_fraction": result.dead_fraction}


@_op
def op_mixed_reward(i: Inputs, d: torch.dtype) -> Outputs:
    return {"total": maths.mixed_reward(floats(i["rewards"], d), floats(i["weights"], d))}


@_op
def op_pg_expectation(i: Inputs, d: torch.dtype) -> Outputs:
    logits, rewards = leaf(i["logits"], d), floats(i["rewards"], d)
    logprobs = torch.log_softmax(logits, -1)
    draws = ints(list(itertools.product(range(len(rewards)), repeat=i["group_size"])))  # every group
    ids = torch.arange(len(draws)).repeat_interleave(i["group_size"])
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


# --- policy losses  ---


@_op
def op_ppo_policy_loss(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    arguments = (
        logprobs, floats(i["old_logprobs"], d), floats(i["advantages"], d), mask,
        i["eps_low"], i["eps_high"], i["dual_clip"],
    )  # fmt: skip
    losses = maths.ppo_surrogate(*arguments).losses_BT
    loss = maths.aggregate(losses, mask, maths.Aggregation(i["aggregation"]), i["norm_len"])
    stats = asdict(maths.policy_stats(*arguments).means())
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "stats": stats}


@_op
def op_microbatch_invariance(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    old, advantages = floats(i["old_logprobs"], d), floats(i["advantages"], d)
    aggregation = maths.Aggregation(i["aggregation"])
    count = maths.aggregate_count(mask, aggregation)
    total, means = torch.zeros((), dtype=d), []
    for part in torch.split(torch.arange(len(mask)), list(i["splits"])):
        losses = maths.ppo_surrogate(
            logprobs[part], old[part], advantages[part], mask[part], i["eps_low"], i["eps_high"]
        ).losses_BT
        total = total + maths.aggregate_sum(losses, mask[part], aggregation) / count
        means.append(maths.aggregate(losses, mask[part], aggregation))
    return {
        "loss": total,
        "wrong_mean_of_micro_means": torch.stack(means).mean(),
        "grad_logprobs": gradient(total, logprobs)[0],
    }


@_op
def op_value_loss(i: Inputs, d: torch.dtype) -> Outputs:
    values, mask = leaf(i["values"], d), bools(i["mask"])
    old, returns = floats(i["old_values"], d), floats(i["returns"], d)
    result = maths.value_loss(values, old, returns, mask, i["clip"])
    loss = maths.aggregate(result.losses_BT, mask, maths.Aggregation(i["aggregation"]))
    return {
        "loss": loss,
        "grad_values": gradient(loss, values)[0],
        "clipfrac": int(result.clipped_BT.sum()) / int(mask.sum()),
        "explained_variance": maths.explained_variance(old, returns, mask),
    }


@_op
def op_entropy_bonus(i: Inputs, d: torch.dtype) -> Outputs:
    logits, mask = leaf(i["logits"], d), bools(i["mask"])
    entropy = maths.token_entropy(logits, mask)
    term = maths.aggregate(maths.entropy_bonus(entropy, mask, i["coef"]), mask, maths.Aggregation.TOKEN_MEAN)
    return {
        "entropy": maths.masked_mean(entropy, mask),
        "loss_term": term,
        "grad_logits_of_loss_term": gradient(term, logits)[0],
    }


def _row_loss(surrogate: maths.SequenceSurrogate | maths.Surrogate, mask: Tensor) -> Tensor:
    return maths.aggregate(surrogate.losses_BT, mask, maths.Aggregation.SEQ_MEAN_TOKEN_MEAN)


@_op
def op_gspo_loss(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    old, advantages = floats(i["old_logprobs"], d), floats(i["advantages"], d)
    surrogate = maths.gspo(logprobs, old, advantages, mask, i["eps_low"], i["eps_high"])
    loss = _row_loss(surrogate, mask)
    return {
        "loss": loss,
        "grad_logprobs": gradient(loss, logprobs)[0],
        "seq_ratio": surrogate.ratio_B,
        "clipped_beneficial": surrogate.clipped_B,
    }


@_op
def op_gspo_token_loss(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    old, advantages = floats(i["old_logprobs"], d), floats(i["advantages"], d)
    loss = _row_loss(maths.gspo_token(logprobs, old, advantages, mask, i["eps_low"], i["eps_high"]), mask)
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0]}


@_op
def op_cispo_loss(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    old, advantages = floats(i["old_logprobs"], d), floats(i["advantages"], d)
    surrogate = maths.cispo(logprobs, old, advantages, mask, i["eps_high"], i["eps_low"])
    loss = maths.aggregate(surrogate.losses_BT, mask, maths.Aggregation(i["aggregation"]))
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "weights": surrogate.weights_BT}


@_op
def op_gmpo_loss(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    old, advantages = floats(i["old_logprobs"], d), floats(i["advantages"], d)
    surrogate = maths.gmpo(logprobs, old, advantages, mask, i["log_eps_low"], i["log_eps_high"])
    loss = _row_loss(surrogate, mask)
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "seq_coef": surrogate.ratio_B}


@_op
def op_grpo_loss(i: Inputs, d: torch.dtype) -> Outputs:
    logprobs, mask = leaf(i["logprobs"], d), bools(i["mask"])
    old, ref = floats(i["old_logprobs"], d), floats(i["ref_logprobs"], d)
    advantages = maths.broadcast_to_tokens(floats(i["advantages"], d), mask)
    function = maths.grpo_loss_ratio_corrected if i["kl_is_correction"] else maths.grpo_loss
    tethered = function(logprobs, old, ref, advantages, mask, i["eps_low"], i["eps_high"], i["beta"])
    loss = maths.aggregate(tethered.losses_BT, mask, maths.Aggregation(i["aggregation"]))
    kl = maths.aggregate(tethered.kl_BT, mask, maths.Aggregation(i["aggregation"]))
    return {"loss": loss, "grad_logprobs": gradient(loss, logprobs)[0], "kl": kl}


# --- reward models  ---


@_op
def op_bt_loss(i: Inputs, d: torch.dtype) -> Outputs:
    chosen, rejected = leaf(i["chosen"], d), leaf(i["rejected"], d)
    margin = i["margin"] if isinstance(i["margin"], float | int) else floats(i["margin"], d)
    loss = maths.bt_loss(chosen, rejected, margin, i["center_coef"], i["label_smoothing"]).mean()
    grad_chosen, grad_rejected = gradient(loss, chosen, rejected)
    return {"loss": loss, "grad_chosen": grad_chosen, "grad_rejected": grad_rejected}


@_op
def op_tie_models(i: Inputs, d: torch.dtype) -> Outputs:
    first, second = floats(i["s_i"], d), floats(i["s_j"], d)
    kupper = maths.rao_kupper(first, second, i["rao_kupper_eta"])
    davidson = maths.davidson(first, second, i["davidson_nu"])
    return {
        "rao_kupper": torch.stack([kupper.first, kupper.second, kupper.tie]),
        "davidson": torch.stack([davidson.first, davidson.second, davidson.tie]),
    }


@_op
def op_plackett_luce(i: Inputs, d: torch.dtype) -> Outputs:
    scores = leaf(i["scores"], d)
    nll = maths.plackett_luce_nll(scores, ints(i["ranking"]))
    return {"nll": nll, "grad": gradient(nll, scores)[0]}


@_op
def op_instructgpt_rm_loss(i: Inputs, d: torch.dtype) -> Outputs:
    ranked = [floats(row, d) for row in i["ranked_rewards"]]
    return {
        "loss": maths.instructgpt_rm_loss(ranked),
        "flattened_pair_mean": maths.flattened_pair_loss(ranked),
    }


@_op
def op_linear_bt_fit(i: Inputs, d: torch.dtype) -> Outputs:
    return {"weights": maths.linear_bt_fit(floats(i["feature_diff"], d), i["l2"])}


@_op
def op_pair_metrics(i: Inputs, d: torch.dtype) -> Outputs:
    return asdict(maths.pair_metrics(floats(i["chosen"], d), floats(i["rejected"], d), i["bins"]))


# --- preferences  ---


@_op
def op_preference_loss(i: Inputs, d: torch.dtype) -> Outputs:
    chosen, rejected = leaf(i["policy_chosen"], d), leaf(i["policy_rejected"], d)
    pairs = maths.PreferencePairs(
        chosen, rejected, floats(i["ref_chosen"], d), floats(i["ref_rejected"], d),
        floats(i["len_chosen"], d), floats(i["len_rejected"], d),
    )  # fmt: skip
    losses = maths.preference_loss(
        pairs, maths.PreferenceKind(i["kind"]), i["beta"], i["label_smoothing"], i["gamma"]
    )
    grad_chosen, grad_rejected = gradient(losses.sum(), chosen, rejected)
    implied = maths.implicit_rewards(pairs, i["beta"])
    return {
        "losses": losses,
        "grad_sum_policy_chosen": grad_chosen,
        "grad_sum_policy_rejected": grad_rejected,
        "chosen_rewards": implied.chosen_B,
        "rejected_rewards": implied.rejected_B,
        "accuracy": implied.accuracy,
    }


@_op
def op_kto_loss(i: Inputs, d: torch.dtype) -> Outputs:
    log_ratios = leaf(i["logratios"], d)
    result = maths.kto_loss(
        log_ratios, bools(i["desirable"]), floats(i["mismatched_logratios"], d), i["beta"],
        i["desirable_weight"], i["undesirable_weight"],
    )  # fmt: skip
    grad = gradient(result.losses_B.sum(), log_ratios)[0]
    return {"z0": result.z0, "losses": result.losses_B, "grad_sum_logratios": grad}


# --- best of n, text, small worlds  ---


@_op
def op_bon_select(i: Inputs, d: torch.dtype) -> Outputs:
    return {"index": maths.bon_select(floats(i["scores"], d))}


@_op
def op_bon_unbiased(i: Inputs, d: torch.dtype) -> Outputs:
    return {"value": maths.bon_unbiased(floats(i["proxy"], d), floats(i["gold"], d), i["n"])}


@_op
def op_bon_kl(i: Inputs, d: torch.dtype) -> Outputs:
    result = maths.bon_kl(floats(i["ref_probs"], d), floats(i["rewards"], d), i["n"])
    return {
        "policy": result.policy_A,
        "exact_kl": result.exact_kl,
        "bound": result.kl_bound,
        "win_rate_bound": result.win_rate_bound,
    }


@_op
def op_pass_at_k(i: Inputs, d: torch.dtype) -> Outputs:
    return {"value": maths.pass_at_k(i["n"], i["c"], i["k"])}


@_op
def op_principle_vote(i: Inputs, d: torch.dtype) -> Outputs:
    return {"reward": maths.principle_vote(floats(i["votes"], d), floats(i["principle_weights"], d))}


@_op
def op_ngram_metrics(i: Inputs, d: torch.dtype) -> Outputs:
    stats = maths.ngram_stats([list(ids) for ids in i["token_lists"]], i["n"])
    return {"repeat_share": stats.repeat_share_B, "pooled_top_share": stats.pooled_top_share}


@_op
def op_eos_length(i: Inputs, d: torch.dtype) -> Outputs:
    stats = maths.length_stats(ints(i["ids"]), bools(i["mask"]), {i["eos_id"]}, i["max_new_tokens"])
    return {
        "eos_rate": stats.eos_rate,
        "truncated_rate": stats.truncated_rate,
        "mean_length": stats.mean_length,
    }


@_op
def op_kl_bandit_optimum(i: Inputs, d: torch.dtype) -> Outputs:
    rewards, ref, beta = floats(i["rewards"], d), floats(i["ref_probs"], d), i["beta"]
    return {
        "reverse_kl_optimum": maths.reverse_kl_optimum(rewards, ref, beta),
        "forward_kl_optimum": maths.forward_kl_optimum(rewards, ref, beta),
        "value_reverse": maths.reverse_kl_value(rewards, ref, beta),
    }


@_op
def op_length_hack(i: Inputs, d: torch.dtype) -> Outputs:
    return asdict(maths.length_hack(i["ref_hazard"], i["reward_per_token"], i["beta"]))


@_op
def op_overoptimisation_law(i: Inputs, d: torch.dtype) -> Outputs:
    law = maths.Overoptimisation(maths.OptimisationKind(i["kind"]), i["alpha"], i["beta"])
    kls = floats(i["kls"], d)
    gold = law.gold(kls)
    fit = maths.fit_overoptimisation(kls, gold, law.kind)
    return {
        "gold": gold,
        "fit": [fit.alpha, fit.beta],
        "peak_d": law.peak_distance,
        "peak_gold": law.peak_gold,
    }


@_op
def op_adam_eps_styles(i: Inputs, d: torch.dtype) -> Outputs:
    settings = (list(i["grads"]), i["lr"], i["beta1"], i["beta2"], i["eps"])
    return {style.value: maths.adam_path(*settings, style) for style in maths.AdamEps}


@_op
def op_memory(i: Inputs, d: torch.dtype) -> Outputs:
    out: Outputs = {
        "policy_full": maths.static_bytes(i["params"]),
        "frozen_bf16": maths.static_bytes(0, i["params"]),
        "policy_lora": maths.static_bytes(i["lora_params"], i["params"]),
        "kv": maths.kv_cache_bytes(i["layers"], i["kv_heads"], i["head_dim"], i["tokens"]),
        "logits": maths.logits_bytes(i["tokens"], i["vocab"]),
    }
    for kind in maths.ActivationKind:
        size = maths.activation_bytes_per_layer(kind, i["seq"], i["batch"], i["hidden"], i["heads"])
        out[f"act_layer_{kind.value}"] = size
    return out


def worst_error(actual: Any, expected: Any, rtol: float, atol: float) -> float:
    """The largest |actual - expected| / (atol + rtol |expected|): a case passes at 1 or below; infinite on a
    misfit.
    """
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return math.inf
        return max(
            (worst_error(actual.get(key), value, rtol, atol) for key, value in expected.items()), default=0.0
        )
    if isinstance(actual, Tensor):
        actual = actual.detach().tolist()
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return math.inf
        return max(
            (worst_error(a, e, rtol, atol) for a, e in zip(actual, expected, strict=True)), default=0.0
        )
    if actual is None or expected is None or isinstance(actual, list | dict | str):
        return 0.0 if actual is expected else math.inf
    if math.isnan(expected) or math.isinf(expected) or math.isnan(actual):
        return 0.0 if actual == expected or (math.isnan(actual) and math.isnan(expected)) else math.inf
    return abs(actual - expected) / (atol + rtol * abs(expected))


_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def decode(value: Any) -> Any:
    """JSON values with "nan", "inf", "-inf" as floats."""
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return _FLOATS.get(value, value) if isinstance(value, str) else value
