"""The memory that stages were planned to take beside what they took: a line of the log for each that was trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from tether.backends.compute import Compute
from tether.config import RunConfig
from tether.errors import TetherError
from tether.models.resolve import resolve_model
from tether.plan.machine import Peak, available_bytes, peak_of_process, resident_bytes
from tether.plan.memory import PROGRAM, StagePlan, plan_memory
from tether.plan.model import Dims, dims_of

__all__ = ["mib", "peak_memory", "plans_of", "too_large"]


def plans_of(config: RunConfig, compute: Compute) -> dict[str, StagePlan]:
    """By stage; none for a model of unknown shape. What the process holds now is its program; on a GPU a plan speaks of the GPU alone."""

    def dims(path: str) -> Dims | None:
        try:
            return dims_of(resolve_model(path, local_files_only=True))
        except TetherError:  # said where the model is loaded
            return None

    own = dims(config.model.path)
    if own is None:
        return {}
    program = max(PROGRAM, resident_bytes() or 0) if compute.device.type == "cpu" else 0
    plans = plan_memory(config, own, compute.dtype != torch.float32, dims, program)
    return {plan.stage: plan for plan in plans}


def too_large(plans: Mapping[str, StagePlan], compute: Compute) -> str:
    """A warning where a plan is beyond what the machine has now; "" where none is, and where the machine does not tell."""
    if compute.device.type == "cuda":
        available: int | None = torch.cuda.mem_get_info(compute.device)[0]
    else:
        available = available_bytes()
    largest = max(plans.values(), key=lambda plan: plan.peak_bytes, default=None)
    if largest is None or available is None or largest.peak_bytes <= available:
        return ""
    return (
        f"{largest}. This machine has {mib(available):,.0f} MiB available now: passes that do not fit are made smaller, and what stays in "
        "memory is made smaller by the settings of docs/memory.md"
    )


@contextmanager
def peak_memory(compute: Compute) -> Iterator[Peak]:
    """Of this process within the block; on a GPU, of what PyTorch holds there."""
    if compute.device.type != "cuda":
        with peak_of_process() as peak:
            yield peak
        return
    peak = Peak()
    torch.cuda.reset_peak_memory_stats(compute.device)
    try:
        yield peak
    finally:
        peak.bytes = torch.cuda.max_memory_allocated(compute.device)


def mib(size: int) -> float:
    """Bytes as MiB."""
    return size / 2**20
