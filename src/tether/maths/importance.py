"""Correction for a sampler that is not the trainer: weights, mismatch, masks. Axes: B sequences, T tokens.

d = old_logprobs (trainer, at the start of the update) - sampler_logprobs (as reported when sampled). Weights
are detached; they multiply the per-token policy loss, never the KL term. algorithms.md section 1.4.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .kl import KLEstimator, exp_within_range, kl_tokens
from .masked import full_precision, require_finite, select


class ImportanceMode(StrEnum):
    """How the weight is formed and bounded. Bounds are inclusive; a missing one does not bind.

    token_truncate: clip(exp d_t) (TIS, Yao et al.). token_mask: exp d_t, 0 outside (MIS, IcePop).
    seq_truncate: clip(exp sum d), broadcast (verl). seq_mask: exp sum d, 0 outside (TRL). seq_geo_mask: exp
    mean d, 0 outside. seq_geo_filter_token_weight: the row is kept iff exp mean d is inside, weight exp d_t
    (OpenRLHF, NeMo seq-mask-tis).
    """

    TOKEN_TRUNCATE = "token_truncate"
    TOKEN_MASK = "token_mask"
    SEQ_TRUNCATE = "seq_truncate"
    SEQ_MASK = "seq_mask"
    SEQ_GEO_MASK = "seq_geo_mask"
    SEQ_GEO_FILTER_TOKEN_WEIGHT = "seq_geo_filter_token_weight"


@dataclass(frozen=True)
class MismatchKL:
    """KL(sampler || trainer) in nats per token, the largest |d|, and the ratio of perplexities trainer /
    sampler.
    """

    k1: float
    k3: float
    max_abs: float
    ppl_ratio: float


@dataclass(frozen=True)
class SequenceMask:
    """Rows kept, and mean(sampler - logprobs) of each row in nats per token (0 for an empty row)."""

    keep_B: Bool[Tensor, "B"]
    seq_kl_B: Float[Tensor, "B"]


@dataclass(frozen=True)
class OffPolicyKL:
    """KL(old || reference) from answers that another policy drew. `rows_B`: one weighted sum per row; their mean
    over the rows that are not empty; and the token mean. Nats.
    """

    rows_B: Float[Tensor, "B"]
    seq_sum_mean_nats: float
    token_mean_nats: float


def is_weights(
    old_logprobs_BT: Float[Tensor, "B T"],
    sampler_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    mode: ImportanceMode,
    low: float | None = None,
    high: float | None = None,
) -> Float[Tensor, "B T"]:
    """Importance weights pi_old / pi_sampler in one of the modes of ImportanceMode, detached, 0 at pads.

    Raises NonFiniteError at a live NaN (a missing sampler log-probability is an error, not weight 1),
    ValueError for low > high. Example: d = [log 3, log .5], high 2: token_truncate [2, .5], token_mask [0,
    .5], seq_mask [1.5, 1.5].
    """
    if low is not None and high is not None and low > high:
        raise ValueError(f"importance bounds are empty: low {low} > high {high}")
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    log_ratio_BT = _mismatch(old_logprobs_BT, sampler_logprobs_BT, mask_BT)
    token_BT = exp_within_range(log_ratio_BT)
    sum_B1 = log_ratio_BT.sum(-1, keepdim=True)
    sequence_BT = exp_within_range(sum_B1).expand_as(token_BT)
    geometric_BT = exp_within_range(sum_B1 / mask_BT.sum(-1, keepdim=True).clamp(min=1)).expand_as(token_BT)

    def kept_within(weight_BT: Tensor, judged_BT: Tensor) -> Tensor:
        return torch.where((judged_BT >= low) & (judged_BT <= high), weight_BT, 0.0)

    match ImportanceMode(mode):
        case ImportanceMode.TOKEN_TRUNCATE:
            weights_BT = token_BT.clamp(low, high)
        case ImportanceMode.TOKEN_MASK:
            weights_BT = kept_within(token_BT, token_BT)
        case ImportanceMode.SEQ_TRUNCATE:
            weights_BT = sequence_BT.clamp(low, high)
        case ImportanceMode.SEQ_MASK:
            weights_BT = kept_within(sequence_BT, sequence_BT)
        case ImportanceMode.SEQ_GEO_MASK:
            weights_BT = kept_within(geometric_BT, geometric_BT)
        case _:  # SEQ_GEO_FILTER_TOKEN_WEIGHT
            weights_BT = kept_within(token_BT, geometric_BT)
    return select(weights_BT, mask_BT)


def prefix_weights(
    old_logprobs_BT: Float[Tensor, "B T"],
    sampler_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """w_t = prod_{s <= t} pi_old(a_s) / pi_sampler(a_s) over the live tokens of a row, detached, 0 at pads.

    What depends on the tokens up to t alone has the mean under the old policy that w_t times it has under the sampler. Raises
    NonFiniteError at a live NaN. Example: d = [log 3, log .5] -> [3, 1.5].
    """
    log_ratio_BT = _mismatch(old_logprobs_BT, sampler_logprobs_BT, mask_BT)
    return select(exp_within_range(log_ratio_BT.cumsum(-1)), mask_BT)


def off_policy_kl(
    old_logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    sampler_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    estimator: KLEstimator = KLEstimator.K1,
) -> OffPolicyKL:
    """KL(old || reference) of answers drawn by the sampler's policy: row = sum_t w_t k_t with `prefix_weights` w.

    E_{y ~ sampler} sum_t w_t k_t = E_{y ~ old} sum_t k_t, the KL per answer (k1, k3: exactly), since k_t and
    whether token t is there depend on the tokens up to t alone (per-decision weights, Precup, Sutton and Singh
    2000). Unweighted, k1 has the mean KL(sampler || reference) - KL(sampler || old) instead: below 0 where the
    sampler is the reference. Token mean: sum w k / sum w, two sums with the means of sum k and of the number of
    tokens under old. With equal policies both are those of `kl_units`.

    Raises NonFiniteError at a live NaN, ValueError with no live token. Example: old [log .5, log .4], ref [log .25, log .4], sampler
    [log .25, log .8], k1 -> w [2, 1], row 2 log 2, token mean 2 log 2 / 3.
    """
    if not bool(mask_BT.any()):
        raise ValueError("a KL over nothing: the mask has no live position")
    weights_BT = prefix_weights(old_logprobs_BT, sampler_logprobs_BT, mask_BT)
    kl_BT = kl_tokens(old_logprobs_BT, ref_logprobs_BT, mask_BT, estimator).detach()
    rows_B = (weights_BT * kl_BT).sum(-1)
    total = rows_B.double().sum()
    return OffPolicyKL(rows_B, float(total / mask_BT.any(-1).sum()), float(total / weights_BT.double().sum()))


def effective_sample_size(weights_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> float:
    """(sum w)^2 / (n sum w^2) over live tokens, a share in (0, 1]; NaN when all weights are 0 or nothing is
    live.

    Example: weights [1, 0] -> .5; [2, 2] -> 1.
    """
    require_finite("weights", weights_BT, mask_BT)
    live_N = weights_BT[mask_BT].detach().double()
    squares = float(live_N.square().sum())
    return float(live_N.sum()) ** 2 / (len(live_N) * squares) if squares > 0 else math.nan


def mismatch_kl(
    old_logprobs_BT: Float[Tensor, "B T"],
    sampler_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
) -> MismatchKL:
    """k1 = mean(sampler - old), k3 = mean(exp(old - sampler) - 1 - (old - sampler)), tokens drawn by the
    sampler.

    ppl_ratio = exp(k1). Raises NonFiniteError at a live NaN, ValueError with no live token. Example: old
    [-1], sampler [-.5] -> k1 .5, k3 .106531, max_abs .5, ppl_ratio 1.648721.
    """
    live_N = _mismatch(old_logprobs_BT, sampler_logprobs_BT, mask_BT)[mask_BT].double()
    if not len(live_N):
        raise ValueError("a mismatch over nothing: the mask has no live position")
    k1 = float(-live_N.mean())
    k3 = float((torch.expm1(live_N) - live_N).mean())
    return MismatchKL(k1, k3, float(live_N.abs().max()), math.exp(min(k1, 700.0)))


def off_policy_sequence_mask(
    logprobs_BT: Float[Tensor, "B T"],
    sampler_logprobs_BT: Float[Tensor, "B T"],
    advantages_B: Float[Tensor, "B"],
    mask_BT: Bool[Tensor, "B T"],
    delta: float,
) -> SequenceMask:
    """Drop a row iff A < 0 and mean(sampler - logprobs) > delta (nats per token). DeepSeek-V3.2 eq. 9.

    `logprobs` are those of the weights being trained. Raises NonFiniteError at a live NaN. Example: A -1,
    logprobs [-2], sampler [-1], delta .5 -> dropped; A +1 -> kept.
    """
    require_finite("advantages", advantages_B, mask_BT.any(-1))
    log_ratio_BT = _mismatch(logprobs_BT, sampler_logprobs_BT, mask_BT, "logprobs")
    seq_kl_B = -log_ratio_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1)
    return SequenceMask(~((advantages_B < 0) & (seq_kl_B > delta)), seq_kl_B)


def _mismatch(trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor, name: str = "old_logprobs") -> Tensor:
    """trainer - sampler, detached, 0 at pads."""
    require_finite(name, trainer_BT, mask_BT)
    require_finite("sampler_logprobs", sampler_BT, mask_BT)
    trainer_BT, sampler_BT = trainer_BT.detach(), sampler_BT.detach()
    return full_precision(select(trainer_BT, mask_BT)) - full_precision(select(sampler_BT, mask_BT))
