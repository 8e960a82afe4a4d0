"""A stage of the user's run, built as the pipeline builds it and small; its rollouts; and what its learner makes of them.

Nothing is written: there is no run folder and no log behind the context that the pipeline's own functions get here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from tether.algorithms.experience import Experience
from tether.algorithms.policy_gradient import OnlineConfig
from tether.backends.compute import Compute
from tether.config import ActorCriticConfig, RunConfig
from tether.data.batches import PolicyBatch, TextBatch
from tether.data.cursor import Cursor
from tether.data.load import load_prompts
from tether.errors import RewardError
from tether.metrics import MetricSums
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.rewards.build import build_rubric
from tether.rewards.learned import LearnedPart
from tether.rewards.rubric import Rubric
from tether.run import pipeline, rl
from tether.run.context import Context, load_scorer, sampler_for
from tether.run.learner import OnlineLearner
from tether.run.made_from import stage_hashes
from tether.run.observer import Observer, Quiet
from tether.run.rows import RolloutRow
from tether.run.scorer import scorer_loader
from tether.text.chat import Text
from tether.types import RolloutGroup

__all__ = [
    "Limits", "Origin", "Round", "Stage", "build_stage", "find_origin", "has_spread", "in_float32", "round_of", "stand_in_scores",
    "texts_of",
]  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How much is drawn: prompts (twice as many with one answer each), answers a prompt (at most), tokens an answer (at most)."""

    num_prompts: int = 4
    samples_per_prompt: int = 4
    max_new_tokens: int = 32


@dataclass(frozen=True)
class Origin:
    """What the online stages start from: finished stages of the run's folder where there are any, read and never written."""

    context: Context
    start: Path
    reward_model: Path | None
    backbone: Path | None
    scratch: Path
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """A stage before its first update. ``groups``: as its rubric scored them, or none and ``reward_problem``; ``rows``: what is trained."""

    learner: OnlineLearner
    groups: tuple[RolloutGroup, ...]
    rows: tuple[RolloutRow, ...]
    weights: tuple[float, ...]
    reward_problem: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """What the learner knows before its first optimiser step."""

    rows: tuple[RolloutRow, ...]
    experience: Experience
    batch: PolicyBatch
    plan: Any


# -- the start ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bare:
    """The part of a Context that building a stage reads."""

    config: RunConfig
    compute: Compute
    observer: Observer

    def say_once(self, text: str) -> None:
        """Nothing: a check has no log."""


def find_origin(config: RunConfig, compute: Compute, scratch: Path) -> Origin:
    """The start of the online stages of ``config``. Raises ModelError for a model that is not there."""
    context = cast(Context, _Bare(config, compute, Quiet()))
    notes: list[str] = []
    start, reward_model, backbone = _finished(config, "sft"), _finished(config, "reward_model"), None
    if start is None:
        start = resolve_model(config.model.path, local_files_only=config.model.local_files_only)
        if config.sft is not None:
            notes.append(f"the sft stage has not run, so the model before it is checked ({config.model.path})")
    if config.reward_model is not None and reward_model is None:
        path = config.reward_model.path
        backbone = start if path is None else resolve_model(path, local_files_only=config.model.local_files_only)
    return Origin(context, start, reward_model, backbone, scratch, tuple(notes))


def _finished(config: RunConfig, stage: str) -> Path | None:
    """The folder of a stage that this very configuration has finished, else None."""
    folder = config.folder / stage
    with suppress(OSError, ValueError, KeyError):
        record = json.loads((folder / "stage.json").read_text(encoding="utf-8"))
        if record["made_from"] == stage_hashes(config)[stage]:
            return folder
    return None


# -- the stage ---------------------------------------------------------------------------------------------------------------


def build_stage(origin: Origin, config: OnlineConfig, limits: Limits) -> Stage:
    """Learner, sampler and rubric of a stage as the pipeline makes them, and a few rollouts drawn and scored by them."""
    small = _small(config, limits)
    notes = list(origin.notes)
    learner = pipeline._learner(origin.context, small, origin.start, _model_of_the_critic(origin, small, notes))
    assert isinstance(learner, OnlineLearner), f"{small.kind} is trained by a {type(learner).__name__}"
    learner.old_from_update = False  # the pass before the update is what the checks compare with
    rubric = _rubric(origin, small, notes)
    prompts = load_prompts(small.prompts)
    if small.max_prompt_tokens is not None:
        prompts = pipeline._within_limit(origin.context, prompts, small, origin.start, small.prompts.path)
    seed = origin.context.config.seed
    parts = rl.OnlineRun(learner, sampler_for(origin.context, learner.policy, small.sampling.max_rows), rubric, prompts, seed)
    groups, rows, problem, weights = _rollouts(parts)
    return Stage(learner, tuple(groups), tuple(rows), weights, problem, tuple(notes))


def _small(config: OnlineConfig, limits: Limits) -> OnlineConfig:
    budget = min(config.sampling.max_new_tokens, limits.max_new_tokens)
    prompts = limits.num_prompts * (1 if config.samples_per_prompt > 1 else 2)
    return config.model_copy(
        update={
            "sampling": config.sampling.model_copy(update={"max_new_tokens": budget}),
            "samples_per_prompt": min(config.samples_per_prompt, limits.samples_per_prompt),
            "prompts_per_step": prompts,
            "dynamic_sampling": None,
        }
    )


def _model_of_the_critic(origin: Origin, config: OnlineConfig, notes: list[str]) -> Path | None:
    if not isinstance(config, ActorCriticConfig) or config.critic != "reward_model" or origin.reward_model is not None:
        return origin.reward_model
    assert origin.backbone is not None
    folder = origin.scratch / "reward_model"
    if not folder.exists():
        RewardModel.from_base(origin.backbone, seed=origin.context.config.seed).save(folder)
    notes.append("the critic's reward model is not trained yet: one with an untrained head stands in")
    return folder


class _StandInScorer:
    """In place of a reward model that a stage of the run has yet to train: a number in [-1, 1) that depends on the text alone."""

    score_offset = 0.0

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]:
        """One number a completion."""
        return [_number(repr(completion)) for completion in completions]


def _rubric(origin: Origin, config: OnlineConfig, notes: list[str]) -> Rubric:
    scorer = load_scorer(origin.context, origin.reward_model)
    if scorer is None and any(part.kind == "learned" and "path" not in part.params for part in config.rewards):
        notes.append("the reward model is not trained yet: made-up scores between -1 and 1 stand in for it")
    rubric = build_rubric(config.rewards, reward_model=scorer or _StandInScorer(), load=scorer_loader(origin.context.compute))
    return rl._with_overlong_part(rubric, config)


def _rollouts(parts: rl.OnlineRun) -> tuple[list[RolloutGroup], list[RolloutRow], str, tuple[float, ...]]:
    """The first groups that the run itself would draw, their rows, why they could not be scored if so, and the weights of the parts."""
    problem = ""
    try:
        groups, rows = _scored(parts)
    except RewardError as error:
        problem = str(error)
        groups, rows = [], []
    if not rows:
        parts = replace(parts, rubric=Rubric([("stand-in", 1.0, LearnedPart(_StandInScorer()))]))
        _, rows = _scored(parts)
    return groups, rows, problem, tuple(weight for _, weight, _ in parts.rubric.parts)


def _scored(parts: rl.OnlineRun) -> tuple[list[RolloutGroup], list[RolloutRow]]:
    cursor, metrics = Cursor(len(parts.prompts), parts.seed), MetricSums()
    groups = rl._groups(parts, cursor, 1, metrics)
    return groups, rl._rows(parts, groups, rl._greedy_scores(parts, groups, 1, metrics))


def stand_in_scores(rows: Sequence[RolloutRow]) -> list[RolloutRow]:
    """The same answers with made-up scores that differ: for checks that equal scores would leave empty."""
    return [
        replace(
            row,
            score=_number(f"{index} {row.response_ids}"),
            baseline_score=None if row.baseline_score is None else 0.0,
            parts=tuple(_number(f"{index} {part} {row.response_ids}") for part in range(len(row.parts))),
        )
        for index, row in enumerate(rows)
    ]


def _number(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little") / 2**31 - 1


# -- what the learner makes of rows ------------------------------------------------------------------------------------------


class _HeldError(Exception):
    """Leaves the learner's ``learn`` where it is to be looked at; never seen outside."""


def texts_of(learner: OnlineLearner, rows: Sequence[RolloutRow]) -> TextBatch:
    """The token rows that ``learner.learn`` makes of ``rows``."""
    seen: list[TextBatch] = []

    def stop(_rows: object, texts: TextBatch, *_rest: object) -> Experience:
        seen.append(texts)
        raise _HeldError

    with _in_place_of(learner, "_experience", stop), suppress(_HeldError):
        learner.learn(rows)
    return seen[0]


def round_of(learner: OnlineLearner, rows: Sequence[RolloutRow], weights: Sequence[float]) -> Round:
    """All that ``learner.learn`` knows when its first optimiser step is due; no step is taken."""
    experiences: list[Experience] = []
    held: list[tuple[PolicyBatch, Any]] = []
    honest = learner._experience

    def keep(*arguments: Any) -> Experience:
        experiences.append(honest(*arguments))
        return experiences[-1]

    def stop(batch: PolicyBatch, plan: Any, *_rest: object) -> None:
        held.append((batch, plan))
        raise _HeldError

    with _in_place_of(learner, "_experience", keep), _in_place_of(learner, "_update", stop), suppress(_HeldError):
        learner.learn(rows, weights if rows[0].parts else ())
    batch, plan = held[0]
    return Round(tuple(rows), experiences[0], batch, plan)


@contextmanager
def _in_place_of(learner: OnlineLearner, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """``function`` instead of a method of this one learner, for the length of the block."""
    setattr(learner, name, function)
    try:
        yield
    finally:
        delattr(learner, name)


@contextmanager
def in_float32(learner: OnlineLearner) -> Iterator[None]:
    """Matrix products of the learner in full precision, for the length of the block."""
    compute = learner.compute
    learner.compute = replace(compute, dtype=torch.float32)
    try:
        yield
    finally:
        learner.compute = compute


def has_spread(rows: Sequence[RolloutRow]) -> bool:
    """True when some group (or, where every group is one answer, the round) has two scores that differ."""
    groups: dict[str, set[float]] = {}
    for row in rows:
        groups.setdefault(row.group, set()).add(row.score)
    alone = len(groups) == len(rows)
    scores = [{row.score for row in rows}] if alone else list(groups.values())
    return any(len(found) > 1 and math.isfinite(sum(found)) for found in scores)
