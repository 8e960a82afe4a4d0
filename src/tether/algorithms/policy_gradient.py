"""PPO and GRPO as one policy-gradient function: advantage estimator x clipped surrogate x place of the KL x normaliser.

Two pure calls. ``annotate`` turns the scores of one round into advantages (and returns); ``policy_loss`` turns the log-probabilities of
a microbatch into SUMS, which the caller divides by the counts of the whole optimiser step. Axes: B sequences, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from tether.config import GRPOConfig, KLConfig, PPOConfig
from tether.maths.advantages import StdKind, dead_groups, grpo_advantages
from tether.maths.kl import KLEstimator, kl_tokens
from tether.maths.masked import Aggregation, aggregate_count, aggregate_sum, masked_sum, whiten
from tether.maths.policy_loss import PolicyStats, grpo_loss, grpo_loss_ratio_corrected, policy_stats, ppo_surrogate
from tether.maths.returns import broadcast_to_tokens, gae, shaped_rewards
from tether.maths.value_loss import value_loss

__all__ = ["Annotated", "Experience", "LossSum", "StepCounts", "annotate", "policy_loss", "step_counts"]

OnlineConfig = PPOConfig | GRPOConfig


@dataclass(frozen=True)
class Experience:
    """One round of rollouts as the trainer sees it, before advantages. Log-probabilities in nats at the sampling temperature.

    ``terminated_B``: the answer ended by itself; otherwise it was cut by the token budget, and ``bootstrap_values_B`` (PPO)
    is the value of the state it was cut in. ``group_ids_B``: rows of one prompt share an id, in any order.
    """

    mask_BT: Tensor
    scores_B: Tensor
    group_ids_B: Tensor
    terminated_B: Tensor
    old_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor
    old_values_BT: Tensor | None = None
    bootstrap_values_B: Tensor | None = None


@dataclass(frozen=True)
class Annotated:
    """Advantages per token and, for PPO, the targets of the value function; all detached, 0 at pads.

    ``dead_groups`` of ``num_groups`` had no spread in their rewards.
    """

    advantages_BT: Tensor
    returns_BT: Tensor | None
    dead_groups: int
    num_groups: int


@dataclass(frozen=True)
class StepCounts:
    """The denominators of one optimiser step, counted once over all its microbatches (and ranks)."""

    policy: float
    tokens: float


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

    def total(self, config: OnlineConfig, counts: StepCounts) -> Tensor:
        """What is minimised: policy/N + value_coef value/N_tokens - entropy_coef H/N_tokens."""
        loss = self.policy / counts.policy - config.entropy_coef * self.entropy / counts.tokens
        return loss + config.value_coef * self.value / counts.tokens if isinstance(config, PPOConfig) else loss


def annotate(experience: Experience, config: OnlineConfig, beta: float) -> Annotated:
    """Advantages of one round.

    PPO: token rewards are -beta k1 (where the KL acts in the reward) plus the score on the last live token; GAE over them, then
    whitening over the live tokens. GRPO: group-standardised scores, spread over the tokens; where the KL acts in the reward, the
    summed k1 is taken from the score first.
    """
    dead, groups = dead_groups(experience.scores_B, experience.group_ids_B)
    match config:
        case PPOConfig():
            advantages_BT, returns_BT = _gae(experience, config, beta)
        case GRPOConfig():
            advantages_BT, returns_BT = _group_relative(experience, config, beta), None
        case _:
            assert_never(config)
    return Annotated(advantages_BT, returns_BT, dead, groups)


def _gae(experience: Experience, config: PPOConfig, beta: float) -> tuple[Tensor, Tensor]:
    if experience.old_values_BT is None:
        raise ValueError("PPO needs old_values_BT: run the value function over the rollouts first")
    mask_BT = experience.mask_BT
    reward_beta = beta if config.kl.where == "reward" else 0.0
    rewards_BT = shaped_rewards(experience.scores_B, experience.old_logprobs_BT, experience.ref_logprobs_BT, mask_BT, reward_beta)
    result = gae(
        rewards_BT, experience.old_values_BT, mask_BT, config.gamma, config.lam, experience.terminated_B, experience.bootstrap_values_B
    )
    advantages_BT = whiten(result.advantages_BT, mask_BT) if config.whiten_advantages else result.advantages_BT
    return advantages_BT.detach(), result.returns_BT


def _group_relative(experience: Experience, config: GRPOConfig, beta: float) -> Tensor:
    rewards_B = experience.scores_B
    if config.kl.where == "reward":
        kl_BT = kl_tokens(experience.old_logprobs_BT, experience.ref_logprobs_BT, experience.mask_BT, KLEstimator.K1)
        rewards_B = rewards_B - beta * kl_BT.sum(-1)
    advantages_B = grpo_advantages(rewards_B, experience.group_ids_B, StdKind(config.std), config.std_eps)
    return broadcast_to_tokens(advantages_B, experience.mask_BT).detach()


def step_counts(mask_BT: Tensor, config: OnlineConfig) -> StepCounts:
    """The denominators of an optimiser step whose rows are ``mask_BT``."""
    return StepCounts(aggregate_count(mask_BT, Aggregation(config.aggregation)), float(mask_BT.sum()))


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    config: OnlineConfig,
    beta: float,
    *,
    entropy_BT: Tensor | None = None,
    values_BT: Tensor | None = None,
    old_values_BT: Tensor | None = None,
    returns_BT: Tensor | None = None,
) -> LossSum:
    """The sums of one microbatch: clipped surrogate (PPO eq. 7) plus, where asked, beta x KL, value loss and entropy."""
    losses_BT, kl_BT = _surrogate(logprobs_BT, old_logprobs_BT, ref_logprobs_BT, advantages_BT, mask_BT, config, beta)
    aggregation = Aggregation(config.aggregation)
    norm_len = config.sampling.max_new_tokens
    value = entropy = losses_BT.new_zeros(())
    clipped = 0.0
    if values_BT is not None and old_values_BT is not None and returns_BT is not None and isinstance(config, PPOConfig):
        parts = value_loss(values_BT, old_values_BT, returns_BT, mask_BT, config.value_clip)
        value, clipped = masked_sum(parts.losses_BT, mask_BT), float(parts.clipped_BT.sum())
    if entropy_BT is not None:
        entropy = masked_sum(entropy_BT, mask_BT)
    stats = policy_stats(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, config.eps_low, config.eps_high)
    kl = 0.0 if kl_BT is None else float(aggregate_sum(kl_BT, mask_BT, aggregation, norm_len))
    return LossSum(aggregate_sum(losses_BT, mask_BT, aggregation, norm_len), value, entropy, kl, clipped, stats)


def _surrogate(
    logprobs_BT: Tensor, old_BT: Tensor, ref_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, config: OnlineConfig, beta: float
) -> tuple[Tensor, Tensor | None]:
    """Token losses, and the KL term without beta where the KL acts in the loss."""
    if config.kl.where == "reward" or beta == 0:
        return ppo_surrogate(logprobs_BT, old_BT, advantages_BT, mask_BT, config.eps_low, config.eps_high).losses_BT, None
    with_ratio = config.kl.estimator == "k3_corrected"
    loss = grpo_loss_ratio_corrected if with_ratio else grpo_loss
    tethered = loss(logprobs_BT, old_BT, ref_BT, advantages_BT, mask_BT, config.eps_low, config.eps_high, beta, _estimator(config.kl))
    return tethered.losses_BT, tethered.kl_BT


def _estimator(kl: KLConfig) -> KLEstimator:
    return KLEstimator(kl.estimator.removesuffix("_corrected"))


def as_groups(ids: list[str]) -> Tensor:
    """Integer group ids of prompt ids, in order of first appearance. Example: ["b", "a", "b"] -> [0, 1, 0]."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in ids])
