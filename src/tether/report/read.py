"""The files of a run folder as frozen records, however far the run came.

A report is most wanted when something went wrong, so nothing here raises for a missing or damaged file: what
cannot be read is absent from the record and named in ``problems``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tether.errors import RunError
from tether.files import is_altered
from tether.report.evaluation import EvaluationRecord, GainRecord, PolicyRecord, Sample, read_evaluation, read_sample
from tether.report.history import Alert, Moment, read_alerts, read_history
from tether.report.plain import number, whole

__all__ = [
    "Alert", "EvaluationRecord", "GainRecord", "Moment", "PolicyRecord", "RunRecord", "Sample", "StageRecord", "read_run",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage: its curves (metric -> points (step, value)), texts and closing summary. ``done``: its stage.json is there.
    ``looks``: what the held-out panel of the checks said, as curves; ``bands``: where a second look before training would have fallen."""

    name: str
    num_steps: int
    curves: Mapping[str, tuple[tuple[int, float], ...]]
    samples: tuple[Sample, ...]
    summary: Mapping[str, Any]
    done: bool
    looks: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The name as the configuration gives it: "ppo" of "rl.ppo"."""
        return self.name.removeprefix("rl.").removeprefix("direct.")

    def last(self, metric: str) -> float:
        """The last value of a curve; NaN where it was never logged."""
        points = self.curves.get(metric, ())
        return points[-1][1] if points else math.nan


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run folder. ``state``: finished, interrupted, paused by a check, or unfinished. ``messages``: what the run said; ``alerts``: its
    warnings and alarms; ``history``: starts, stops, resumes and checkpoints.
    """

    folder: Path
    name: str
    state: str
    started: str
    ended: str
    config: Mapping[str, Any]
    config_text: str
    config_sha256: str
    environment: Mapping[str, Any]
    stages: tuple[StageRecord, ...]
    evaluation: EvaluationRecord | None
    messages: tuple[str, ...]
    alerts: tuple[Alert, ...]
    history: tuple[Moment, ...]
    problems: tuple[str, ...]

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(stage, text) of every warning."""
        return tuple((alert.stage, alert.text) for alert in self.alerts if alert.kind == "warning")

    def stage(self, name: str) -> StageRecord | None:
        """The stage of that name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def rl_stages(self) -> tuple[StageRecord, ...]:
        """The online stages, in the order they ran."""
        return tuple(stage for stage in self.stages if stage.name.startswith("rl."))

    @property
    def direct_stages(self) -> tuple[StageRecord, ...]:
        """The direct preference stages, in the order they ran."""
        return tuple(stage for stage in self.stages if stage.name.startswith("direct."))


@dataclass
class _Draft:
    """A stage while its events are read. State: what was seen since it last started, and the attempt before."""

    num_steps: int = 0
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    samples: dict[int, Sequence[Any]] = field(default_factory=dict)
    looks: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    earlier: _Draft | None = None

    def go_on_after(self, step: int) -> None:
        """Take over what the attempt before logged up to ``step``, where its checkpoint was made."""
        if self.earlier is not None:
            self.metrics |= {n: metrics for n, metrics in self.earlier.metrics.items() if n <= step}
            self.samples |= {n: rows for n, rows in self.earlier.samples.items() if n <= step}
            self.looks |= {n: values for n, values in self.earlier.looks.items() if n <= step}
            self.bands = self.earlier.bands


def read_run(folder: str | Path) -> RunRecord:
    """Everything a run folder holds. Raises RunError where there is neither the configuration of a run nor a log."""
    path = Path(folder)
    problems: list[str] = []
    config_text = _text(path / "config.json", problems)
    config = _object(config_text, "config.json", problems)
    if not (path / "events.jsonl").is_file() and not {"name", "output"} <= config.keys():  # a model has a config.json as well
        found = "holds no run" if path.is_dir() else "is no folder" if path.exists() else "does not exist"
        raise RunError(f"{path} {found}: expected a folder with config.json and events.jsonl of a run, e.g. runs/quickstart")
    events = list(_events(path / "events.jsonl", problems))
    evaluation = _object(_text(path / "evaluation.json", []), "evaluation.json", problems)
    if is_altered(evaluation):
        evaluation = {}
        problems.append("evaluation.json does not match its own SHA-256: it was altered or damaged, and its figures are left out. Put it "
                        "back from a copy, or delete it and `tether resume`, which evaluates again")  # fmt: skip
    return RunRecord(
        folder=path,
        name=str(config.get("name") or path.resolve().name),
        state=_state(events),
        started=_time(events[:1]),
        ended=_time(events[-1:]),
        config=config,
        config_text=config_text,
        config_sha256=hashlib.sha256(config_text.encode("utf-8", "replace")).hexdigest(),
        environment=_object(_text(path / "environment.json", []), "environment.json", problems),
        stages=_stages(path, events, problems),
        evaluation=read_evaluation(evaluation) if evaluation else None,
        messages=tuple(_said(e) for e in events if e.get("kind") in {"message", "warning"}),
        alerts=read_alerts(events),
        history=read_history(events, path / "checkpoints"),
        problems=tuple(problems),
    )


# -- files -----------------------------------------------------------------------------------------


def _text(path: Path, problems: list[str]) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({type(error).__name__})")
        return ""


def _object(text: str, name: str, problems: list[str]) -> Mapping[str, Any]:
    """A JSON object; an empty one where the text is absent, damaged or something else."""
    if not text:
        return {}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        problems.append(f"{name} is not readable as JSON")
        return {}
    return data if isinstance(data, dict) else {}


def _events(path: Path, problems: list[str]) -> Iterator[Mapping[str, Any]]:
    """The readable lines of the log. Unlike ``tether.events.read_events`` a broken line in the middle does
    not end it."""
    broken = 0
    for line in _text(path, problems).split("\n"):
        try:
            event = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            event, broken = None, broken + 1
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            yield event
    if broken:
        problems.append(
            f"{path.name}: {broken} line(s) cannot be read and were left out (a crash cuts the last one)"
        )


# -- events to stages ------------------------------------------------------------------------------


def _state(events: Sequence[Mapping[str, Any]]) -> str:
    last = next((e for e in reversed(events) if e.get("kind") in {"run_started", "run_finished", "interrupted"}), {})
    stopped = "paused by a check" if last.get("reason") == "alarm" else "interrupted"
    return {"run_finished": "finished", "interrupted": stopped}.get(str(last.get("kind")), "unfinished")


def _said(event: Mapping[str, Any]) -> str:
    return ("WARNING: " if event.get("kind") == "warning" else "") + str(event.get("text", ""))


def _time(events: Sequence[Mapping[str, Any]]) -> str:
    return str(events[0].get("time", "")) if events else ""


def _stages(
    folder: Path, events: Sequence[Mapping[str, Any]], problems: list[str]
) -> tuple[StageRecord, ...]:
    drafts: dict[str, _Draft] = {}
    for event in events:
        _take(drafts, event)
    markers = {path.parent.name: path for path in sorted(folder.glob("*/stage.json"))}
    ended = {str(event.get("stage")) for event in events if event.get("kind") == "stage_finished"}
    if events and (lost := [name for name in markers if name not in ended]):
        problems.append(f"events.jsonl lacks the end of {', '.join(lost)}: it was cut, and what is gone is missing here")
    for name in markers:
        drafts.setdefault(name, _Draft())
    return tuple(_stage(name, draft, markers.get(name), problems) for name, draft in drafts.items())


def _take(drafts: dict[str, _Draft], event: Mapping[str, Any]) -> None:
    """A stage that starts again (after an interruption) replaces what its earlier attempt logged, but for the steps it goes on from."""
    kind, name = event.get("kind"), str(event.get("stage", ""))
    if kind == "stage_started":
        drafts[name] = _Draft(num_steps=whole(event.get("num_steps")), earlier=drafts.get(name))
    elif kind == "resumed" and name in drafts:
        drafts[name].go_on_after(whole(event.get("step")))
    elif kind in {"step", "samples", "panel", "stage_finished"}:
        draft, step = drafts.setdefault(name, _Draft()), whole(event.get("step"))
        if kind == "step" and isinstance(event.get("metrics"), dict):
            draft.metrics[step] = event["metrics"]
        elif kind == "samples" and isinstance(event.get("rows"), list):
            draft.samples[step] = event["rows"]
        elif kind == "panel" and isinstance(event.get("values"), dict):
            draft.looks[step] = event["values"]
            draft.bands = draft.bands or _bands(event.get("bands"))
        elif kind == "stage_finished" and isinstance(event.get("summary"), dict):
            draft.summary = event["summary"]


def _stage(name: str, draft: _Draft, marker: Path | None, problems: list[str]) -> StageRecord:
    stored = _object(_text(marker, problems), f"{name}/stage.json", problems).get("summary") if marker else None
    samples = [read_sample(row, "reward", step) for step in sorted(draft.samples) for row in draft.samples[step]]
    return StageRecord(
        name,
        draft.num_steps,
        _curves(draft.metrics),
        tuple(s for s in samples if s),
        stored if isinstance(stored, dict) else draft.summary,
        marker is not None,
        _curves(draft.looks),
        draft.bands,
    )


def _bands(value: Any) -> dict[str, tuple[float, float]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {str(name): (number(band[0]), number(band[1])) for name, band in pairs if isinstance(band, list) and len(band) == 2}


def _curves(by_step: Mapping[int, Mapping[str, Any]]) -> dict[str, tuple[tuple[int, float], ...]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for step in sorted(by_step):
        for name, value in by_step[step].items():
            curves.setdefault(str(name), []).append((step, number(value)))
    return {name: tuple(points) for name, points in curves.items()}
