"""What a process is asked to hold and not to hold, in processes of their own: the settings cannot be taken back."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import resource
import torch
from tether.backends.allocator import keep_freed_memory
assert keep_freed_memory() and keep_freed_memory()
torch.set_num_threads(1)
touch = lambda: torch.empty(2**24).fill_(1.0)  # 64 MiB, beyond what glibc keeps by itself
for _ in range(30):  # the heap finds its size: small blocks settle in the gaps
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_a_block_that_was_used_before_costs_no_page_faults():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 10 * (2**26 // mmap.PAGESIZE) / 2  # without it every page of every block is asked for again


def test_a_library_without_the_setting_is_left_alone(monkeypatch):
    from tether.backends import allocator

    allocator.keep_freed_memory.cache_clear()
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    assert allocator.keep_freed_memory() is False
    allocator.keep_freed_memory.cache_clear()


KERNELS = """
import ctypes
import torch
from tether.backends.compute import resolve_compute
from tether.config import ComputeConfig
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
told = type("mallinfo2", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names.split()]})
mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = told
resolve_compute(ComputeConfig(threads=1))
matrix = torch.ones(96, 64, dtype=torch.bfloat16)
multiply = lambda rows: torch.nn.functional.linear(torch.ones(rows, 64, dtype=torch.bfloat16), matrix)
for rows in range(1, 100):
    multiply(rows)
before = mallinfo2().uordblks
for rows in range(100, 500):
    multiply(rows)
print(mallinfo2().uordblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library has no mallinfo2")
def test_products_of_ever_other_shapes_do_not_fill_the_heap_with_kernels():
    """400 kernels of about 60 kB and more each would, and do where somebody asks for it."""
    grown = {}
    for capacity in (None, "1024"):
        names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
        others = {name: value for name, value in os.environ.items() if name not in names}
        asked = others | (dict.fromkeys(names, capacity) if capacity else {})
        done = subprocess.run([sys.executable, "-c", KERNELS], capture_output=True, text=True, timeout=120, env=asked)
        assert done.returncode == 0, done.stderr
        grown[capacity] = int(done.stdout)
    assert grown[None] < 2**20
    if torch.cpu.get_capabilities().get("avx512_bf16"):  # others multiply bfloat16 without kernels that are made for a shape
        assert grown["1024"] > 2**22
