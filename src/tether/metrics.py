"""The registry: every number that is ever logged has a name, unit, mask, aggregation, meaning and healthy band.

A number that is not here cannot be logged, so a number without a unit does not ship. Values travel as (sum, count) pairs until
the last moment: pairs of several microbatches or workers add up to the right mean, means do not.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["REGISTRY", "Metric", "MetricSums", "UnknownMetricError", "describe"]


class UnknownMetricError(KeyError):
    """A metric that the registry does not know; names the nearest one."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of number. ``healthy`` is (low, high) with None for an open end, or None where no band is meaningful."""

    name: str
    unit: str
    mask: str
    aggregation: str
    meaning: str
    healthy: tuple[float | None, float | None] | None = None


def _table(*rows: tuple[str, str, str, str, str, tuple[float | None, float | None] | None]) -> dict[str, Metric]:
    return {row[0]: Metric(*row) for row in rows}


REGISTRY: dict[str, Metric] = _table(
    # optimiser
    ("loss", "nats", "see stage", "sum / count of the optimiser step", "What the optimiser minimises in this stage.", None),
    ("grad_norm", "loss per weight", "all trained weights", "value of the last optimiser step", "Global gradient norm before clipping.", (0.0, 100.0)),
    ("learning_rate", "1", "none", "value of the last optimiser step", "Learning rate in force.", None),
    ("skipped_steps", "steps", "none", "sum over the step", "Optimiser steps refused because a number in them was not finite, or no rollout had a score.", (0.0, 0.0)),
    ("tokens_per_second", "tokens/s", "prompt and response", "tokens / wall seconds of the step", "Tokens generated or trained per second of the whole step.", None),
    ("generate_seconds", "s", "none", "wall time", "Time spent sampling.", None),
    ("score_seconds", "s", "none", "wall time", "Time spent scoring rollouts.", None),
    ("score_hidden_seconds", "s", "reward parts asked early", "wall time", "The part of score_seconds that went by while answers were still generated, and so cost the step nothing.", (0.0, None)),
    ("draw_wait_seconds", "s", "none", "wall time", "Time that a round waited, after its update, for the answers of the next one (rollouts_ahead).", (0.0, None)),
    ("annotate_seconds", "s", "none", "wall time", "Time spent on old, reference and value passes.", None),
    ("update_seconds", "s", "none", "wall time", "Time spent on forward, backward and optimiser.", None),
    ("memory_peak", "MiB", "the process of the stage", "largest during the stage", "Most memory that the process held while the stage ran (on a GPU: that PyTorch held there).", None),
    ("memory_planned", "MiB", "the process of the stage", "computed before the stage", "Most memory that the plan of the stage allows for (docs/memory.md).", None),
    # SFT and reward model
    ("pair_accuracy", "share", "pairs", "mean over pairs, a tie counts one half", "Share of pairs whose chosen answer scores higher.", (0.5, 1.0)),
    ("pair_margin", "score", "pairs", "mean over pairs", "Score of the chosen minus score of the rejected answer.", (0.0, None)),
    ("score_mean", "score", "answers", "mean over answers", "Mean raw score of the answers seen.", (-5.0, 5.0)),
    ("head_std", "score", "answers", "mean over answers", "Standard deviation of a score over the heads of a reward model that has several.", (0.0, None)),
    ("tie_parameter", "1", "none", "value", "Of the model of ties: nu (Davidson) or eta (Rao-Kupper, log-odds).", (0.0, None)),
    # direct preference
    ("implied_reward_chosen", "reward", "chosen or liked answers", "mean over answers", "beta x log(pi / start) of the answer, as the loss ranks it (ipo_avg, simpo, orpo: per token; the last two without the start).", None),
    ("implied_reward_rejected", "reward", "rejected or disliked answers", "mean over answers", "The same of the answers that lost.", None),
    ("implied_margin", "reward", "units of the step", "mean over chosen minus mean over rejected", "Implied reward of chosen minus that of rejected answers.", (0.0, None)),
    ("implied_accuracy", "share", "pairs (kto: answers)", "mean over units, a tie counts one half", "Share of pairs whose chosen answer has the larger implied reward; kto: of answers on the right side of z0.", (0.5, 1.0)),
    ("chosen_logprob", "nats per sequence", "response tokens of chosen answers", "mean over answers of the sum over tokens", "log pi - log pi_start: falling while the margin rises is displacement.", None),
    ("rejected_logprob", "nats per sequence", "response tokens of rejected answers", "mean over answers of the sum over tokens", "log pi - log pi_start of the answers that lost.", None),
    ("kto_z0", "nats per sequence", "mismatched answers of the step", "value", "KTO's reference point: max(0, mean log-ratio of answers to other prompts).", None),
    ("tie_share", "share", "groups", "mean over groups", "Groups that give no pair: best and worst reward within min_gap, the same text, or fewer than two scored answers.", (0.0, 0.9)),
    ("pair_gap", "reward", "pairs", "mean over pairs", "Reward of the best minus reward of the worst answer of a group, where they make a pair.", (0.0, None)),
    # rewards
    ("reward", "reward", "scored rollouts", "mean over rollouts", "Weighted sum of the reward parts, before the KL term.", None),
    ("reward_std", "reward", "scored rollouts", "population standard deviation over rollouts", "Spread of the reward in this step.", (0.0, None)),
    ("reward_with_kl", "reward", "scored rollouts", "mean over rollouts", "Reward minus beta times the summed k1: what PPO maximises.", None),
    ("failure_share", "share", "rollouts", "mean over rollouts", "Rollouts whose verifier broke; left out of the gradient.", (0.0, 0.01)),
    ("unscored_share", "share", "rollouts", "mean over rollouts", "Rollouts without a score (failed, or no reward part applies); left out of the gradient.", (0.0, 0.01)),
    ("dead_group_share", "share", "groups", "mean over groups", "Groups whose rewards are all equal: they teach GRPO nothing.", (0.0, 0.9)),
    ("filtered_group_share", "share", "groups asked", "mean over groups", "Groups that dynamic sampling left out because their rewards are all equal.", (0.0, 0.7)),
    ("sampled_batches", "batches", "none", "sum over the step", "Batches of prompts that the step asked, the first included.", None),
    ("baseline_reward", "reward", "greedy answers", "mean over prompts", "Reward of the greedy answers that ReMax subtracts.", None),
    # KL to the reference
    ("kl_k1_token", "nats per token", "response tokens", "mean over tokens", "KL(policy || reference), k1, of the policy before the update.", (-0.02, None)),
    ("kl_k3_token", "nats per token", "response tokens", "mean over tokens", "KL(policy || reference), k3, of the policy before the update.", (0.0, None)),
    ("kl_k1_sequence", "nats per sequence", "response tokens", "mean over sequences of the sum over tokens", "KL(policy || reference), k1, summed over the answer.", (-1.0, None)),
    ("kl_loss", "nats per token", "response tokens", "as the loss aggregates", "The KL term of the loss before beta (kl.where = 'loss').", None),
    ("beta", "reward per nat", "none", "value", "Strength of the tether in force.", None),
    # update
    ("policy_loss", "reward", "response tokens", "as the loss aggregates", "Clipped surrogate; near 0 when on-policy, no measure of progress.", None),
    ("value_loss", "reward^2", "response tokens", "mean over tokens", "Half the squared error of the values.", None),
    ("explained_variance", "share", "response tokens", "1 - var(return - old value) / var(return)", "How much of the returns the value function foresaw.", (0.0, 1.0)),
    ("value_clip_share", "share", "response tokens", "mean over tokens", "Tokens whose value loss takes the clipped branch.", (0.0, 0.3)),
    ("entropy", "nats per token", "response tokens", "mean over tokens", "Entropy of the tempered distribution over the whole vocabulary, of the policy before the update, in the states that were sampled.", (0.05, None)),
    ("update_kl_k1", "nats per token", "response tokens", "mean over tokens", "KL(old || new) of the update, k1.", None),
    ("update_kl_k2", "nats per token", "response tokens", "mean over tokens", "KL(old || new) of the update, k2.", (0.0, 0.1)),
    ("update_kl_k3", "nats per token", "response tokens", "mean over tokens", "KL(old || new) of the update, k3.", (0.0, 0.1)),
    ("clip_low_share", "share", "response tokens", "mean over tokens", "Tokens below the lower clip with a negative advantage: gradient cut (gspo: by the ratio of the answer; cispo has none).", (0.0, 0.3)),
    ("clip_high_share", "share", "response tokens", "mean over tokens", "Tokens above the upper clip with a positive advantage: gradient cut (gspo: by the ratio of the answer; cispo: weight cut to the cap).", (0.0, 0.3)),
    ("clip_any_share", "share", "response tokens", "mean over tokens", "Tokens whose ratio is outside the clip range, whatever the advantage.", (0.0, 0.5)),
    ("ratio_mean", "1", "response tokens", "mean over tokens", "Mean importance ratio new / old.", (0.9, 1.1)),
    ("ratio_max", "1", "response tokens", "maximum", "Largest importance ratio of the step.", (None, 10.0)),
    ("ratio_min", "1", "response tokens", "minimum", "Smallest importance ratio of the step.", (0.1, None)),
    ("ess_token", "share", "response tokens", "(sum w)^2 / (n sum w^2)", "Effective sample size of the update's importance ratios.", (0.5, 1.0)),
    ("first_ratio_error", "nats", "response tokens", "maximum", "Largest |new - old| log-probability before the first update of a rollout.", (0.0, 1e-4)),
    ("sampler_gap_mean", "nats", "response tokens", "mean of the absolute difference", "Sampler against trainer log-probabilities, by the weights that drew (rollouts_ahead: of the answers of one pass).", (0.0, 0.06)),
    ("sampler_gap_max", "nats", "response tokens", "maximum of the absolute difference", "Worst sampler against trainer difference, by the weights that drew (rollouts_ahead: of the answers of one pass).", (0.0, 1.0)),
    ("staleness", "rounds", "response tokens", "mean over tokens", "Age of the weights that drew the answers when they are learned from: publishes since then (rollouts_ahead: 1, and 0 in the first round).", (0.0, 1.0)),
    ("publish_gap", "nats", "probe tokens", "maximum of the absolute difference", "Sampler against trainer log-probabilities of the fixed probe after this step's publish; too far apart stops the run.", (0.0, 1.0)),
    ("sampler_weight_mean", "1", "response tokens", "mean over tokens", "Mean importance weight against the sampler (sampler_correction).", (0.9, 1.1)),
    ("sampler_zero_share", "share", "response tokens", "mean over tokens", "Tokens that the sampler correction takes out of the loss.", (0.0, 0.1)),
    ("sampler_ess", "share", "response tokens", "(sum w)^2 / (n sum w^2)", "Effective sample size of the weights against the sampler.", (0.5, 1.0)),
    ("optimiser_steps", "steps", "none", "sum over the step", "Optimiser steps applied in this round.", (1.0, None)),
    ("stopped_early", "share", "none", "value", "1 when target_kl ended this round's passes early.", None),
    # texts
    ("response_length", "tokens", "rollouts", "mean over rollouts", "Mean number of response tokens, the end token included.", None),
    ("response_length_max", "tokens", "rollouts", "maximum", "Longest response.", None),
    ("truncated_share", "share", "rollouts", "mean over rollouts", "Rollouts cut by the token budget, as the engine reports.", (0.0, 0.5)),
    ("distinct_share", "share", "rollouts", "distinct texts / texts", "Share of distinct answers; low means mode collapse.", (0.2, 1.0)),
    ("repeat_share", "share", "rollouts", "mean over rollouts of 1 - unique / total trigrams", "Repetition inside an answer.", (0.0, 0.2)),
)

_OPEN_PREFIX = "reward/"  # one metric per reward component; unit "reward", mask "rollouts where the part applies"


def describe(name: str) -> Metric:
    """The registry entry of ``name``; ``reward/PART`` is described by its kind. Raises :class:`UnknownMetricError`."""
    if name in REGISTRY:
        return REGISTRY[name]
    if name.startswith(_OPEN_PREFIX):
        part = name.removeprefix(_OPEN_PREFIX)
        return Metric(name, "reward", "rollouts where the part applies", "mean over rollouts", f"Reward part {part!r}, unweighted.")
    near = difflib.get_close_matches(name, REGISTRY, n=1)
    raise UnknownMetricError(f"no metric {name!r} in tether.metrics.REGISTRY" + (f"; did you mean {near[0]!r}?" if near else ""))


class MetricSums:
    """Accumulates (sum, count) pairs and extremes. State: what was added so far."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        """Add a sum over ``count`` items. For metrics aggregated by maximum or minimum, ``total`` is the extreme itself."""
        metric = describe(name)
        old_total, old_count = self._sums.get(name, (0.0, 0.0))
        if metric.aggregation.startswith("maximum") and old_count:
            self._sums[name] = (max(old_total, float(total)), 1.0)
        elif metric.aggregation.startswith("minimum") and old_count:
            self._sums[name] = (min(old_total, float(total)), 1.0)
        elif metric.aggregation.startswith(("maximum", "minimum", "value")):
            self._sums[name] = (float(total), 1.0)
        elif metric.aggregation.startswith(("sum over", "wall time")):
            self._sums[name] = (old_total + float(total), 1.0)
        else:
            self._sums[name] = (old_total + float(total), old_count + float(count))

    def update(self, values: Mapping[str, float]) -> None:
        """Add finished values, each as one item."""
        for name, value in values.items():
            self.add(name, value)

    def sums(self) -> dict[str, tuple[float, float]]:
        """(sum, count) of every metric."""
        return dict(self._sums)

    @classmethod
    def of(cls, sums: Mapping[str, Sequence[float]]) -> MetricSums:
        """What ``sums`` was read from."""
        made = cls()
        made._sums = {describe(name).name: (float(total), float(count)) for name, (total, count) in sums.items()}
        return made

    def means(self) -> dict[str, float]:
        """One number per metric: sum / count; NaN where nothing was counted."""
        return {name: total / count if count else math.nan for name, (total, count) in self._sums.items()}
