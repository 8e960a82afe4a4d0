"""Memory that ran out: how to know it, and how to give back what a failed attempt held."""

from __future__ import annotations

import gc

import torch

__all__ = ["free_memory", "is_out_of_memory"]

_SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on whatever device. PyTorch says so by class on accelerators, by text alone on CPUs."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def free_memory() -> None:
    """Collect garbage and empty the allocator's cache. To be called where the error is no longer held: its traceback keeps every tensor."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
