"""Every online algorithm but DPO as one policy-gradient loss: surrogate x place of the KL x normaliser x sampler correction.

The second pure call of an algorithm: ``policy_loss`` turns the log-probabilities of a microbatch into SUMS, which the caller divides by
the counts of the whole optimiser step. Axes: B sequences, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import assert_never

import torch
from torch import Tensor

from tether.config import ActorCriticConfig, CriticFreeConfig, KLConfig, SamplerCorrectionConfig
from tether.maths.importance import ImportanceMode, is_weights, off_policy_sequence_mask
from tether.maths.kl import KLEstimator, kl_tokens
from tether.maths.logprobs import last_live_index
from tether.maths.masked import Aggregation, aggregate_count, aggregate_sum, masked_sum, select
from tether.maths.policy_loss import PolicyStats, cispo, policy_stats, ppo_surrogate, ratio_corrected_kl
from tether.maths.returns import broadcast_to_tokens
from tether.maths.sequence_loss import gmpo, gspo, gspo_token
from tether.maths.value_loss import value_loss

__all__ = ["CorrectionSums", "LossSum", "OnlineConfig", "StepCounts", "corrects_sampler", "policy_loss", "step_counts"]

OnlineConfig = ActorCriticConfig | CriticFreeConfig


@dataclass(frozen=True)
class StepCounts:
    """The denominators of one optimiser step, counted once over all its microbatches (and ranks)."""

    policy: float
    tokens: float


@dataclass(frozen=True)
class CorrectionSums:
    """Importance weights against the sampler, summed over live tokens: of the weights, of their squares, and of tokens at 0."""

    weights: float
    squares: float
    zeros: float


@dataclass(frozen=True)
class LossSum:
    """Numerators of one microbatch. ``policy`` (with the KL term) is divided by ``StepCounts.policy``; ``value`` and ``entropy``,
    sums over tokens, by ``StepCounts.tokens``. ``kl`` is the KL term without beta, detached, for the log."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: float
    value_clipped: float
    stats: PolicyStats
    correction: CorrectionSums | None = None

    def total(self, config: OnlineConfig, counts: StepCounts) -> Tensor:
        """What is minimised: policy/N + value_coef value/N_tokens - entropy_coef H/N_tokens."""
        loss = self.policy / counts.policy - config.entropy_coef * self.entropy / counts.tokens
        return loss + config.value_coef * self.value / counts.tokens if isinstance(config, ActorCriticConfig) else loss

    def detached(self) -> LossSum:
        """The same numbers without the graph they were computed by."""
        return replace(self, policy=self.policy.detach(), value=self.value.detach(), entropy=self.entropy.detach())

    def value_term(self, counts: StepCounts, config: OnlineConfig) -> Tensor:
        """The value part of ``total`` alone, for rounds that only train the value function."""
        assert isinstance(config, ActorCriticConfig)
        return config.value_coef * self.value / counts.tokens


def step_counts(mask_BT: Tensor, config: OnlineConfig) -> StepCounts:
    """The denominators of an optimiser step whose rows are ``mask_BT``."""
    return StepCounts(aggregate_count(mask_BT, Aggregation(config.aggregation)), float(mask_BT.sum()))


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor | None,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    config: OnlineConfig,
    beta: float,
    *,
    sampler_logprobs_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    values_BT: Tensor | None = None,
    old_values_BT: Tensor | None = None,
    returns_BT: Tensor | None = None,
) -> LossSum:
    """The sums of one microbatch: w_t surrogate_t + (where the KL acts in the loss) beta v_t kl_t, the value loss, the entropy.

    w_t are the importance weights of ``config.sampler_correction`` (1 where it is off). With ``rollouts_ahead`` the surrogate is then the
    decoupled one (Hilton et al. 2110.00641): clipped about the old policy, weighted by old / sampler. v_t is 1, and with ``rollouts_ahead``
    min(pi_old / pi_sampler at token t, sampler_correction.high), whatever the mode: the KL at a token is an expectation over that token,
    in the state that the sampler reached.
    """
    losses_BT = _surrogate(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, config)
    correction = None
    if corrects_sampler(config.sampler_correction):
        if sampler_logprobs_BT is None:
            raise ValueError("sampler_correction needs sampler_logprobs_BT: the log-probabilities that the sampler reported")
        weights_BT = _sampler_weights(logprobs_BT, old_logprobs_BT, sampler_logprobs_BT, advantages_BT, mask_BT, config.sampler_correction)
        losses_BT = losses_BT * weights_BT
        correction = _correction_sums(weights_BT, mask_BT)
    drawn_BT = _token_weights(old_logprobs_BT, sampler_logprobs_BT, mask_BT, config)
    kl_BT = _kl_term(logprobs_BT, old_logprobs_BT, ref_logprobs_BT, mask_BT, config.kl, beta)
    if kl_BT is not None:
        kl_BT = kl_BT if drawn_BT is None else kl_BT * drawn_BT
        losses_BT = losses_BT + beta * kl_BT
    value, clipped = _value_sums(values_BT, old_values_BT, returns_BT, mask_BT, config)

    def aggregated(x_BT: Tensor) -> Tensor:
        return aggregate_sum(x_BT, mask_BT, Aggregation(config.aggregation), config.sampling.max_new_tokens)

    return LossSum(
        aggregated(losses_BT),
        losses_BT.new_zeros(()) if value is None else value,
        losses_BT.new_zeros(()) if entropy_BT is None else masked_sum(entropy_BT, mask_BT),
        0.0 if kl_BT is None else float(aggregated(kl_BT.detach())),
        clipped,
        _stats(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, config, drawn_BT),
        correction,
    )


def _surrogate(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, config: OnlineConfig) -> Tensor:
    """Per-token losses of the surrogate that the configuration names."""
    low, high = _bounds(config)
    common = (logprobs_BT, old_BT)
    match config.surrogate:
        case "ppo_clip":
            return ppo_surrogate(*common, advantages_BT, mask_BT, low, high, config.dual_clip).losses_BT
        case "cispo":
            return cispo(*common, advantages_BT, mask_BT, high, config.eps_low).losses_BT
        case "gspo_token":
            return gspo_token(*common, advantages_BT, mask_BT, low, high).losses_BT
        case "gspo":
            return gspo(*common, _per_row(advantages_BT, mask_BT), mask_BT, low, high).losses_BT
        case "gmpo":
            return gmpo(*common, _per_row(advantages_BT, mask_BT), mask_BT, low, high).losses_BT
        case _:
            assert_never(config.surrogate)


def _bounds(config: OnlineConfig) -> tuple[float, float]:
    """Clip widths; one that is off never binds."""
    return (math.inf if config.eps_low is None else config.eps_low, math.inf if config.eps_high is None else config.eps_high)


def _per_row(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The one advantage of each row, which its live tokens share."""
    last_B1 = last_live_index(mask_BT).clamp(min=0)[:, None]
    return select(advantages_BT, mask_BT).gather(-1, last_B1)[:, 0]


def corrects_sampler(config: SamplerCorrectionConfig) -> bool:
    """True when the loss needs the log-probabilities that the sampler reported."""
    return config.mode != "off" or config.sequence_mask_delta is not None


def _sampler_weights(
    logprobs_BT: Tensor, old_BT: Tensor, sampler_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, config: SamplerCorrectionConfig
) -> Tensor:
    weights_BT = mask_BT.to(old_BT.dtype)
    if config.mode != "off":
        weights_BT = is_weights(old_BT, sampler_BT, mask_BT, ImportanceMode(config.mode), config.low, config.high)
    if config.sequence_mask_delta is not None:
        per_row_B = select(advantages_BT, mask_BT).sum(-1)  # its sign is that of the mean, where advantages are per token
        kept_B = off_policy_sequence_mask(logprobs_BT, sampler_BT, per_row_B, mask_BT, config.sequence_mask_delta).keep_B
        weights_BT = torch.where(kept_B[:, None], weights_BT, 0.0)
    return weights_BT


def _token_weights(old_BT: Tensor, sampler_BT: Tensor | None, mask_BT: Tensor, config: OnlineConfig) -> Tensor | None:
    """pi_old / pi_sampler of each token, at most ``sampler_correction.high``, where answers are drawn ahead."""
    if not config.rollouts_ahead or sampler_BT is None:
        return None
    return is_weights(old_BT, sampler_BT, mask_BT, ImportanceMode.TOKEN_TRUNCATE, high=config.sampler_correction.high)


def _correction_sums(weights_BT: Tensor, mask_BT: Tensor) -> CorrectionSums:
    live_N = weights_BT[mask_BT].double()
    return CorrectionSums(float(live_N.sum()), float(live_N.square().sum()), float((live_N == 0).sum()))


def _kl_term(logprobs_BT: Tensor, old_BT: Tensor, ref_BT: Tensor | None, mask_BT: Tensor, kl: KLConfig, beta: float) -> Tensor | None:
    """KL(policy || reference) per token, attached, where it acts in the loss."""
    if kl.where == "reward" or beta == 0:
        return None
    if ref_BT is None:
        raise ValueError(f"the KL acts in the loss with beta = {beta:g}: that needs ref_logprobs_BT, a pass of the reference")
    if kl.estimator == "k3_corrected":
        return ratio_corrected_kl(logprobs_BT, old_BT, ref_BT, mask_BT, KLEstimator.K3)
    return kl_tokens(logprobs_BT, ref_BT, mask_BT, KLEstimator(kl.estimator))


def _value_sums(
    values_BT: Tensor | None, old_BT: Tensor | None, returns_BT: Tensor | None, mask_BT: Tensor, config: OnlineConfig
) -> tuple[Tensor | None, float]:
    if values_BT is None or old_BT is None or returns_BT is None or not isinstance(config, ActorCriticConfig):
        return None, 0.0
    parts = value_loss(values_BT, old_BT, returns_BT, mask_BT, config.value_clip)
    return masked_sum(parts.losses_BT, mask_BT), float(parts.clipped_BT.sum())


def _stats(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, config: OnlineConfig, drawn_BT: Tensor | None
) -> PolicyStats:
    """Monitoring sums with the clip shares of the ratio that the surrogate clips: of the token, or of the answer (GSPO)."""
    low, high = _bounds(config)
    if config.surrogate == "gmpo":  # its widths are those of the log-ratio
        low, high = -math.expm1(-low), math.expm1(high)
    token = policy_stats(logprobs_BT, old_BT, advantages_BT, mask_BT, low, high, config.dual_clip, drawn_BT)
    if config.surrogate not in {"gspo", "gspo_token"}:
        return token
    gap_BT = select(logprobs_BT.detach(), mask_BT) - select(old_BT, mask_BT)
    mean_BT = broadcast_to_tokens(gap_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1), mask_BT)
    whole = policy_stats(mean_BT, torch.zeros_like(mean_BT), advantages_BT, mask_BT, low, high)
    clips = ("clip_any", "clip_low", "clip_high", "clip_beneficial", "ratio_sum", "ratio_sq_sum", "ratio_min", "ratio_max")
    return replace(token, **{name: getattr(whole, name) for name in clips})
