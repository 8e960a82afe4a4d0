"""Warnings of the package on their way to the reader: each once per run, shown as they come and kept in the run's log.

Code that warns knows neither run nor display: it calls its module's logger. While a run works, this handler takes what the loggers under
``tether`` say, so that nothing is printed over the progress and nothing is said a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tether.events import EventLog
from tether.run.observer import Observer

__all__ = ["Warnings", "warnings_of_run"]


@dataclass
class Warnings:
    """What was warned of so far. State: the texts, the stage that is open, and the log once there is one."""

    observer: Observer
    stage: str = "run"
    _said: set[str] = field(default_factory=set)
    _waiting: list[str] = field(default_factory=list)
    _log: EventLog | None = None

    def say(self, text: str) -> None:
        """Show and log a warning, unless the same was said before."""
        if text in self._said:
            return
        self._said.add(text)
        self.observer.message(f"WARNING: {text}")
        self._waiting.append(text)
        self._flush()

    def keep_in(self, log: EventLog) -> None:
        """From now on warnings go into ``log``, those that came before it was opened first."""
        self._log = log
        self._flush()

    def _flush(self) -> None:
        while self._log is not None and self._waiting:
            self._log.write("warning", stage=self.stage, text=self._waiting.pop(0))


class _Handler(logging.Handler):
    def __init__(self, warnings: Warnings) -> None:
        super().__init__(logging.WARNING)
        self._warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        self._warnings.say(record.getMessage())


@contextmanager
def warnings_of_run(observer: Observer) -> Iterator[Warnings]:
    """Take the warnings of the package for the length of the block."""
    warnings = Warnings(observer)
    handler, logger = _Handler(warnings), logging.getLogger("tether")
    logger.addHandler(handler)
    try:
        yield warnings
    finally:
        logger.removeHandler(handler)
