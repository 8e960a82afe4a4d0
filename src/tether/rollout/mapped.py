"""Buffers of the key-value cache, in memory of their own.

A cache grows by columns, in new buffers each time, and goes when the answers are drawn. From a heap that keeps what is freed
(``backends.allocator``) it would leave holes that the update after it cannot use. Mapped pages go back to the system at once, and
come as zeros.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["mapped_zeros"]


def mapped_zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """``like.new_zeros(shape)``; on a CPU in pages that are given back when the tensor is."""
    size = math.prod(shape)
    if like.device.type != "cpu" or size == 0:
        return like.new_zeros(tuple(shape))
    pages = mmap.mmap(-1, size * like.element_size())
    return torch.frombuffer(pages, dtype=like.dtype, count=size).view(tuple(shape))
