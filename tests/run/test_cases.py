"""Cases of shared/cases.md about runs. G1 is in test_resume.py, G3 in reliability/test_corruption.py."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from memory_over_steps import measure

MIB = 2**20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_case_K1_memory_does_not_grow_over_300_steps(kind, tmp_path):
    # In a process of its own: what thousands of earlier tests left of the heap decides when the allocator asks for
    # its next arena, and one such arena (5.6 MiB) is more than the case allows a run to grow.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seen = pool.submit(measure, kind, tmp_path).result(timeout=240)
    assert seen.kinds == {float}
    assert len(set(seen.tensors.values())) == 1, seen.tensors
    assert seen.bytes[300] - seen.bytes[100] <= 5 * MIB, seen.bytes
