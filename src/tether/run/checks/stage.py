"""The watch of an online stage from the settings of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tether.config import CheckLevelsConfig, ChecksConfig, DataSource, EvaluateConfig, RolloutConfig, RunConfig
from tether.data.load import load_prompts
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.rewards.build import build_part
from tether.rewards.rubric import RewardPart, Rubric
from tether.rollout.sampler import Sampler
from tether.run.checks.panel import Panel
from tether.run.checks.rules import Direction, Divergence, Drift, NegativeKL, Plan, Rule, StepRule
from tether.run.checks.watch import NO_WATCH, StageWatch, Watch
from tether.run.context import Context
from tether.run.keeper import StageKeeper
from tether.run.recorder import Recorder
from tether.types import Sampling

__all__ = ["panel_prompts", "panel_score", "plan_of", "rules_of", "watch_for"]


class WatchedLearner(Protocol):
    """What is read of a learner."""

    @property
    def policy(self) -> Policy: ...
    @property
    def reference(self) -> Reference: ...
    @property
    def config(self) -> RolloutConfig: ...


def watch_for(
    context: Context, learner: WatchedLearner, sampler: Sampler, proxy: Rubric, recorder: Recorder, keeper: StageKeeper
) -> Watch:
    """The checks of the stage that ``recorder`` records; none without a [checks] section."""
    config, checks = context.config, context.config.checks
    if checks is None:
        return NO_WATCH
    drawn = learner.config.sampling
    score = panel_score(checks, config.evaluate)
    panel = Panel(
        prompts=load_prompts(panel_prompts(config, checks))[: checks.num_prompts],
        num_samples=checks.samples_per_prompt,
        sampling=Sampling(drawn.max_new_tokens, drawn.temperature),
        sampler=sampler,
        proxy=proxy,
        score=None if score is None else Rubric([(score.name, 1.0, score)]),
        compute=context.compute,
        seed=config.seed,
    )
    return StageWatch(
        panel=panel,
        subject=learner,
        rules=tuple(rules_of(checks.levels)),
        plan=plan_of(checks, learner.config.steps, config.seed),
        every=checks.every,
        recorder=recorder,
        folder=context.folder.path / "alarms",
        on_alarm=checks.on_alarm,
        save=lambda step: keeper.save_flagged(step, "alert"),
    )


def panel_prompts(config: RunConfig, checks: ChecksConfig) -> DataSource:
    """Those of the section, else those of [evaluate]; the configuration saw to it that there are some."""
    if checks.prompts is not None:
        return checks.prompts
    assert config.evaluate is not None
    return config.evaluate.prompts


def panel_score(checks: ChecksConfig, evaluate: EvaluateConfig | None) -> RewardPart | None:
    """The independent score: that of the section, else that of [evaluate]; None where there is neither."""
    if checks.score is not None:
        return build_part(checks.score, dict(checks.score_params))
    return None if evaluate is None else build_part(evaluate.score, dict(evaluate.score_params))


def plan_of(checks: ChecksConfig, num_steps: int, seed: int) -> Plan:
    """The false-alarm rate of the stage, shared evenly by its rules; looks every so many steps and after the last."""
    rules = list(rules_of(checks.levels))
    return Plan(checks.false_alarms / max(1, len(rules)), -(-num_steps // checks.every), num_steps, seed)


def rules_of(levels: CheckLevelsConfig) -> Iterator[Rule]:
    """The rules that are not off."""
    if levels.divergence is not None:
        yield Divergence(levels.divergence)
    if levels.too_long is not None:
        yield Drift("too_long", "length", Direction.ABOVE, scale=levels.too_long)
    if levels.too_short is not None:
        yield Drift("too_short", "length", Direction.BELOW, scale=levels.too_short)
    if levels.entropy is not None:
        yield Drift("entropy", "entropy", Direction.BELOW, scale=levels.entropy)
    if levels.distinct is not None:
        yield Drift("distinct", "distinct", Direction.BELOW, scale=levels.distinct)
    if levels.repetition is not None:
        yield Drift("repetition", "repeat", Direction.ABOVE, shift=levels.repetition)
    if levels.negative_kl is not None:
        yield NegativeKL(levels.negative_kl)
    if levels.dead_groups is not None:
        yield StepRule("dead_groups", "dead_group_share", Direction.ABOVE, levels.dead_groups)
    if levels.explained_variance is not None:
        yield StepRule("value_failure", "explained_variance", Direction.BELOW, levels.explained_variance)
    if levels.sampler_gap is not None:
        yield StepRule("sampler_mismatch", "sampler_gap_mean", Direction.ABOVE, levels.sampler_gap)
