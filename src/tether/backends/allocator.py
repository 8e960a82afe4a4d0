"""Memory that a training process has used once stays with it, and what lies between its tensors is kept small.

Large tensors come and go every few milliseconds.

glibc gives blocks above a threshold back to the kernel when they are freed, and gets them again as pages full of zeros. On a CPU that is a
quarter of an update's time (bench/RESULTS.md). It reads environment variables for this at the start of a process; we ask it at run time,
so that nobody has to know them.

oneDNN compiles a kernel for every shape that it multiplies, a quarter MiB each, and both it and PyTorch hold the last 1,024 of them.
Answers and passes come in ever other shapes, so that a long run ends up with half a GiB of kernels, scattered where the tensors of the
next pass would have lain. A pass or a decode step has some thirty shapes.
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["keep_few_kernels", "keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_LARGEST = 2**31 - 1  # what an int holds
_KERNELS = "64"
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN, and of PyTorch's layer over it


def keep_few_kernels() -> None:
    """Ask oneDNN and PyTorch to hold 64 compiled kernels each; they read it at their first product. A variable that is set stays."""
    for name in _CAPACITIES:
        os.environ.setdefault(name, _KERNELS)


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep freed blocks of any size for this process. False where it has no such setting (musl, macOS, Windows).

    Another allocator that is preloaded (jemalloc, tcmalloc) never sees the request and does as it is configured.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))
