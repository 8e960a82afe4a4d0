"""What this machine is, and which kind: results of kinds stand beside one another, since each multiplies in a precision of its own."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from tether.plan.machine import multiplies_bfloat16

__all__ = ["KINDS", "kind", "machine", "products"]

_CPUINFO = Path("/proc/cpuinfo")
_UNITS = ("amx_bf16", "avx512_bf16")
KINDS = (*_UNITS, "float32")
"""Instructions that multiply bfloat16, the fastest first; on a processor that has none the products of all sides are float32."""


def products() -> str:
    """The precision in which this machine multiplies quickest, and Tether unless told otherwise."""
    return "bfloat16" if multiplies_bfloat16() else "float32"


def kind() -> str:
    """The first of ``KINDS`` that holds."""
    flags = _CPUINFO.read_text().split()
    return next((unit for unit in _UNITS if unit in flags and products() == "bfloat16"), "float32")


def machine() -> dict[str, Any]:
    """What a reader of the figures has to know of it."""
    told = _CPUINFO.read_text()
    model = next((line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name")), "?")
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "matrix units": ", ".join(flag for flag in _UNITS if flag in told.split()) or "none for bf16",
        "memory GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "huge pages": huge.read_text().split("[")[1].split("]")[0] if huge.exists() else "?",
        "kernel": platform.release(),
    }
