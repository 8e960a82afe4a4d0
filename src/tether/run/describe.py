"""The numbers of one round and of one optimiser step, from tensors to the registry's (sum, count) pairs."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from tether.algorithms.experience import Annotated, Experience
from tether.algorithms.policy_gradient import LossSum, OnlineConfig, StepCounts
from tether.config import ActorCriticConfig
from tether.maths.importance import OffPolicyKL, off_policy_kl
from tether.maths.kl import KLEstimator, kl_tokens, kl_units
from tether.maths.masked import masked_mean
from tether.maths.policy_loss import PolicyStats
from tether.maths.value_loss import explained_variance
from tether.metrics import MetricSums

__all__ = ["describe_agreement", "describe_round", "describe_sampled", "describe_step", "sampled_kl", "warn_of_negative_kl"]

_ENOUGH_SEQUENCES = 16  # below, the standard error itself is too uncertain for a warning

_ALL_DEAD = (
    "a whole round of groups had equal rewards inside each group, so no advantage is left and only the tether acts. If it repeats, the "
    "prompts are too hard or too easy for this policy, or the reward sees no difference: read some answers, use other prompts, a larger "
    "samples_per_prompt, or dynamic_sampling"
)

_LOG = logging.getLogger(__name__)


def describe_round(
    metrics: MetricSums, experience: Experience, annotated: Annotated, sampler_logprobs_BT: Tensor, beta: float
) -> None:
    """The numbers of the policy before the update."""
    kl_sequence = describe_sampled(metrics, experience, sampler_logprobs_BT, beta)
    metrics.add("reward_with_kl", float(experience.scores_B.mean()) - (beta * kl_sequence if beta else 0.0))
    if annotated.num_groups < len(experience.scores_B):  # groups of one have no spread to speak of
        metrics.add("dead_group_share", float(annotated.dead_groups), float(annotated.num_groups))
        if annotated.dead_groups == annotated.num_groups:
            _LOG.warning(_ALL_DEAD)
    if experience.old_values_BT is not None and annotated.returns_BT is not None:
        metrics.add("explained_variance", explained_variance(experience.old_values_BT, annotated.returns_BT, experience.mask_BT))


def describe_sampled(metrics: MetricSums, experience: Experience, sampler_logprobs_BT: Tensor, beta: float) -> float:
    """Tether, spread of the rewards and agreement with the sampler, whatever the algorithm; returns the KL in nats per sequence, NaN where
    the reference read nothing.

    Answers that older weights drew agree with the policy of those weights, if at all: that is measured where they are drawn.
    """
    kl_sequence = math.nan
    if experience.ref_logprobs_BT is not None:
        k1 = sampled_kl(experience)
        kl_sequence = k1.seq_sum_mean_nats
        metrics.add("kl_k1_token", k1.token_mean_nats)
        metrics.add("kl_k1_sequence", kl_sequence)
        metrics.add("kl_k3_token", sampled_kl(experience, KLEstimator.K3).token_mean_nats)
    metrics.add("reward_std", float(experience.scores_B.std(unbiased=False)))
    metrics.add("beta", beta)
    if experience.drawn_logprobs_BT is None:
        describe_agreement(metrics, sampler_logprobs_BT, experience.old_logprobs_BT, experience.mask_BT)
    return kl_sequence


def describe_agreement(metrics: MetricSums, sampler_logprobs_BT: Tensor, trainer_logprobs_BT: Tensor, mask_BT: Tensor) -> None:
    """How far sampler and trainer are apart on answers, by the weights that drew them."""
    gap_BT = (sampler_logprobs_BT - trainer_logprobs_BT).abs()
    metrics.add("sampler_gap_mean", float(masked_mean(gap_BT, mask_BT)))
    metrics.add("sampler_gap_max", float(torch.where(mask_BT, gap_BT, 0.0).max()))


def sampled_kl(experience: Experience, estimator: KLEstimator = KLEstimator.K1) -> OffPolicyKL:
    """KL(old || reference) of a round: plain means where the old policy drew the answers, weighted ones where older weights did."""
    old_BT, ref_BT, mask_BT = experience.old_logprobs_BT, experience.ref_logprobs_BT, experience.mask_BT
    if ref_BT is None:
        raise ValueError("the reference read nothing in this round (kl.reference_pass = false): there is no KL to it")
    if experience.drawn_logprobs_BT is not None:
        return off_policy_kl(old_BT, ref_BT, experience.drawn_logprobs_BT, mask_BT, estimator)
    units = kl_units(old_BT, ref_BT, mask_BT, estimator)
    return OffPolicyKL(kl_tokens(old_BT, ref_BT, mask_BT, estimator).sum(-1), units.seq_sum_mean_nats, units.token_mean_nats)


def warn_of_negative_kl(experience: Experience) -> bool:
    """True, and a warning, when the mean summed k1 lies more than 3 standard errors below 0 (case C1).

    A KL is never negative; its sampled estimate may be, by chance. Far below 0 the samples did not come from the distribution whose
    log-probabilities are compared.
    """
    k1_B = sampled_kl(experience).rows_B
    if len(k1_B) < _ENOUGH_SEQUENCES:
        return False
    mean, error = float(k1_B.mean()), float(k1_B.std()) / math.sqrt(len(k1_B))
    if mean >= -3 * error or mean > -1e-3:
        return False
    _LOG.warning(
        "KL(policy || reference) is estimated at %.3g nats per sequence, more than 3 standard errors (%.2g each) below 0. Chance does this "
        "once in some hundred rounds; if it repeats, the answers were not drawn from the policy whose log-probabilities are used: look for "
        "sampling filters, a temperature or padding that one side lacks",
        mean,
        error,
    )
    return True


def describe_step(metrics: MetricSums, losses: list[LossSum], stats: PolicyStats, counts: StepCounts, config: OnlineConfig) -> None:
    """The numbers of one optimiser step: sums over its microbatches, divided once."""
    metrics.add("policy_loss", sum(float(loss.policy.detach()) for loss in losses) / counts.policy)
    if isinstance(config, ActorCriticConfig):
        metrics.add("value_loss", sum(float(loss.value.detach()) for loss in losses), counts.tokens)
        metrics.add("value_clip_share", sum(loss.value_clipped for loss in losses), counts.tokens)
    if config.kl.where == "loss":
        metrics.add("kl_loss", sum(loss.kl for loss in losses) / counts.policy)
    corrections = [loss.correction for loss in losses if loss.correction is not None]
    if corrections:
        total, squares = sum(c.weights for c in corrections), sum(c.squares for c in corrections)
        metrics.add("sampler_weight_mean", total, counts.tokens)
        metrics.add("sampler_zero_share", sum(c.zeros for c in corrections), counts.tokens)
        metrics.add("sampler_ess", total**2 / (counts.tokens * squares) if squares else 0.0)
    n = stats.count
    metrics.add("update_kl_k1", stats.approx_kl_k1, n)
    metrics.add("update_kl_k2", stats.approx_kl_k2, n)
    metrics.add("update_kl_k3", stats.approx_kl_k3, n)
    metrics.add("clip_any_share", stats.clip_any, n)
    metrics.add("clip_low_share", stats.clip_low, n)
    metrics.add("clip_high_share", stats.clip_high, n)
    metrics.add("ratio_mean", stats.ratio_sum, n)
    metrics.add("ratio_max", stats.ratio_max)
    metrics.add("ratio_min", stats.ratio_min)
    metrics.add("ess_token", stats.means().ess_token)
