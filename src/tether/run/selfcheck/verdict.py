"""What the checks of a run say, as values, as text and as JSON. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Check", "ConfigVerdict", "Outcome", "StageVerdict", "as_json", "as_text", "check_line", "judged"]


class Outcome(StrEnum):
    """WARN: the run computes what it says, and something about it deserves a look. SKIP: a check that it rests on failed."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True)
class Check:
    """One claim about a run. ``said``: what was measured, in words; ``value`` and ``bound``: the figure that decided, and its limit.

    ``advice``: what a failure usually means and what to do; empty where there is nothing to do.
    """

    name: str
    outcome: Outcome
    said: str
    value: float | None = None
    bound: float | None = None
    advice: str = ""


@dataclass(frozen=True)
class StageVerdict:
    """All checks of one online stage. ``notes``: what was put in place of something that does not exist yet."""

    stage: str
    title: str
    notes: tuple[str, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class ConfigVerdict:
    """All stages of a run. ``skipped``: one sentence per stage that these checks do not fit."""

    name: str
    stages: tuple[StageVerdict, ...]
    skipped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when no check failed."""
        return not self._having(Outcome.FAIL)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        total = sum(len(stage.checks) for stage in self.stages)
        failed, warned, skipped = (self._having(outcome) for outcome in (Outcome.FAIL, Outcome.WARN, Outcome.SKIP))
        if not total:
            return f"Nothing was checked: {self.name} has no online stage of the policy-gradient kind."
        if failed:
            waiting = f", {len(skipped)} wait for {'it' if len(failed) == 1 else 'them'}" if skipped else ""
            verb = "does" if len(failed) == 1 else "do"
            return f"Do not start this run yet: {len(failed)} of {total} checks failed ({', '.join(failed)}){waiting}. " \
                   f"Until {'it' if verb == 'does' else 'they'} {'passes' if verb == 'does' else 'pass'}, the numbers of the run " \
                   "do not mean what they say."  # fmt: skip
        looks = f", {len(warned)} of them with something to look at ({', '.join(warned)})" if warned else ""
        return f"This run computes what it says: {total} of {total} checks passed{looks}."

    def _having(self, outcome: Outcome) -> list[str]:
        return [f"{stage.stage}: {check.name}" for stage in self.stages for check in stage.checks if check.outcome is outcome]


def judged(name: str, value: float, bound: float, said: str, advice: str) -> Check:
    """PASS when ``value`` is at most ``bound`` (a NaN is not); the advice stays only with a failure."""
    passed = value <= bound
    return Check(name, Outcome.PASS if passed else Outcome.FAIL, said, value, bound, "" if passed else advice)


def stage_heading(title: str, notes: Sequence[str]) -> str:
    """The first lines of a stage."""
    return "\n".join([title, *(f"  note: {note}" for note in notes)])


def check_line(check: Check) -> str:
    """One line, and the advice under it."""
    limit = "" if check.bound is None else f" (bound {check.bound:g})"
    advice = f"\n       {'':<10}  -> {check.advice}" if check.advice else ""
    return f"  {check.outcome:<4} {check.name:<10}  {check.said}{limit}{advice}"


def as_text(verdict: ConfigVerdict) -> str:
    """Stage by stage, one line a check; then the sentence."""
    blocks = [
        "\n".join([stage_heading(stage.title, stage.notes), *map(check_line, stage.checks)]) for stage in verdict.stages
    ]  # fmt: skip
    return "\n\n".join([*blocks, "\n".join([*verdict.skipped, verdict.sentence])])


def as_json(verdict: ConfigVerdict) -> str:
    """The same as data; numbers that are not finite are the strings "nan" and "inf"."""
    return json.dumps(_plain({**asdict(verdict), "ok": verdict.ok, "sentence": verdict.sentence}), indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
