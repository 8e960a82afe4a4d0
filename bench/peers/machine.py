"""What this machine is, and which kind: results of kinds stand beside one another, since each multiplies in a precision of its own."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tether.plan.machine import multiplies_bfloat16

__all__ = ["KINDS", "kind", "machine", "products"]

_CPUINFO = Path("/proc/cpuinfo")
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "amx_bf16": "A processor with matrix units for bfloat16 (AMX)",
        "avx512_bf16": "A processor with vector instructions for bfloat16 (AVX-512 bf16)",
        "float32": "A processor that multiplies float32 alone (AVX2, as most laptops)",
    }
)
"""Instructions that multiply bfloat16, the fastest first; on a processor that has none the products of all sides are float32."""


def products() -> str:
    """The precision in which this machine multiplies quickest, and Tether unless told otherwise."""
    return "bfloat16" if multiplies_bfloat16() else "float32"


def kind() -> str:
    """The first of ``KINDS`` that holds."""
    flags = _CPUINFO.read_text().split()
    return next((unit for unit in KINDS if unit in flags), "float32")


def machine() -> dict[str, Any]:
    """What a reader of the figures has to know of it."""
    told = _CPUINFO.read_text()
    model = next((line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name")), "?")
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "matrix units": ", ".join(flag for flag in KINDS if flag in told.split()) or "none for bf16",
        "memory GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "huge pages": huge.read_text().split("[")[1].split("]")[0] if huge.exists() else "?",
        "kernel": platform.release(),
    }
