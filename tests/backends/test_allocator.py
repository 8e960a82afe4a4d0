"""The C library keeps freed memory once it is asked to, in a process of its own: the setting cannot be taken back."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from tether.backends.allocator import keep_freed_memory
if sys.argv[1] == "ask":
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


def faults(word: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_a_block_that_was_used_before_costs_no_page_faults():
    assert faults("ask") * 2 < faults("leave")


def test_a_library_without_the_setting_is_left_alone(monkeypatch):
    from tether.backends import allocator

    allocator.keep_freed_memory.cache_clear()
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    assert allocator.keep_freed_memory() is False
    allocator.keep_freed_memory.cache_clear()
