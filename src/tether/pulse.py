"""When this process last went on, and with what: said by whatever may take long, heard by ``run.watchdog``. Imports no torch.

A beat is also where work beside the loop, in a thread of its own, is told to stop.
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Beat", "Stopped", "beat", "last_beat", "stop_at_beats"]


@dataclass(frozen=True, slots=True)
class Beat:
    """``part`` began at ``at``, on the clock of ``time.monotonic``."""

    part: str
    at: float


class Stopped(BaseException):
    """Nobody wants the result of this thread any more. Not an Exception, which a boundary would take for a fault of the verifier."""


# One per process, as the watchdog is: a hang is of the process. Nothing that is computed follows from it.
_last = [Beat("start", time.monotonic())]
_told: ContextVar[threading.Event | None] = ContextVar("tether_stop", default=None)


def beat(part: str) -> None:
    """``part`` begins now. Raises Stopped where this context was told to stop."""
    told = _told.get()
    if told is not None and told.is_set():
        raise Stopped
    _last[0] = Beat(part, time.monotonic())


def stop_at_beats(told: threading.Event) -> None:
    """From here on the beats of this context (a thread has its own) raise once ``told`` is set."""
    _told.set(told)


def last_beat() -> Beat:
    """What began last."""
    return _last[0]
