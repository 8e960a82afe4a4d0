"""The order of the checks and what each rests on, over the online stages of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from tether.algorithms.policy_gradient import OnlineConfig
from tether.backends.compute import resolve_compute
from tether.config import ActorCriticConfig, CriticFreeConfig, RunConfig
from tether.data.batches import TextBatch
from tether.run.preflight import preflight

from . import credit, gradients, passes
from .prepare import Limits, Origin, Round, Stage, build_stage, find_origin, has_spread, round_of, stand_in_scores, texts_of
from .verdict import Check, ConfigVerdict, Outcome, StageVerdict, check_line, stage_heading

__all__ = ["check_config"]

_MADE_UP = "the scores of these answers leave no gradient: made-up ones take their place in score, split and gradient"


def check_config(config: RunConfig, limits: Limits | None = None, say: Callable[[str], object] = lambda line: None) -> ConfigVerdict:
    """Check every online stage of ``config`` on its own model, prompts, sampler and reward, without training and without writing.

    ``say`` gets each line of ``as_text`` as soon as it is known, the last sentence excepted. Raises ConfigError where the run itself would
    refuse to start, and the errors of loading and sampling.
    """
    limits = limits or Limits()
    compute = resolve_compute(config.compute)
    preflight(config)
    stages, skipped = [], []
    with TemporaryDirectory(prefix="tether-selfcheck-") as scratch:
        origin = find_origin(config, compute, Path(scratch)) if config.rl else None
        for name, stage in config.rl.items():
            assert origin is not None
            if isinstance(stage, ActorCriticConfig | CriticFreeConfig):
                stages.append(_check_stage(origin, name, stage, limits, say))
            else:
                skipped.append(f"rl.{name}: {stage.kind} was left out; these checks are of policy gradients (ratios, token rewards)")
    skipped += [f"direct.{name}: left out; these checks are of stages that sample" for name in config.direct]
    for line in skipped:
        say(line)
    return ConfigVerdict(config.name, tuple(stages), tuple(skipped))


def _check_stage(origin: Origin, name: str, config: OnlineConfig, limits: Limits, say: Callable[[str], object]) -> StageVerdict:
    stage = build_stage(origin, config, limits)
    kind = f"{config.kind}{'' if origin.context.config.model.lora is None else ' with LoRA'}"
    dtype = str(origin.context.compute.dtype).removeprefix("torch.")
    budget = stage.learner.config.sampling.max_new_tokens
    title = f"rl.{name}: {kind}, {origin.context.config.model.path}, {dtype}; {len(stage.rows)} answers of at most {budget} tokens"
    work = _Work(stage)
    say(stage_heading(title, (*stage.notes, *work.notes)))
    checks = []
    for check in work.checks():
        say(check_line(check))
        checks.append(check)
    return StageVerdict(f"rl.{name}", title, (*stage.notes, *work.notes), tuple(checks))


@final
class _Work:
    """The checks of one stage. State: what they share, made when first needed; `uneven` moves the weights, so it comes late."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._learner = stage, stage.learner
        alive = has_spread(stage.rows)
        self._rows = list(stage.rows) if alive else stand_in_scores(stage.rows)
        self.notes = () if alive else (_MADE_UP,)

    def checks(self) -> Iterator[Check]:
        """Every check in order; one that rests on a failed one is skipped, so that the cause stands alone."""
        failed: list[str] = []
        for name, rests_on, measure in self._table():
            if blocking := [other for other in rests_on if other in failed]:
                yield Check(name, Outcome.SKIP, f"not measured: it rests on {blocking[0]}, which failed")
                continue
            check = _measured(name, measure)
            if check.outcome is Outcome.FAIL:
                failed.append(name)
            yield check

    def _table(self) -> list[tuple[str, tuple[str, ...], Callable[[], Check]]]:
        learner, stage = self._learner, self._stage
        model = ("tokens", "repeatable")
        return [
            ("tokens", (), lambda: passes.tokens(learner, self._texts, stage.rows, stage.groups)),
            ("repeatable", ("tokens",), lambda: passes.repeatable(learner, self._texts)),
            ("pads", model, lambda: passes.pads(learner, self._texts)),
            ("ratio", model, lambda: passes.ratio(learner, self._round)),
            ("reference", model, lambda: passes.reference(learner, self._round)),
            ("sampler", (*model, "pads"), lambda: passes.sampler(learner, self._round)),
            ("score", ("tokens",), lambda: credit.score(learner, self._round)),
            ("split", (*model, "pads"), lambda: gradients.split(learner, *self._uneven)),
            ("gradient", model, lambda: gradients.gradient(learner, self._uneven[0])),
            ("rewards", (), lambda: credit.rewards(stage.groups, stage.reward_problem)),
        ]

    @cached_property
    def _texts(self) -> TextBatch:
        return texts_of(self._learner, self._stage.rows)

    @cached_property
    def _round(self) -> Round:
        return round_of(self._learner, self._rows, self._stage.weights)

    @cached_property
    def _uneven(self) -> tuple[Round, Round]:
        """A round of unequal rows, forwards and backwards; then the weights are moved."""
        rows = gradients.uneven_rows(self._rows)
        found, backwards = (round_of(self._learner, order, self._stage.weights) for order in (rows, rows[::-1]))
        gradients.move(self._learner, found)
        return found, backwards


def _measured(name: str, measure: Callable[[], Check]) -> Check:
    """The named boundary: a model, reward or sampler at fault may raise anywhere, and then that is what was found."""
    try:
        return measure()
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        advice = "it broke before it could be measured; the run would break at the same place"
        return Check(name, Outcome.FAIL, said[:300], advice=advice)
