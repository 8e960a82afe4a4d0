"""Direct preference losses over token log-probabilities, as SUMS over units, which the caller divides by the units of the optimiser step.

A unit is a pair (chosen, rejected) or, for KTO, one judged answer. Pure: no randomness, no logging, no files. The reference enters as one
summed log-probability per answer, taken with the frozen start on the same tokens. Axes: B units, T tokens, N units of the optimiser step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tether.config import DirectConfig, OnlineDPOConfig
from tether.maths.masked import select
from tether.maths.preference_loss import (
    PreferenceKind,
    PreferencePairs,
    kto_loss,
    kto_weights,
    log_ratio_margin,
    mean_log_ratio_margin,
    preference_loss,
)

__all__ = [
    "REFERENCE_FREE",
    "LossSum",
    "PairSums",
    "PreferenceSpec",
    "PreferenceStats",
    "answer_loss",
    "balanced_weights",
    "pair_loss",
    "sequence_sums",
]

KTO = "kto"
REFERENCE_FREE = frozenset({PreferenceKind.ORPO, PreferenceKind.SIMPO})
"""Losses that read no reference; monitoring still measures from the start."""


@dataclass(frozen=True)
class PreferenceSpec:
    """What the loss needs of a configuration. ``kind`` is a PreferenceKind, or "kto"."""

    kind: str
    beta: float
    label_smoothing: float = 0.0
    gamma: float = 0.0
    sft_coef: float = 0.0

    @classmethod
    def direct(cls, config: DirectConfig) -> PreferenceSpec:
        """Of a stage [direct.NAME]."""
        return cls(config.kind, config.beta, config.label_smoothing, config.gamma, config.sft_coef)

    @classmethod
    def online(cls, config: OnlineDPOConfig) -> PreferenceSpec:
        """Of a stage [rl.NAME] with kind = "online_dpo"."""
        kind = "cdpo" if config.loss == "dpo" and config.label_smoothing else config.loss
        return cls(kind, config.beta, config.label_smoothing)


@dataclass(frozen=True)
class PairSums:
    """Per answer: summed log-probability (nats) and number of live tokens."""

    logprobs_B: Tensor
    lengths_B: Tensor


@dataclass(frozen=True)
class PreferenceStats:
    """Detached sums for the log, which add up over microbatches. ``chosen`` are liked answers, ``rejected`` disliked ones; rewards are
    implied, changes are log pi - log pi_start summed over the answer (nats), ``correct`` counts units ranked right, a tie as one half."""

    num_units: float
    num_chosen: float
    num_rejected: float
    correct: float
    reward_chosen: float
    reward_rejected: float
    chosen_change: float
    rejected_change: float

    def __add__(self, other: PreferenceStats) -> PreferenceStats:
        return PreferenceStats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def margin(self) -> float:
        """Mean implied reward of chosen minus that of rejected answers; NaN where one side is absent."""
        if not (self.num_chosen and self.num_rejected):
            return float("nan")
        return self.reward_chosen / self.num_chosen - self.reward_rejected / self.num_rejected


@dataclass(frozen=True)
class LossSum:
    """Numerator of one microbatch: ``total`` is differentiable, ``stats`` are detached."""

    total: Tensor
    stats: PreferenceStats

    def detached(self) -> LossSum:
        """The same numbers without the graph they were computed by."""
        return LossSum(self.total.detach(), self.stats)


def sequence_sums(logprobs_BT: Tensor, mask_BT: Tensor) -> PairSums:
    """Row sums over live tokens. Example: logprobs [-1, -2, -9], mask [T, T, F] -> -3 over 2 tokens."""
    return PairSums(select(logprobs_BT.float(), mask_BT).sum(-1), mask_BT.sum(-1).float())


def pair_loss(chosen: PairSums, rejected: PairSums, start_chosen_B: Tensor, start_rejected_B: Tensor, spec: PreferenceSpec) -> LossSum:
    """sum_B loss(kind) + sft_coef sum_B (-log pi(chosen) / length).

    ``start_*``: the same answers' summed log-probabilities under the frozen start.
    Example: chosen -4 against -5, rejected -6 against -5, dpo, beta .1: h = 2, loss softplus(-.2) = .598139, margin .2.
    """
    pairs = PreferencePairs(
        chosen.logprobs_B, rejected.logprobs_B, start_chosen_B, start_rejected_B, chosen.lengths_B, rejected.lengths_B
    )
    losses_B = preference_loss(pairs, PreferenceKind(spec.kind), spec.beta, spec.label_smoothing, spec.gamma)
    if spec.sft_coef:
        losses_B = losses_B - spec.sft_coef * chosen.logprobs_B / chosen.lengths_B
    return LossSum(losses_B.sum(), _pair_stats(pairs, spec))


@torch.no_grad()
def _pair_stats(pairs: PreferencePairs, spec: PreferenceSpec) -> PreferenceStats:
    chosen_B = pairs.chosen_logprobs_B - pairs.ref_chosen_logprobs_B
    rejected_B = pairs.rejected_logprobs_B - pairs.ref_rejected_logprobs_B
    num = float(len(chosen_B))
    kind = PreferenceKind(spec.kind)
    if kind in REFERENCE_FREE:
        reward_chosen_B = spec.beta * pairs.chosen_logprobs_B / pairs.chosen_lengths_B
        reward_rejected_B = spec.beta * pairs.rejected_logprobs_B / pairs.rejected_lengths_B
        margin_B = reward_chosen_B - reward_rejected_B
    elif kind is PreferenceKind.IPO_AVG:
        reward_chosen_B = spec.beta * chosen_B / pairs.chosen_lengths_B
        reward_rejected_B = spec.beta * rejected_B / pairs.rejected_lengths_B
        margin_B = spec.beta * mean_log_ratio_margin(pairs)
    else:
        reward_chosen_B, reward_rejected_B = spec.beta * chosen_B, spec.beta * rejected_B
        margin_B = spec.beta * log_ratio_margin(pairs)
    return PreferenceStats(
        num, num, num, _right(margin_B), float(reward_chosen_B.sum()), float(reward_rejected_B.sum()),
        float(chosen_B.sum()), float(rejected_B.sum()),
    )  # fmt: skip


def answer_loss(
    answers: PairSums,
    start_B: Tensor,
    liked_B: Tensor,
    mismatched_log_ratios_N: Tensor,
    spec: PreferenceSpec,
    weights: tuple[float, float] = (1.0, 1.0),
) -> LossSum:
    """KTO (2402.01306 eq. 7): sum_B w (1 - sigma(+-beta (log-ratio - z0))), + for liked answers.

    z0 = max(0, mean of ``mismatched_log_ratios_N``), without gradient: N are ALL units of the optimiser step, whichever microbatch this is.
    Example: log-ratio 1, liked, mismatched mean -3, beta .1 -> z0 = 0, 1 - sigma(.1) = .475021.
    """
    log_ratios_B = answers.logprobs_B - start_B
    result = kto_loss(log_ratios_B, liked_B, mismatched_log_ratios_N, spec.beta, *weights)
    with torch.no_grad():
        chosen_N, rejected_N = log_ratios_B[liked_B], log_ratios_B[~liked_B]
        over_B = spec.beta * (log_ratios_B - result.z0)
        stats = PreferenceStats(
            float(len(liked_B)), float(len(chosen_N)), float(len(rejected_N)), _right(torch.where(liked_B, over_B, -over_B)),
            spec.beta * float(chosen_N.sum()), spec.beta * float(rejected_N.sum()), float(chosen_N.sum()), float(rejected_N.sum()),
        )  # fmt: skip
    return LossSum(result.losses_B.sum(), stats)


def balanced_weights(num_liked: int, num_disliked: int) -> tuple[float, float]:
    """KTO eq. 8 with the smaller side raised just into the range 1 <= w_l n_l / (w_d n_d) <= 4/3.

    Example: 10 and 10 -> (1, 1); 10 and 30 -> (3, 1); 30 and 10 -> (1, 2.25).
    """
    low, high = kto_weights(num_liked, num_disliked)  # of the disliked side, for weight 1 of the liked
    if low <= 1 <= high:
        return 1.0, 1.0
    return (1.0, low) if low > 1 else (1.0 / high, 1.0)


def _right(margin_B: Tensor) -> float:
    return float((margin_B > 0).sum()) + 0.5 * float((margin_B == 0).sum())
