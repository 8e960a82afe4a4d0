"""A process and its descendants, from /proc alone: memory, processor time, pausing. Only the standard library."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["cpu_seconds", "peak_mib", "reset_peaks", "send", "tree"]

_TICK = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """``root`` and everything that descends from it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def reset_peaks(pids: Iterable[int]) -> None:
    """Peaks of resident memory start again from what is resident now."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pids: Iterable[int]) -> float:
    """Sum of the peaks of resident memory since the last reset: at least the peak of the sum."""
    return sum(_status_kib(pid, "VmHWM:") for pid in pids) / 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of all threads, in and out of the kernel, with that of children that have ended."""
    return sum(sum(int(ticks) for ticks in fields[11:15]) for pid in pids if (fields := _stat(pid))) / _TICK


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """One signal to each that still lives."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on; empty where the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _status_kib(pid: int, key: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1])
    return 0
