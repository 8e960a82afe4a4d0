"""The online loop: a table of contents of one step. Collect -> score -> (filter) -> learn -> publish -> record.

With ``rollouts_ahead`` the answers of a step were collected while the step before was learned from (``run.ahead``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from tether.config import CriticFreeConfig, PolicyGradientConfig, RolloutConfig
from tether.data.cursor import Cursor
from tether.maths.advantages import dynamic_sampling
from tether.maths.text_stats import ngram_stats
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.models.snapshot import Snapshot
from tether.rewards.early import EarlyScores
from tether.rewards.length import OverlongPart
from tether.rewards.rubric import Rubric
from tether.rollout.proof import WeightProof
from tether.rollout.rollouter import collect
from tether.rollout.sampler import RestingSampler, Sampler
from tether.run.ahead import AnswersAhead, Collected, compare_with_snapshot
from tether.run.checks.watch import NO_WATCH, Watch
from tether.run.keeper import NO_KEEPER, Keeper, Plain
from tether.run.recorder import Recorder
from tether.run.rows import RolloutRow
from tether.state import State
from tether.types import Prompt, Rollout, RolloutGroup, Sampling

__all__ = ["Learner", "OnlineRun", "rl", "sampling_of"]

_SAMPLES_LOGGED = 3


class Learner(Protocol):
    """The half of a step that trains: a policy-gradient algorithm, or online DPO."""

    @property
    def policy(self) -> Policy: ...
    @property
    def config(self) -> RolloutConfig: ...
    @property
    def beta(self) -> float: ...

    def learn(self, rows: Sequence[RolloutRow], part_weights: Sequence[float] = ()) -> dict[str, float]: ...
    def skip(self, reason: str) -> dict[str, float]: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


@dataclass(frozen=True)
class OnlineRun:
    """The parts of an online stage, already built. ``proof``: what every publish to the sampler is checked by. ``snapshot``: the weights
    that answers are drawn by where they are drawn ahead; the sampler must then read no others."""

    learner: Learner
    sampler: Sampler
    rubric: Rubric
    prompts: Sequence[Prompt]
    seed: int
    proof: WeightProof | None = None
    snapshot: Snapshot | None = None


def sampling_of(config: RolloutConfig) -> Sampling:
    """The sampling contract of training: untruncated, at the temperature that the trainer applies too."""
    return Sampling(config.sampling.max_new_tokens, config.sampling.temperature)


def rl(parts: OnlineRun, recorder: Recorder, keeper: Keeper = NO_KEEPER, watch: Watch = NO_WATCH) -> dict[str, float]:
    """Run all steps of ``parts.learner.config``; returns the metrics of the last one. The policy is trained in place."""
    config = parts.learner.config
    parts = replace(parts, rubric=_with_overlong_part(parts.rubric, config))
    cursor = Cursor(len(parts.prompts), parts.seed)
    weights = [weight for _, weight, _ in parts.rubric.parts]
    with AnswersAhead(lambda step: _collected(parts, cursor, step), config.rollouts_ahead, config.steps) as answers:
        stateful = {"learner": parts.learner, "cursor": Plain(cursor.state, cursor.go_to), "answers_ahead": answers, "metrics": recorder}
        done = keeper.attach({**stateful, **watch.parts()})
        if done:
            parts.sampler.refresh(done)
        if parts.proof is not None:
            parts.proof.check(done)
        watch.start(done)
        for step in range(done + 1, config.steps + 1):
            started = time.perf_counter()
            collected = answers.take(step)
            rows, metrics = collected.rows, collected.metrics
            if rows and not config.rollouts_ahead and isinstance(parts.sampler, RestingSampler):
                parts.sampler.rest()
            metrics.update(parts.learner.learn(rows, weights) if rows else parts.learner.skip(_no_score(parts.rubric, metrics)))
            metrics.update(answers.settle())
            parts.sampler.refresh(step)
            if parts.proof is not None:
                metrics.add("publish_gap", parts.proof.check(step))
            tokens = sum(len(row.query_ids) + len(row.response_ids) for row in rows)
            metrics.add("tokens_per_second", tokens / (time.perf_counter() - started))
            recorder.step(step, metrics.means())
            recorder.samples(step, collected.samples)
            watch.after_step(step, recorder.last)
            keeper.after_step(step)
    return recorder.last


def _collected(parts: OnlineRun, cursor: Cursor, step: int) -> Collected:
    """Collect and score: the answers of ``step`` by the weights that the sampler holds."""
    metrics = MetricSums()
    groups = _groups(parts, cursor, step, metrics)
    rows = _rows(parts, groups, _greedy_scores(parts, groups, step, metrics))
    if parts.snapshot is not None:
        compare_with_snapshot(metrics, rows, parts.snapshot, sampling_of(parts.learner.config).temperature)
    return Collected(rows, _sample_rows(groups), metrics)


def _no_score(rubric: Rubric, metrics: MetricSums) -> str:
    """Why there is nothing to learn from. None is no fault of a reward, so the run goes on, as it does where some answers have no score."""
    names = ", ".join(repr(name) for name, _, part in rubric.parts if not isinstance(part, OverlongPart))
    failed = metrics.means()["failure_share"]
    return (
        f"no rollout of the step has a finite score: reward {names} said of every answer that it does not apply (None or NaN)"
        f"{f' or failed ({failed:.0%})' if failed else ''}; to score an answer, return a number"
    )


def _with_overlong_part(rubric: Rubric, config: RolloutConfig) -> Rubric:
    """DAPO's soft length penalty as one more part, where the configuration asks for it."""
    if not isinstance(config, PolicyGradientConfig) or config.overlong_share is None:
        return rubric
    budget = config.sampling.max_new_tokens
    part = OverlongPart(budget, max(1, round(config.overlong_share * budget)))
    return Rubric([*rubric.parts, (part.name, 1.0, part)])


def _groups(parts: OnlineRun, cursor: Cursor, step: int, metrics: MetricSums) -> list[RolloutGroup]:
    """The scored groups of a step. With dynamic sampling (DAPO eq. 11), only those with spread in their rewards: further batches of
    prompts are asked until ``prompts_per_step`` groups are alive or the budget of batches is spent. If none is alive, the last batch
    stays, so that a tether in the loss still acts."""
    config = parts.learner.config
    dynamic = config.dynamic_sampling if isinstance(config, PolicyGradientConfig) else None
    kept: list[RolloutGroup] = []
    batch: list[RolloutGroup] = []
    for number in range(dynamic.max_batches if dynamic else 1):
        prompts = [parts.prompts[index] for index in cursor.next(config.prompts_per_step)]
        batch = _collect_and_score(parts, prompts, step, metrics, batch=number)
        if dynamic is None:
            return batch
        alive_P = dynamic_sampling(torch.tensor([group.scores for group in batch], dtype=torch.float64)).keep_P
        kept += [group for group, alive in zip(batch, alive_P.tolist(), strict=True) if alive]
        metrics.add("filtered_group_share", float(len(batch) - int(alive_P.sum())), float(len(batch)))
        metrics.add("sampled_batches", 1.0)
        if len(kept) >= config.prompts_per_step:
            break
    return kept[: config.prompts_per_step] or batch


def _collect_and_score(
    parts: OnlineRun, prompts: Sequence[Prompt], step: int, metrics: MetricSums, *, batch: int = 0
) -> list[RolloutGroup]:
    """Parts that wait for something outside of this process are asked as answers finish, the others afterwards; the scores are the same."""
    config = parts.learner.config
    with EarlyScores(parts.rubric) as early:
        started = time.perf_counter()
        rollouts = collect(
            prompts,
            parts.sampler,
            sampling_of(config),
            parts.learner.policy.format,
            num_samples=config.samples_per_prompt,
            run_seed=parts.seed,
            step=step,
            batch=batch,
            arrived=early.hand_over,
        )
        metrics.add("generate_seconds", time.perf_counter() - started)
        hidden_s = early.busy_s()
        started = time.perf_counter()
        groups = _score(parts.rubric, rollouts, early)
        metrics.add("score_seconds", hidden_s + time.perf_counter() - started)
    if early.names:
        metrics.add("score_hidden_seconds", hidden_s)
    _describe_rollouts(metrics, groups, step)
    return groups


def _score(rubric: Rubric, rollouts: Sequence[Sequence[Rollout]], early: EarlyScores) -> list[RolloutGroup]:
    """The rubric's scores. A length penalty is no verdict: where every other part is silent a rollout stays unscorable, never a 0."""
    groups = rubric.score(rollouts, early=early)
    judges = [name for name, _, part in rubric.parts if not isinstance(part, OverlongPart)]
    if len(judges) in {0, len(rubric.parts)}:
        return groups

    def judged(score: float, components: Mapping[str, float]) -> float:
        return math.nan if all(math.isnan(components.get(name, math.nan)) for name in judges) else score

    return [replace(group, scores=tuple(map(judged, group.scores, group.components))) for group in groups]


def _greedy_scores(parts: OnlineRun, groups: Sequence[RolloutGroup], step: int, metrics: MetricSums) -> dict[str, float] | None:
    """Score of the most likely answer to each prompt, by prompt id, where the estimator asks for it (ReMax)."""
    config = parts.learner.config
    if not isinstance(config, CriticFreeConfig) or config.advantage != "remax":
        return None
    prompts = list({group.rollouts[0].prompt.prompt_id: group.rollouts[0].prompt for group in groups}.values())
    greedy = replace(sampling_of(config), temperature=0.0)
    format = parts.learner.policy.format
    with EarlyScores(parts.rubric) as early:
        answers = collect(
            prompts, parts.sampler, greedy, format, num_samples=1, run_seed=parts.seed, step=step, arrived=early.hand_over
        )  # fmt: skip
        groups = _score(parts.rubric, answers, early)
    scores = {group.rollouts[0].prompt.prompt_id: group.scores[0] for group in groups}
    scored = [score for score in scores.values() if not math.isnan(score)]
    metrics.add("baseline_reward", sum(scored), len(scored))
    return scores


def _rows(parts: OnlineRun, groups: Sequence[RolloutGroup], greedy: dict[str, float] | None) -> list[RolloutRow]:
    """The scorable rollouts as rows; a rollout without a score leaves the gradient, not the count of failures."""
    names = [name for name, _, _ in parts.rubric.parts]
    return [
        RolloutRow(
            rollout.prompt_ids,
            rollout.completion.token_ids,
            rollout.completion.sampler_logprobs,
            score,
            rollout.prompt.prompt_id,
            not rollout.truncated,
            None if greedy is None else greedy[rollout.prompt.prompt_id],
            tuple(components.get(name, math.nan) for name in names),
        )
        for group in groups
        for rollout, score, components in zip(group.rollouts, group.scores, group.components, strict=True)
        if not math.isnan(score)
    ]


def _describe_rollouts(metrics: MetricSums, groups: Sequence[RolloutGroup], step: int) -> None:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
    scores = np.array([score for group in groups for score in group.scores])
    scored = scores[~np.isnan(scores)]
    metrics.add("reward", float(scored.sum()), len(scored))
    metrics.add("failure_share", sum(failure is not None for group in groups for failure in group.failures), len(rollouts))
    metrics.add("unscored_share", len(scores) - len(scored), len(scores))
    metrics.add("response_length", sum(lengths), len(lengths))
    metrics.add("response_length_max", max(lengths))
    versions = [version for rollout in rollouts for version in rollout.completion.versions]
    metrics.add("staleness", sum(step - 1 - version for version in versions), len(versions))
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
