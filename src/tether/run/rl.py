"""The online loop: a table of contents of one step. Collect -> score -> learn -> publish -> record."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tether.algorithms.policy_gradient import OnlineConfig
from tether.data.cursor import Cursor
from tether.maths.text_stats import ngram_stats
from tether.metrics import MetricSums
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.rollout.rollouter import collect
from tether.run.learner import OnlineLearner, RolloutRow
from tether.run.recorder import Recorder
from tether.types import Prompt, RolloutGroup, Sampling

__all__ = ["OnlineRun", "rl", "sampling_of"]

_SAMPLES_LOGGED = 3


@dataclass(frozen=True)
class OnlineRun:
    """The parts of an online stage, already built."""

    learner: OnlineLearner
    sampler: LocalSampler
    rubric: Rubric
    prompts: Sequence[Prompt]
    seed: int


def sampling_of(config: OnlineConfig) -> Sampling:
    """The sampling contract of training: untruncated, at the temperature that the trainer applies too."""
    return Sampling(config.sampling.max_new_tokens, config.sampling.temperature)


def rl(parts: OnlineRun, recorder: Recorder) -> dict[str, float]:
    """Run all steps of ``parts.learner.config``; returns the metrics of the last one. The policy is trained in place."""
    config = parts.learner.config
    cursor = Cursor(len(parts.prompts), parts.seed)
    last: dict[str, float] = {}
    for step in range(1, config.steps + 1):
        started = time.perf_counter()
        metrics = MetricSums()
        groups = _collect_and_score(parts, [parts.prompts[i] for i in cursor.next(config.prompts_per_step)], step, metrics)
        rows = _rows(groups)
        metrics.update(parts.learner.learn(rows))
        parts.sampler.refresh(step)
        tokens = sum(len(row.query_ids) + len(row.response_ids) for row in rows)
        metrics.add("tokens_per_second", tokens / (time.perf_counter() - started))
        last = metrics.means()
        recorder.step(step, last)
        recorder.samples(step, _sample_rows(groups))
    return last


def _collect_and_score(parts: OnlineRun, prompts: Sequence[Prompt], step: int, metrics: MetricSums) -> list[RolloutGroup]:
    config = parts.learner.config
    started = time.perf_counter()
    rollouts = collect(
        prompts,
        parts.sampler,
        sampling_of(config),
        parts.learner.policy.format,
        num_samples=config.samples_per_prompt,
        run_seed=parts.seed,
        step=step,
    )
    metrics.add("generate_seconds", time.perf_counter() - started)
    started = time.perf_counter()
    groups = parts.rubric.score(rollouts)
    metrics.add("score_seconds", time.perf_counter() - started)
    _describe_rollouts(metrics, groups)
    return groups


def _rows(groups: Sequence[RolloutGroup]) -> list[RolloutRow]:
    """The scorable rollouts as rows; a rollout without a score leaves the gradient, not the count of failures."""
    return [
        RolloutRow(
            rollout.prompt_ids,
            rollout.completion.token_ids,
            rollout.completion.sampler_logprobs,
            score,
            rollout.prompt.prompt_id,
            not rollout.truncated,
        )
        for group in groups
        for rollout, score in zip(group.rollouts, group.scores, strict=True)
        if not math.isnan(score)
    ]


def _describe_rollouts(metrics: MetricSums, groups: Sequence[RolloutGroup]) -> None:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
    scores = np.array([score for group in groups for score in group.scores])
    scored = scores[~np.isnan(scores)]
    metrics.add("reward", float(scored.sum()), len(scored))
    metrics.add("failure_share", sum(failure is not None for group in groups for failure in group.failures), len(rollouts))
    metrics.add("unscored_share", len(scores) - len(scored), len(scores))
    metrics.add("response_length", sum(lengths), len(lengths))
    metrics.add("response_length_max", max(lengths))
    metrics.add("truncated_share", sum(rollout.truncated for rollout in rollouts), len(rollouts))
    metrics.add("distinct_share", len({rollout.text for rollout in rollouts}), len(rollouts))
    metrics.add("repeat_share", sum(ngram_stats([list(r.completion.token_ids) for r in rollouts]).repeat_share_B), len(rollouts))
    for group in groups:
        for components in group.components:
            for name, value in components.items():
                if not math.isnan(value):
                    metrics.add(f"reward/{name}", value)


def _sample_rows(groups: Sequence[RolloutGroup]) -> list[dict[str, object]]:
    return [
        {
            "prompt": group.rollouts[0].prompt.question,
            "completion": group.rollouts[0].text,
            "reward": group.scores[0],
            "components": dict(group.components[0]),
            "stop_reason": str(group.rollouts[0].completion.stop_reason),
        }
        for group in groups[:_SAMPLES_LOGGED]
    ]
