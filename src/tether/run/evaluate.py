"""Held-out evaluation with an independent score: the same prompts and randomness for every policy, paired intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from tether.backends.compute import Compute
from tether.config import EvaluateConfig
from tether.data.batches import pad_examples
from tether.data.packing import microbatches
from tether.maths.kl import KLEstimator, KLUnits, kl_tokens, kl_units
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.report.evaluation import GainRecord
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.rollout.rollouter import collect
from tether.run.attempts import Attempts, attempts
from tether.stats import bootstrap_mean, paired_bootstrap
from tether.text.chat import sampled_example
from tether.types import Prompt, Rollout, RolloutGroup, Sampling

__all__ = ["EvaluatedPolicy", "ask", "evaluate_policy", "gain", "proxy_gain", "summarise"]

_EVALUATION_STEP = 0  # training steps count from 1, so held-out randomness never meets training randomness


@dataclass(frozen=True)
class EvaluatedPolicy:
    """What held-out prompts say of one policy. ``scores_by_prompt``: mean over the prompt's samples, in prompt order. ``attempts``: where
    there are several samples and every score is 0 or 1. ``kl_sequence_interval_nats``: of the mean over sequences, by bootstrap
    over prompts; None without a reference."""

    name: str
    score: str
    mean: float
    low: float
    high: float
    num_prompts: int
    samples_per_prompt: int
    confidence: float
    response_length: float
    truncated_share: float
    kl_token_mean_nats: float
    kl_sequence_sum_nats: float
    scores_by_prompt: tuple[float, ...]
    components: Mapping[str, float]
    proxies: Mapping[str, float]
    proxies_by_prompt: Mapping[str, tuple[float, ...]]
    samples: tuple[Mapping[str, Any], ...]
    attempts: Attempts | None = None
    kl_sequence_interval_nats: tuple[float, float] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def evaluate_policy(
    name: str,
    policy: Policy,
    reference: Reference | None,
    sampler: LocalSampler,
    prompts: Sequence[Prompt],
    score: Rubric,
    proxies: Mapping[str, Rubric],
    config: EvaluateConfig,
    compute: Compute,
    seed: int,
) -> EvaluatedPolicy:
    """Sample, score with the independent rule, and measure KL(policy || reference) on the policy's own samples (k1, unfiltered).

    ``proxies`` are the training rewards by stage name, reported beside the independent score and never part of it.
    """
    groups = ask(policy, sampler, prompts, score, config, seed)
    return summarise(name, policy, reference, groups, score, proxies, config, compute, seed)


def ask(
    policy: Policy, sampler: LocalSampler, prompts: Sequence[Prompt], score: Rubric, config: EvaluateConfig, seed: int
) -> list[RolloutGroup]:
    """The policy's scored answers, in the order of the prompts."""
    sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)
    rollouts = collect(
        prompts, sampler, sampling, policy.format, num_samples=config.samples_per_prompt, run_seed=seed, step=_EVALUATION_STEP
    )
    return score.score(rollouts)


def summarise(
    name: str,
    policy: Policy,
    reference: Reference | None,
    groups: Sequence[RolloutGroup],
    score: Rubric,
    proxies: Mapping[str, Rubric],
    config: EvaluateConfig,
    compute: Compute,
    seed: int,
) -> EvaluatedPolicy:
    """The numbers of scored answers. ``seed`` is of the bootstrap."""
    by_prompt = tuple(map(_prompt_mean, groups))
    finite = np.array([value for value in by_prompt if not math.isnan(value)])
    interval = bootstrap_mean(finite, confidence=config.confidence, seed=seed)
    rollouts = [group.rollouts for group in groups]
    rewarded = {stage: rubric.score(rollouts) for stage, rubric in proxies.items()}
    flat = [rollout for group in rollouts for rollout in group]
    units, kl_interval = None, None
    if reference is not None:
        units, sums = _kl(policy, reference, flat, config.sampling.temperature, compute)
        of_prompts = np.array(sums).reshape(len(groups), -1).mean(1)
        over_prompts = bootstrap_mean(of_prompts, confidence=config.confidence, seed=seed)
        kl_interval = over_prompts.low, over_prompts.high
    return EvaluatedPolicy(
        name=name,
        score=config.score,
        mean=interval.estimate,
        low=interval.low,
        high=interval.high,
        num_prompts=len(finite),
        samples_per_prompt=len(groups[0].rollouts),
        confidence=config.confidence,
        response_length=float(np.mean([len(r.completion.token_ids) for r in flat])),
        truncated_share=float(np.mean([r.truncated for r in flat])),
        kl_token_mean_nats=0.0 if units is None else float(units.token_mean_nats),
        kl_sequence_sum_nats=0.0 if units is None else float(units.seq_sum_mean_nats),
        scores_by_prompt=by_prompt,
        components=_component_means(groups),
        proxies={stage: _mean_score(found) for stage, found in rewarded.items()},
        proxies_by_prompt={stage: tuple(map(_prompt_mean, found)) for stage, found in rewarded.items()},
        samples=tuple(map(_first_sample, groups)),
        attempts=attempts(groups, score.parts[0][2], confidence=config.confidence, seed=seed),
        kl_sequence_interval_nats=kl_interval,
    )


def _first_sample(group: RolloutGroup) -> dict[str, Any]:
    first = group.rollouts[0]
    return {
        "prompt": first.prompt.question,
        "completion": first.text,
        "score": group.scores[0],
        "stop_reason": str(first.completion.stop_reason),
    }


def _prompt_mean(group: RolloutGroup) -> float:
    """Mean score of the answers to one prompt; NaN where none has one."""
    return float(np.nanmean(group.scores)) if not all(map(math.isnan, group.scores)) else math.nan


def gain(before: EvaluatedPolicy, after: EvaluatedPolicy, seed: int) -> GainRecord:
    """Is ``after`` better on the same prompts? Prompts that either side could not score are left out of the pairs."""
    return _gain(before, after, before.scores_by_prompt, after.scores_by_prompt, seed)


def proxy_gain(before: EvaluatedPolicy, after: EvaluatedPolicy, seed: int) -> GainRecord | None:
    """The same of the reward that ``after`` was trained on; None where it has none, or no prompt has both."""
    first, second = before.proxies_by_prompt.get(after.name), after.proxies_by_prompt.get(after.name)
    if first is None or second is None or all(math.isnan(b + a) for b, a in zip(first, second, strict=True)):
        return None
    return _gain(before, after, first, second, seed)


def _gain(before: EvaluatedPolicy, after: EvaluatedPolicy, first: Sequence[float], second: Sequence[float], seed: int) -> GainRecord:
    pairs = np.array([(b, a) for b, a in zip(first, second, strict=True) if not math.isnan(b + a)])
    interval = paired_bootstrap(pairs[:, 0], pairs[:, 1], confidence=after.confidence, seed=seed)
    return GainRecord(before.name, after.name, interval.estimate, interval.low, interval.high, after.confidence, len(pairs))


@torch.no_grad()
def _kl(
    policy: Policy, reference: Reference, rollouts: Sequence[Rollout], temperature: float, compute: Compute
) -> tuple[KLUnits, list[float]]:
    """k1 in its units, and its sum over each answer, nats."""
    examples = [sampled_example(r.prompt_ids, r.completion.token_ids) for r in rollouts]
    batch = pad_examples(examples, policy.format.pad_id).to(compute.device)
    policy_BT = torch.zeros(batch.token_ids_BT.shape, device=compute.device)
    ref_BT = torch.zeros_like(policy_BT)
    for micro in microbatches(batch.attention_mask_BT.sum(-1).tolist(), compute.token_budget):
        part = batch.rows(micro)
        width = part.token_ids_BT.shape[1]
        with compute.autocast():
            policy_BT[micro, :width] = policy.forward_response(part, temperature).logprobs_BT
            ref_BT[micro, :width] = reference.logprobs(part, temperature)
    sums_B = kl_tokens(policy_BT, ref_BT, batch.response_mask_BT, KLEstimator.K1).sum(-1)
    return kl_units(policy_BT, ref_BT, batch.response_mask_BT), sums_B.tolist()


def _component_means(groups: Sequence[Any]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for group in groups:
        for components in group.components:
            for name, value in components.items():
                values.setdefault(name, []).append(value)
    return {name: float(np.nanmean(items)) for name, items in values.items()}


def _mean_score(groups: Sequence[Any]) -> float:
    return float(np.nanmean([score for group in groups for score in group.scores]))
