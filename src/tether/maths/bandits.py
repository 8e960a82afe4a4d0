"""Closed forms of small worlds: the optima a tether leads to. Axis: A actions. Rewards without unit, KL in
nats.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class LengthHack:
    """Closed form of the length-hacking world: the beta below which length diverges, and mean lengths in
    tokens.
    """

    beta_critical: float
    mean_length_optimum: float
    ref_mean_length: float


def reverse_kl_optimum(
    rewards_A: Float[Tensor, "A"], ref_probs_A: Float[Tensor, "A"], beta: float
) -> Float[Tensor, "A"]:
    """argmax_pi pi.R - beta KL(pi || ref) = ref exp(R / beta) / Z. Raises ValueError for beta <= 0.

    Example: rewards [0, log 3], ref [.5, .5], beta 1 -> [.25, .75].
    """
    _check_beta(beta)
    return torch.softmax(ref_probs_A.log() + rewards_A / beta, -1)


def reverse_kl_value(rewards_A: Float[Tensor, "A"], ref_probs_A: Float[Tensor, "A"], beta: float) -> float:
    """The value of that optimum: beta log Z, Z = sum_a ref_a exp(R_a / beta). Example: rewards [0, log 3],
    ref [.5, .5], beta 1 -> log 2 = .693147."""
    _check_beta(beta)
    return float(beta * torch.logsumexp(ref_probs_A.log() + rewards_A / beta, -1))


def forward_kl_optimum(
    rewards_A: Float[Tensor, "A"], ref_probs_A: Float[Tensor, "A"], beta: float
) -> Float[Tensor, "A"]:
    """argmax_pi pi.R - beta KL(ref || pi) = beta ref / (lambda - R), lambda by bisection so that it sums to
    1.

    Raises ValueError for beta <= 0 or a reference probability of 0 (it may break the bracket). Example: equal
    rewards -> the reference.
    """
    _check_beta(beta)
    if bool((ref_probs_A <= 0).any()):
        raise ValueError("the reference must give every action a positive probability")
    gap_A, ref_A = (rewards_A.max() - rewards_A).double(), ref_probs_A.double()
    # With x = lambda - max R > 0, sum_a beta ref_a / (x + gap_a) falls in x; 1 lies between these ends.
    low, high = float(beta * ref_A[gap_A == 0].sum()), beta * float(ref_A.sum())
    for _ in range(200):
        middle = (low + high) / 2
        if float((beta * ref_A / (middle + gap_A)).sum()) > 1:
            low = middle
        else:
            high = middle
    return (beta * ref_A / ((low + high) / 2 + gap_A)).to(rewards_A.dtype)


def length_hack(ref_hazard: float, reward_per_token: float, beta: float) -> LengthHack:
    """Geometric lengths P(L) = h (1 - h)^(L-1) tilted by exp(alpha L / beta), no cap.

    The tilted law is geometric with survival q = (1 - h) exp(alpha / beta): mean 1 / (1 - q), infinite at q
    >= 1, that is beta <= beta_critical = alpha / -log(1 - h). Raises ValueError outside 0 < h < 1, alpha >=
    0, beta > 0. Example: h .2, alpha .1, beta 1 -> beta_critical .448142, mean 8.631 tokens against 5.
    """
    _check_beta(beta)
    if not 0 < ref_hazard < 1 or reward_per_token < 0:
        raise ValueError(f"expected 0 < hazard < 1 and reward >= 0, got {ref_hazard}, {reward_per_token}")
    log_survival = math.log1p(-ref_hazard)
    exponent = log_survival + reward_per_token / beta
    mean = -1 / math.expm1(exponent) if exponent < 0 else math.inf
    return LengthHack(reward_per_token / -log_survival, mean, 1 / ref_hazard)


def _check_beta(beta: float) -> None:
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")
