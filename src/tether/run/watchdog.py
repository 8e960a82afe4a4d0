"""A run that hangs says where: the part that began last, and what every thread is doing. By setting it then stops.

Beats come from steps, passes through the model, tokens of the sampler and parts of the reward (``tether.pulse``). The limit is generous by
default and only warns, since a slow judge or a large pass on a slow machine is no hang; a warning costs nothing when it is wrong.
What blocks inside a library that holds Python's lock blocks this thread too: then nothing is said.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from types import FrameType

from tether.pulse import Beat, beat, last_beat

__all__ = ["HANG_STATUS", "Watchdog", "stacks"]

HANG_STATUS = 124
"""Exit status of a process that the watchdog stopped, as of timeout(1)."""

_LOG = logging.getLogger(__name__)
_DEPTH = 30  # innermost frames told of each thread


class Watchdog:
    """A context that watches this process from a thread. State: the beat that was already told of.

    ``limit_s``: seconds without a beat after which it speaks; None watches nothing. ``stops``: then end the process at once.
    """

    def __init__(self, limit_s: float | None, *, stops: bool = False) -> None:
        self._limit, self._stops = limit_s, stops
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._told: Beat | None = None

    def __enter__(self) -> Watchdog:
        if self._limit is not None:
            beat("start of the run")
            self._thread = threading.Thread(target=self._watch, args=(self._limit,), name="tether-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, limit_s: float) -> None:
        while not self._over.wait(min(limit_s / 4, 5.0)):
            found = last_beat()
            waited = time.monotonic() - found.at
            if waited <= limit_s or found is self._told:
                continue
            self._told = found
            end = "the run is stopped; it goes on from its newest checkpoint" if self._stops else "the run goes on waiting (hang_stops)"
            _LOG.warning("nothing was heard for %.0f s: stuck in %s; %s.\n%s", waited, found.part, end, stacks())
            if self._stops:
                os._exit(HANG_STATUS)  # what hangs answers no exception; the last checkpoint is whole


def stacks() -> str:
    """What every other thread is doing, innermost call last: modules and lines, no paths, no values."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    told = [(names.get(ident, "unknown"), frame) for ident, frame in sys._current_frames().items() if ident != own]
    return "\n".join(f"thread {name}: {_calls(frame)}" for name, frame in told)


def _calls(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < _DEPTH:
        calls.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " > ".join(reversed(calls))
