"""One mouth for a stage: the event log first, then whoever watches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tether.events import EventLog, read_events
from tether.pulse import beat
from tether.run.observer import Observer
from tether.state import State

__all__ = ["Recorder"]


class Recorder:
    """Writes every step to the log and shows it. State: the stage that is open, and ``last``, the metrics of its last step.

    ``folder``: of the run, where a stage that stops leaves evidence; None for loops in a user's own process.
    """

    def __init__(self, log: EventLog, observer: Observer, stage: str, num_steps: int, folder: Path | None = None) -> None:
        self.folder = folder
        self._log, self._observer = log, observer
        self.stage, self.num_steps = stage, num_steps
        self.last: dict[str, float] = {}
        log.write("stage_started", stage=stage, num_steps=num_steps)
        observer.stage_started(stage, num_steps)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step ``step`` (from 1) with its registered metrics."""
        beat(f"{self.stage}, after step {step}")
        self._log.write("step", stage=self.stage, step=step, num_steps=self.num_steps, metrics=dict(metrics))
        self._observer.step(self.stage, step, metrics)
        self.last = dict(metrics)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """A few texts of this step, for the report."""
        self._log.write("samples", stage=self.stage, step=step, rows=[dict(row) for row in rows])

    def message(self, text: str) -> None:
        """One sentence, logged and shown."""
        self._log.write("message", stage=self.stage, text=text)
        self._observer.message(text)

    def warning(self, name: str, step: int, text: str) -> None:
        """Something that a reader should look at, by name: an event of its own, and shown at once."""
        self._log.write("warning", stage=self.stage, name=name, step=step, text=text)
        self._observer.message(f"WARNING: {self.stage}: {text}")

    def panel(
        self, step: int, values: Mapping[str, float | None], bands: Mapping[str, Sequence[float]], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """A look of the checks at step ``step`` (0: before training): numbers by name, None where there is nothing to say; ``bands``, in
        the first look alone: where a second look at the same policy would fall; a few answers."""
        self._log.write("panel", stage=self.stage, step=step, values=dict(values), bands=dict(bands), rows=[dict(row) for row in rows])

    def alarm(self, step: int, alarm: Mapping[str, Any], text: str) -> None:
        """A check tripped: an event of its own, and shown at once."""
        self._log.write("alarm", **{**alarm, "stage": self.stage, "step": step, "text": text})
        self._observer.message(f"ALARM: {text}")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The stage is done and its files are written."""
        self._log.write("stage_finished", stage=self.stage, summary=dict(summary))
        self._observer.stage_finished(self.stage, summary)

    def resumed(self, step: int) -> None:
        """The stage goes on from a checkpoint: what the log says of it after ``step`` did not happen to these weights."""
        self._log.write("resumed", stage=self.stage, step=step)
        told = {event["step"] for event in read_events(self._log.path) if event["kind"] == "step" and event.get("stage") == self.stage}
        if missing := sorted(set(range(1, step + 1)) - told):
            self.warning(
                "log", step, f"{self._log.path} lacks {len(missing)} of the {step} steps up to the checkpoint, the first of them "
                f"{missing[0]}: it was lost or damaged. Training goes on unchanged; the curves of the report have a gap there",
            )  # fmt: skip

    def state(self) -> State:
        """The metrics of the last step, which a stage that is resumed at its end still has to tell."""
        return State(values={name: value if math.isfinite(value) else str(value) for name, value in self.last.items()})

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        self.last = {name: float(value) for name, value in state.values.items()}
