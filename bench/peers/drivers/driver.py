"""What every driver shares: JSON lines with the harness, a clock that tells phases apart, and a turnstile between two measurements.

A driver reads one line of setup, answers ``ready``, then answers each line ``{"do": "measure", ...}`` with seconds by phase, tokens,
processor time and peak memory. Loops that belong to a library are not cut open: their own callback stands in the turnstile after each
step, so one step of the real loop is one measurement and nothing is loaded twice. Only the standard library.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import processes

__all__ = ["Channel", "Clock", "Turnstile", "noise", "versions"]


class Channel:
    """Lines to and from the harness. Whatever libraries print goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.setup: dict[str, Any] = json.loads(sys.stdin.readline())

    def say(self, **facts: Any) -> None:
        """One line."""
        self._out.write(json.dumps(facts) + "\n")

    def command(self) -> dict[str, Any]:
        """The next command; the process ends where there is none."""
        line = sys.stdin.readline()
        command = json.loads(line) if line.strip() else {"do": "stop"}
        if command["do"] == "stop":
            sys.stderr.flush()
            os._exit(0)  # at once: no destructors of half a library
        return command


class Clock:
    """Seconds by phase. A phase inside another is not counted in the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._nested: list[float] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to ``name``."""
        started = time.perf_counter()
        self._nested.append(0.0)
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._nested.pop()
            if self._nested:
                self._nested[-1] += spent

    def wrap(
        self,
        owner: Any,
        attribute: str,
        phase: str | Callable[..., str],
        seen: Callable[[Any], None] | None = None,
    ) -> None:
        """Calls of ``owner.attribute`` belong to ``phase``, or to what it says of the arguments; ``seen`` gets each result."""
        inner = getattr(owner, attribute)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase if isinstance(phase, str) else phase(*args, **kwargs)):
                result = inner(*args, **kwargs)
            if seen is not None:
                seen(result)
            return result

        setattr(owner, attribute, timed)


class Turnstile:
    """Between two measurements: answers the one that ended, waits for the command of the next."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self.channel, self.clock = channel, clock
        self._started: float | None = None
        self._cpu = 0.0

    def turn(
        self, tokens: Mapping[str, int] | None = None, phases: Mapping[str, float] | None = None, rest: str = "other"
    ) -> dict[str, Any]:
        """``tokens``: what the measurement that ended has handled; ``phases``: seconds that the clock has not seen itself; ``rest``: the
        name of what is left of the total."""
        if self._started is not None:
            self.channel.say(**self._result(time.perf_counter() - self._started, tokens or {}, phases or {}, rest))
        command = self.channel.command()
        pids = processes.tree(os.getpid())
        processes.reset_peaks(pids)
        self._cpu = processes.cpu_seconds(pids)
        self.clock.seconds.clear()
        self._started = time.perf_counter()
        return command

    def _result(self, total: float, tokens: Mapping[str, int], phases: Mapping[str, float], rest: str) -> dict[str, Any]:
        pids = processes.tree(os.getpid())
        seconds = {**self.clock.seconds, **phases}
        seconds[rest] = total - sum(seconds.values())
        return {
            "seconds": {**seconds, "total": total},
            "tokens": dict(tokens),
            "cpu_seconds": processes.cpu_seconds(pids) - self._cpu,
            "peak_mib": processes.peak_mib(pids),
        }


def noise(text: str | Sequence[int]) -> float:
    """A reward in [0, 1) that costs nothing and has nothing to do with length or sense."""
    return zlib.crc32(str(text).encode()) / 2**32


def versions(*names: str) -> dict[str, str]:
    """Installed versions of some packages."""
    return {name: metadata.version(name) for name in names}
