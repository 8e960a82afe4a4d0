"""The C library keeps freed memory once it is asked to, in a process of its own: the setting cannot be taken back."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import pytest

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
