"""The append-only log of a run: one JSON object a line, in the order things happened.

Every line carries ``time`` (UTC, ISO 8601) and ``kind``. A line is written whole and flushed; a reader ignores a last line that was
cut by a crash. Trackers and the report are mirrors of this file.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tether.errors import RunError
from tether.files import free_bytes
from tether.metrics import describe

__all__ = ["EventLog", "read_events", "settled"]

_LOG = logging.getLogger(__name__)


_WORDS = frozenset({"message", "warning"})


class EventLog:
    """Writes events. State: the open file, and what waits for the first deed (``begin``)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_cut_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        self._listeners: list[Callable[[dict[str, Any]], object]] = []
        self._waiting: list[dict[str, Any]] | None = None

    def begin(self, kind: str, **fields: Any) -> None:
        """An event that is written, with the words after it, before the first event that is more than words. What is refused before it did
        anything leaves the log as it was.
        """
        self._waiting = [_record(kind, fields)]

    def listen(self, listener: Callable[[dict[str, Any]], object]) -> None:
        """From now on ``listener`` gets every event after it was written. It must not raise and may itself write an event."""
        self._listeners.append(listener)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event. ``metrics`` must hold registered names; non-finite numbers are written as strings ("nan")."""
        for name in fields.get("metrics", {}):
            describe(name)
        record = _record(kind, fields)
        if self._waiting is not None:
            self._waiting.append(record)
            if kind in _WORDS:
                return
        waiting, self._waiting = self._waiting, None
        for one in waiting or [record]:
            self._append(one)

    def _append(self, record: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(_encode(record), ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"{self.path} could not be written ({error}; {free_bytes(self.path.parent):,} bytes are free): make room and resume; "
                "checkpoints and finished stages are as they were"
            ) from error
        for listener in self._listeners:
            listener(record)

    def close(self) -> None:
        """Flush to the disk and close. What cannot be written any more is said, and does not hide what ended the run."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            _LOG.warning("the end of %s could not be written (%s)", self.path, error)
        finally:
            with suppress(OSError):
                self._file.close()


def read_events(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a log, oldest first; numbers written as "nan" or "inf" come back as floats."""
    source = Path(path)
    if not source.exists():
        return
    with source.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                event = _decode(json.loads(line))
            except (ValueError, RecursionError, AttributeError, TypeError):
                event = None
            if isinstance(event, dict) and isinstance(event.get("kind"), str):
                yield event
            else:
                _LOG.warning("%s: line %d is no event and is passed over: the log was damaged", path, number)


def settled(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that belong to the weights that came out: steps that a crash undid are left out, the rest is kept in order.

    A stage that goes on from a checkpoint of step k says ``resumed``: what it had logged after step k is undone. A stage that starts
    again without one undoes all its steps. Example: steps 1 2 3 of a stage, resumed after 2, steps 3 4 -> 1 2 3 4.
    """
    kept: list[dict[str, Any]] = []
    fresh: set[str] = set()
    for event in events:
        stage, kind = event.get("stage"), event["kind"]
        if kind == "stage_started":
            fresh.add(event["stage"])
        elif kind == "resumed":
            fresh.discard(event["stage"])
            kept = [e for e in kept if e.get("stage") != stage or e.get("step", 0) <= event["step"]]
        elif stage in fresh and "step" in event:
            fresh.discard(event["stage"])
            kept = [e for e in kept if e.get("stage") != stage or "step" not in e]
        kept.append(event)
    return kept


def _drop_cut_line(path: Path) -> None:
    """Remove an unfinished last line, so that the next event does not glue itself to it."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def _record(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, **fields}


_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _decode(record: dict[str, Any]) -> dict[str, Any]:
    metrics = record.get("metrics")
    if isinstance(metrics, dict):
        record["metrics"] = {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in metrics.items()}
    return record
