"""When this process last went on, and with what: said by whatever may take long, heard by ``run.watchdog``. Imports no torch."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Beat", "beat", "last_beat"]


@dataclass(frozen=True, slots=True)
class Beat:
    """``part`` began at ``at``, on the clock of ``time.monotonic``."""

    part: str
    at: float


# One per process, as the watchdog is: a hang is of the process. Nothing that is computed follows from it.
_last = [Beat("start", time.monotonic())]


def beat(part: str) -> None:
    """``part`` begins now."""
    _last[0] = Beat(part, time.monotonic())


def last_beat() -> Beat:
    """What began last."""
    return _last[0]
