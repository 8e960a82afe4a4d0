"""What the machine has, and what this process has taken of it. Linux tells; elsewhere the answer is None."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Peak", "available_bytes", "multiplies_bfloat16", "peak_of_process", "resident_bytes"]

_PROC = Path("/proc")


class Peak:
    """State: the most memory that the process held during the block, in bytes, once it has ended; None where nothing tells."""

    bytes: int | None = None


@contextmanager
def peak_of_process() -> Iterator[Peak]:
    """Resident memory of this process, at its highest within the block (VmHWM of proc(5), which is set back at the start).

    Where it cannot be set back, the highest since the process began.
    """
    peak = Peak()
    with suppress(OSError):
        (_PROC / "self" / "clear_refs").write_text("5")
    try:
        yield peak
    finally:
        peak.bytes = _field(_PROC / "self" / "status", "VmHWM")


def resident_bytes() -> int | None:
    """Memory that this process holds now (VmRSS)."""
    return _field(_PROC / "self" / "status", "VmRSS")


def available_bytes() -> int | None:
    """Memory that new work can take without swapping (MemAvailable)."""
    return _field(_PROC / "meminfo", "MemAvailable")


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it, as ``backends.compute`` asks PyTorch."""
    if sys.platform != "linux":
        return False
    try:
        flags = (_PROC / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", flags) is not None


def _field(file: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
