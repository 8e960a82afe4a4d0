"""Operations on the KL to the reference. Where the format asks for an exact expectation (`kl_expectations`,
`kl_sequence_gradient`), the sum over all outcomes is made here out of the library's own functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor

from tether import maths

from .inputs import Inputs, Outputs, by_name, gradient


def kl_token(i: Inputs) -> Outputs:
    logprobs, mask = i.leaf("logprobs"), i.bools("mask")
    kl = maths.kl_tokens(logprobs, i.floats("ref_logprobs"), mask, i.choice("kind", maths.KLEstimator))
    return {
        "values": kl,
        "grad_sum": gradient(kl.sum(), logprobs)[0],
        "token_mean": maths.aggregate(kl, mask, maths.Aggregation.TOKEN_MEAN),
        "seq_sum_mean": maths.aggregate(kl, mask, maths.Aggregation.SEQ_MEAN_TOKEN_SUM),
    }


def kl_full(i: Inputs) -> Outputs:
    logits, ref = i.leaf("logits"), i.floats("ref_logits")
    kl = maths.kl_full(logits, ref)
    return {
        "kl": kl,
        "grad_logits_of_sum": gradient(kl.sum(), logits)[0],
        "reverse_direction_kl": maths.kl_full(ref, logits),
    }


def kl_expectations(i: Inputs) -> Outputs:
    logits, ref = i.leaf("logits"), i.floats("ref_logits")
    logprobs, ref_logprobs = torch.log_softmax(logits, -1), torch.log_softmax(ref, -1)
    probs = logprobs.detach().exp()
    estimators = {"k1": maths.kl_k1, "k2": maths.kl_k2, "k3": maths.kl_k3}
    estimates = {name: function(logprobs, ref_logprobs) for name, function in estimators.items()}

    def expected_gradient(per_outcome: Tensor) -> Tensor:
        return torch.autograd.grad((probs * per_outcome).sum(), logits, retain_graph=True)[0]

    out: Outputs = {f"E_{name}": (probs * k).sum() for name, k in estimates.items()}
    out |= {f"Egrad_{name}_as_loss": expected_gradient(k) for name, k in estimates.items()}
    out |= {
        f"Egrad_{name}_in_reward": expected_gradient(k.detach() * logprobs) for name, k in estimates.items()
    }
    ratio = maths.exp_within_range(logprobs - logprobs.detach())
    out["Egrad_k3_times_ratio_as_loss"] = expected_gradient(ratio * estimates["k3"])
    out["kl"] = maths.kl_full(logits, ref)
    out["grad_kl"] = gradient(maths.kl_full(logits, ref), logits)[0]
    out["grad_forward_kl_ref_pi"] = gradient(maths.kl_full(ref, logits), logits)[0]
    return out


def adaptive_kl(i: Inputs) -> Outputs:
    target, kls = i.number("target"), i.numbers("kls")

    def path(rule: Callable[[float, int], float]) -> list[float]:
        return list(itertools.accumulate(range(len(kls)), rule, initial=i.number("init")))[1:]

    def code(beta: float, step: int) -> float:
        sizes, horizon = i.nested("n_steps"), i.whole("horizon")
        return maths.adaptive_beta(beta, kls[step], target, int(sizes[step]), horizon)

    def ziegler(beta: float, step: int) -> float:
        return maths.adaptive_beta_ziegler(beta, kls[step], target, **i.given(i.number, "k_beta"))

    def ppo(beta: float, step: int) -> float:
        return maths.adaptive_beta_ppo(beta, kls[step], target)

    return {"betas": path(code), "betas_ziegler_paper": path(ziegler), "betas_ppo_paper": path(ppo)}


def target_kl_stop(i: Inputs) -> Outputs:
    kls = i.numbers("approx_kls")
    stop_at = maths.target_kl_stop(kls, i.number("target_kl"), **i.given(i.number, "factor"))
    return {"stop_at": stop_at, "steps_applied": len(kls) if stop_at is None else stop_at}


def kl_units(i: Inputs) -> Outputs:
    return asdict(maths.kl_units(i.floats("logprobs"), i.floats("ref_logprobs"), i.bools("mask")))


def kl_sequence_gradient(i: Inputs) -> Outputs:
    first, second = i.leaf("first_logits"), i.leaf("second_logits")
    ref_first, ref_second = i.floats("ref_first_logits"), i.floats("ref_second_logits")
    num_first, num_second = second.shape
    actions_BT = torch.cartesian_prod(torch.arange(num_first), torch.arange(num_second))  # every sequence
    mask_BT = torch.ones_like(actions_BT, dtype=torch.bool)

    def logprobs_of(first_V: Tensor, second_VV: Tensor) -> Tensor:
        tokens_B1, tokens_B2 = actions_BT[:, :1], actions_BT[:, 1:]
        first_BTV = first_V.expand(len(actions_BT), 1, -1)
        second_BTV = second_VV[actions_BT[:, 0]][:, None]
        columns = [
            maths.token_logprobs(first_BTV, tokens_B1, mask_BT[:, :1]),
            maths.token_logprobs(second_BTV, tokens_B2, mask_BT[:, 1:]),
        ]
        return torch.cat(columns, 1)

    logprobs_BT, ref_logprobs_BT = logprobs_of(first, second), logprobs_of(ref_first, ref_second)
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


OPERATIONS = by_name(
    kl_token, kl_full, kl_expectations, adaptive_kl, target_kl_stop, kl_units, kl_sequence_gradient
)
