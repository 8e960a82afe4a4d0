"""Zeros like any others, whose pages go back to the system with the tensor."""

from __future__ import annotations

import pytest
import torch

from tether.backends.allocator import keep_freed_memory
from tether.plan.machine import resident_bytes
from tether.rollout.mapped import mapped_zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 2, 5, 4), (3, 2, 0, 4), (1,)])
def test_they_are_zeros_that_can_be_written(dtype, shape):
    made = mapped_zeros(torch.ones(2, dtype=dtype), shape)
    assert torch.equal(made, torch.zeros(shape, dtype=dtype))
    made += 1
    assert torch.equal(made.clone(), torch.ones(shape, dtype=dtype))
    assert made.is_contiguous()


def test_a_view_keeps_the_pages_and_the_last_one_gives_them_back():
    keep_freed_memory()
    before = resident_bytes()
    made = mapped_zeros(torch.ones(1), (64, 2**20)).fill_(1.0)  # 256 MiB
    view = made[3:]
    del made
    assert resident_bytes() - before > 200 * 2**20
    assert float(view[-1, -1]) == 1.0
    del view
    assert resident_bytes() - before < 100 * 2**20
