"""Looks when due, judges, writes what was found, and pauses. It reads the policy and never touches it, nor beta.

A loop calls ``start`` before its first step and ``after_step`` once per step, after the step was recorded and before it is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from tether.errors import Paused, RunError
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.run.checks.evidence import ADVICE, Alarm, acknowledged, save_evidence
from tether.run.checks.look import Look, bands
from tether.run.checks.panel import Panel
from tether.run.checks.rules import Finding, Plan, Rule, Seen, StepRule
from tether.run.recorder import Recorder
from tether.state import State

__all__ = ["NO_WATCH", "NoWatch", "StageWatch", "Watch", "due"]

_EXAMPLES = 3  # answers in a panel event


class Stateful(Protocol):
    """As a keeper takes it."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


class Watch(Protocol):
    """What a loop needs of it."""

    def parts(self) -> Mapping[str, Stateful]: ...
    def start(self, done: int) -> None: ...
    def after_step(self, step: int, metrics: Mapping[str, float]) -> None: ...


class NoWatch:
    """Nothing is checked."""

    def parts(self) -> Mapping[str, Stateful]:
        """No state."""
        return {}

    def start(self, done: int) -> None:
        """Nothing."""

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""


NO_WATCH = NoWatch()


class Subject(Protocol):
    """Who is watched: a learner."""

    @property
    def policy(self) -> Policy: ...
    @property
    def reference(self) -> Reference: ...


def due(step: int, every: int, num_steps: int) -> bool:
    """Every so many steps, and after the last one."""
    return step % every == 0 or step == num_steps


@dataclass
class StageWatch:
    """The checks of one online stage.

    ``folder``: RUN/alarms. ``save``: writes a checkpoint of a step that is kept, and says where. State: the baseline, the best look, the
    last numbers of the watched metrics, and the rules that tripped.
    """

    panel: Panel
    subject: Subject
    rules: Sequence[Rule]
    plan: Plan
    every: int
    recorder: Recorder
    folder: Path
    on_alarm: Literal["pause", "warn"]
    save: Callable[[int], Path | None]
    _baseline: Look | None = None
    _best: Look | None = None
    _training: dict[str, list[float]] = field(default_factory=dict)
    _tripped: dict[str, str] = field(default_factory=dict)

    def parts(self) -> Mapping[str, Stateful]:
        """Its own state goes into the checkpoints of the loop."""
        return {"watch": self}

    def start(self, done: int) -> None:
        """The look before step 1; after a resume nothing, unless the stage stands at an alarm that nobody has acknowledged."""
        if done == 0:
            self._baseline = self._best = look = self.panel.look(0, self.subject.policy, self.subject.reference)
            self._record(look)
            self._say_what_cannot_be_seen(look)
            return
        waiting = [text for rule, text in self._tripped.items() if rule not in self._seen_by_a_person()]
        if waiting and self.on_alarm == "pause":
            raise Paused(waiting, str(self.folder.parent))

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look if due, judge, and write what was found. Raises Paused where the run is set to pause."""
        self._note(metrics)
        assert self._baseline is not None
        assert self._best is not None
        look = None
        if due(step, self.every, self.plan.num_steps):
            look = self.panel.look(step, self.subject.policy, self.subject.reference)
            self._record(look)
        seen = Seen(self._baseline, self._best, look, self._training)
        quiet = self._seen_by_a_person() | self._tripped.keys()
        judged = [(rule, rule.judge(seen, self.plan)) for rule in self.rules if rule.name not in quiet]
        findings = [(finding, rule.rate(self.plan)) for rule, finding in judged if finding is not None]
        if look is not None and look.values["score"] > self._best.values["score"]:
            self._best = look
        if findings:
            self._alarm(step, findings, look or self.panel.look(step, self.subject.policy, self.subject.reference), metrics)

    def state(self) -> State:
        """Looks as JSON, numbers as text where JSON has none."""
        return State(
            values={
                "panel": self.panel.identity(),
                "baseline": None if self._baseline is None else self._baseline.as_dict(),
                "best": None if self._best is None or self._best is self._baseline else self._best.as_dict(),
                "training": {name: [_text(v) for v in values] for name, values in self._training.items()},
                "tripped": dict(self._tripped),
            }
        )

    def restore(self, state: State) -> None:
        """Go on from ``state``. Raises RunError where the panel is another one than that of the baseline."""
        kept = state.values
        if kept["panel"] != self.panel.identity():
            raise RunError(
                "the panel of [checks] (prompts, samples, score, reward or sampling) is not the one that the look before step 1 was taken "
                "with, so nothing could be compared. Put the settings back, or start over with `tether run CONFIG --fresh`"
            )
        self._baseline = None if kept["baseline"] is None else Look.from_dict(kept["baseline"])
        self._best = self._baseline if kept["best"] is None else Look.from_dict(kept["best"])
        self._training = {name: [float(v) for v in values] for name, values in kept["training"].items()}
        self._tripped = dict(kept["tripped"])

    # ------------------------------------------------------------------------------------------------------------------------

    def _say_what_cannot_be_seen(self, look: Look) -> None:
        """An independent score that is 0 everywhere cannot fall (it counts what is right): no divergence is found before it rises."""
        scores = look.per_prompt.get("score", ())
        if any(rule.name == "divergence" for rule in self.rules) and scores and not any(scores):
            self.recorder.warning(
                "checks", 0, "the independent score of the start is 0 on every prompt of the panel: as long as that is so, `divergence` "
                "has nothing that could fall. Choose prompts or a score on which the start is not always wrong",
            )  # fmt: skip

    def _seen_by_a_person(self) -> frozenset[str]:
        return acknowledged(self.folder, self.recorder.stage)

    def _note(self, metrics: Mapping[str, float]) -> None:
        """Keep the last numbers of what step rules read; a step without the number ends a run of steps."""
        for rule in self.rules:
            if isinstance(rule, StepRule):
                values = [*self._training.get(rule.metric, ()), metrics.get(rule.metric, math.nan)]
                self._training[rule.metric] = values[-rule.window(self.plan) :]

    def _record(self, look: Look) -> None:
        examples: list[dict[str, Any]] = look.as_dict()["answers"][:: self.panel.num_samples][:_EXAMPLES]
        told = bands(look) if look.step == 0 else {}
        self.recorder.panel(look.step, look.without_texts(), {name: list(band) for name, band in told.items()}, examples)

    def _alarm(self, step: int, findings: Sequence[tuple[Finding, float]], look: Look, metrics: Mapping[str, float]) -> None:
        told: list[str] = []
        for finding, rate in findings:
            alarm = Alarm(self.recorder.stage, step, finding, rate, metrics, look)
            where = self._evidence(alarm)
            text = (
                f"{self.recorder.stage}, step {step}, {finding.rule}: {finding.sentence}. By chance: at most {rate:.2g} per stage. "
                f"{ADVICE[finding.rule]} {where}"
            )
            self._tripped[finding.rule] = text
            told.append(text)
            self.recorder.alarm(step, {**alarm.as_dict(), "folder": f"alarms/{alarm.folder}", "action": self.on_alarm}, text)
        self.save(step)
        if self.on_alarm == "pause":
            raise Paused(told, str(self.folder.parent))

    def _evidence(self, alarm: Alarm) -> str:
        """Where the evidence is. A disk that takes none is no reason to lose the alarm."""
        try:
            return f"Evidence: {save_evidence(self.folder, alarm)}"
        except OSError as error:
            return f"The evidence could not be written ({error})"


def _text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
