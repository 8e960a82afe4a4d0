"""What happened to a run besides its steps: warnings and alarms, starts, stops, resumes, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.report.charts import number as in_short
from tether.report.plain import number, whole

__all__ = ["LET_PASS", "Alert", "Moment", "read_alerts", "read_history"]

LET_PASS = "a person has seen and let pass:"
"""How an acknowledged alarm is told."""

_KINDS = ("warning", "alarm")


@dataclass(frozen=True, slots=True)
class Alert:
    """A warning, or an alarm of a check. ``rule``: the check that tripped, or the name of the warning; ``advice``: what people usually do;
    ``more``: what was measured, as (name, value in words).
    """

    kind: str
    time: str
    stage: str
    step: int
    rule: str
    text: str
    advice: str = ""
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the history, in words."""

    time: str
    stage: str
    text: str


def read_alerts(events: Sequence[Mapping[str, Any]]) -> tuple[Alert, ...]:
    """Warnings and alarms in the order they came."""
    return tuple(_alert(event) for event in events if event.get("kind") in _KINDS)


def read_history(events: Sequence[Mapping[str, Any]], checkpoints: Path) -> tuple[Moment, ...]:
    """Starts and stops as logged, then the checkpoints that are there now."""
    told = tuple(moment for event in events if (moment := _moment(event)) is not None)
    return told + tuple(_checkpoint(path) for path in sorted(checkpoints.glob("*/step-*/manifest.json")))


_SHOWN_APART = {"kind", "time", "stage", "step", "rule", "name", "text", "seen", "advice", "before", "after", "before_step", "metrics"}


def _alert(event: Mapping[str, Any]) -> Alert:
    return Alert(
        str(event.get("kind")),
        str(event.get("time", "")),
        str(event.get("stage", "")),
        whole(event.get("step")),
        str(event.get("rule") or event.get("name") or ""),
        str(event.get("seen") or event.get("text", "")),
        str(event.get("advice", "")),
        tuple(_measured(event)),
    )


def _measured(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What changed on the panel first, then everything else that the event holds; the metrics of the step are in the curves."""
    before, after = event.get("before"), event.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        start = whole(event.get("before_step"))
        for name in after:
            yield f"{name}, step {start} → {whole(event.get('step'))}", f"{_told(before.get(name))} → {_told(after[name])}"
    for name, value in event.items():
        if name not in _SHOWN_APART:
            parts = [f"{key} {_told(item)}" for key, item in value.items()] if isinstance(value, dict) else [_told(value)]
            yield name.replace("_", " "), ", ".join(parts)


def _told(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else "–" if value is None else json.dumps(value, ensure_ascii=False)
    return in_short(number(value))


def _moment(event: Mapping[str, Any]) -> Moment | None:
    step, steps = whole(event.get("step")), whole(event.get("num_steps"))
    texts = {
        "run_started": "the run starts",
        "stage_started": f"the stage starts{f', {steps} steps' if steps else ''}",
        "resumed": f"goes on from the checkpoint of step {step}; what was logged after it is replaced",
        "interrupted": "paused by a check" if event.get("reason") == "alarm" else "stopped by a signal",
        "stage_finished": "the stage is finished",
        "run_finished": "the run is finished",
        "alarms_acknowledged": f"{LET_PASS} {_alarms(event.get('alarms'))}",
    }
    text = texts.get(str(event.get("kind")))
    return None if text is None else Moment(str(event.get("time", "")), str(event.get("stage", "")), text)


def _alarms(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) and names else "the alarms of before"


def _checkpoint(manifest: Path) -> Moment:
    """A checkpoint on the disk; its manifest says how it is flagged, its folder after which step it was saved."""
    try:
        told = json.loads(manifest.read_text(encoding="utf-8"))
        flags = ", ".join(str(flag) for flag in told["flags"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        flags = "its manifest cannot be read"
    step = manifest.parent.name.removeprefix("step-").lstrip("0") or "0"
    return Moment("", manifest.parent.parent.name, f"checkpoint of step {step} is kept{f' ({flags})' if flags else ''}")
