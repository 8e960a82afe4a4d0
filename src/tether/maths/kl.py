"""KL divergence between policy and reference: estimators, exact, units, controllers. B sequences, T tokens, V
vocabulary.

With d = log ref - log pi at the sampled token, a ~ pi: k1 = -d, k2 = d^2/2, k3 = exp(d) - 1 - d (Schulman,
"Approximating KL divergence"). Value and gradient are different matters (algorithms.md section 2): as a LOSS,
k1 regularises nothing, k2 gives the gradient of KL(pi || ref), k3 that of KL(ref || pi).
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .masked import Aggregation, aggregate, full_precision, require_finite, select


class KLEstimator(StrEnum):
    """Estimator of KL(policy || reference) at a sampled token."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


def kl_k1(logprobs: Float[Tensor, "*S"], ref_logprobs: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """k1 = log pi - log ref: unbiased, may be negative for a token. Nats. As a loss its expected gradient is
    0.

    Example: log pi -1.0, log ref -0.5 -> -0.5.
    """
    return full_precision(logprobs) - full_precision(ref_logprobs)


def kl_k2(logprobs: Float[Tensor, "*S"], ref_logprobs: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """k2 = (log pi - log ref)^2 / 2 >= 0: biased by O(d^3); as a loss, on policy, exactly grad KL(pi || ref).
    Nats.

    Example: log pi -1.0, log ref -0.5 -> 0.125.
    """
    return kl_k1(logprobs, ref_logprobs).square() / 2


def kl_k3(logprobs: Float[Tensor, "*S"], ref_logprobs: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """k3 = exp(d) - 1 - d >= 0, d = log ref - log pi: unbiased; as a loss it is grad KL(ref || pi), the other
    direction.

    Nats; expm1 keeps small d exact. exp is held below overflow (see `exp_within_range`). DeepSeekMath eq. 4.
    Example: log pi -1.0, log ref -0.5 -> 0.148721.
    """
    log_ref_over_policy = full_precision(ref_logprobs) - full_precision(logprobs)
    return torch.expm1(_within_range(log_ref_over_policy)) - log_ref_over_policy


def kl_tokens(
    logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    estimator: KLEstimator,
) -> Float[Tensor, "B T"]:
    """Estimator k1, k2 or k3 of KL(policy || reference) at each live token, 0 at pads. Nats.

    Raises NonFiniteError at a live NaN of either input. Example: [[-1, nan]] against [[-.5, nan]], k2 ->
    [[.125, 0]].
    """
    require_finite("logprobs", logprobs_BT, mask_BT)
    require_finite("ref_logprobs", ref_logprobs_BT, mask_BT)
    function = {KLEstimator.K1: kl_k1, KLEstimator.K2: kl_k2, KLEstimator.K3: kl_k3}[KLEstimator(estimator)]
    return select(function(select(logprobs_BT, mask_BT), select(ref_logprobs_BT, mask_BT)), mask_BT)


def kl_full(logits_NV: Float[Tensor, "*S V"], ref_logits_NV: Float[Tensor, "*S V"]) -> Float[Tensor, "*S"]:
    """KL(policy || reference) = sum_a pi_a (log pi_a - log ref_a), exact over the vocabulary. Nats, first
    argument first.

    d/dz_j = pi_j (log pi_j - log ref_j - KL). Example: logits [log 3, 0] against [0, 0] -> .75 log 1.5 + .25
    log .5 = 0.130812.
    """
    logprobs_NV = torch.log_softmax(full_precision(logits_NV), -1)
    ref_logprobs_NV = torch.log_softmax(full_precision(ref_logits_NV), -1)
    possible_NV = logprobs_NV > -torch.inf  # 0 log 0 = 0
    log_ratio_NV = select(logprobs_NV, possible_NV) - select(ref_logprobs_NV, possible_NV)
    return (logprobs_NV.exp() * log_ratio_NV).sum(-1)


@dataclass(frozen=True)
class KLUnits:
    """One KL in four units; a config must say which it means."""

    seq_sum_mean_nats: float
    token_mean_nats: float
    mean_of_row_means_nats: float
    token_mean_bits: float


def kl_units(
    logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    estimator: KLEstimator = KLEstimator.K1,
) -> KLUnits:
    """The sampled KL as mean of sequence sums, token mean, mean of row means (nats) and token mean (bits).

    Means over rows leave out empty rows. Raises ValueError with no live token. Example: k1 rows [.1, .3] and
    [.5]: .45, .3, .35 nats, and .3 / log 2 = .432809 bits.
    """
    kl_BT = kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, estimator).detach()
    token_mean = float(aggregate(kl_BT, mask_BT, Aggregation.TOKEN_MEAN))
    return KLUnits(
        seq_sum_mean_nats=float(aggregate(kl_BT, mask_BT, Aggregation.SEQ_MEAN_TOKEN_SUM)),
        token_mean_nats=token_mean,
        mean_of_row_means_nats=float(aggregate(kl_BT, mask_BT, Aggregation.SEQ_MEAN_TOKEN_MEAN)),
        token_mean_bits=token_mean / math.log(2),
    )


def adaptive_beta(beta: float, kl: float, target: float, num_sequences: int, horizon: int) -> float:
    """beta (1 + e n / horizon), e = clip(kl / target - 1, -.2, .2): the rule of the lm-human-preferences
    code.

    `kl` and `target` in the SAME unit (OpenAI: mean of sequence sums, nats); n = sequences in the step.
    Raises ValueError for a target, horizon or beta that is not positive, or a KL that is not finite. Example:
    beta .2, kl 9, target 6, n 256, horizon 10000 -> .2 (1 + .2 * .0256) = .201024.
    """
    if horizon <= 0:
        raise ValueError(f"horizon must be positive, got {horizon}")
    return beta * (1 + _clipped_error(beta, kl, target) * num_sequences / horizon)


def adaptive_beta_ziegler(beta: float, kl: float, target: float, k_beta: float = 0.1) -> float:
    """beta (1 + k_beta e), e = clip(kl / target - 1, -.2, .2): Ziegler et al. 2019, section 2.2, as printed.

    Raises as `adaptive_beta`. Example: beta .2, kl 9, target 6 -> .2 * 1.02 = .204.
    """
    return beta * (1 + k_beta * _clipped_error(beta, kl, target))


def adaptive_beta_ppo(beta: float, kl: float, target: float) -> float:
    """Halve beta when kl < target / 1.5, double it when kl > 1.5 target: Schulman et al. 2017, after eq. 8.

    Raises as `adaptive_beta`. Example: beta .2, target 6: kl 10 -> .4, kl 3 -> .1, kl 5 -> .2.
    """
    _clipped_error(beta, kl, target)
    if kl < target / 1.5:
        return beta / 2
    return beta * 2 if kl > 1.5 * target else beta


def exceeds_target_kl(approx_kl: float, target: float, factor: float = 1.5) -> bool:
    """Whether this minibatch must not be applied and the epoch loop must stop: approx_kl > factor target,
    strictly.

    `approx_kl` is k3 of KL(old || new), before the step (algorithms.md section 2, Stable-Baselines3). A KL
    that is not finite stops too. Example: .031 against target .02 -> True; .03 -> False.
    """
    return not approx_kl <= factor * target


def target_kl_stop(approx_kls: list[float], target: float, factor: float = 1.5) -> int | None:
    """Index of the first minibatch that `exceeds_target_kl`, None when none does: so many steps were applied
    before it.

    Example: [.01, .02, .04], target .02 -> 2.
    """
    return next((i for i, kl in enumerate(approx_kls) if exceeds_target_kl(kl, target, factor)), None)


def exp_within_range(log_ratio: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """exp(log_ratio), clamped only where exp would come near overflow (79.8 in float32); no gradient beyond.

    Count the clamped with `exceeds_exp_range`. Example (float32): [0, 500] -> [1, 4.8e34].
    """
    return _within_range(log_ratio).exp()


def exceeds_exp_range(log_ratio: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
    """Where `exp_within_range` clamps. Example (float32): [0, 500] -> [False, True]."""
    return log_ratio > _exp_limit(log_ratio)


def _within_range(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(max=_exp_limit(log_ratio))


def _exp_limit(log_ratio: Tensor) -> float:
    # A tenth below the overflow of exp, so that a product with an advantage stays finite too.
    return 0.9 * math.log(torch.finfo(log_ratio.dtype).max)


def _clipped_error(beta: float, kl: float, target: float) -> float:
    if not (beta > 0 and target > 0 and math.isfinite(kl)):
        raise ValueError(f"expected beta > 0, target > 0 and a finite KL, got {beta}, {target}, {kl}")
    return min(max(kl / target - 1, -0.2), 0.2)
