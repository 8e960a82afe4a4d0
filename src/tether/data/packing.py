"""Which rows go through the model together, and which rows share an optimiser step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from tether.errors import DataError

__all__ = ["microbatches", "minibatches"]


def microbatches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Row indices in groups with rows * longest row <= token_budget, longest first; every index once.

    A row longer than the budget stands alone. The groups depend on the lengths alone. Example: lengths [2,
    5, 3], budget 6 ->
    [[1], [2, 0]].
    """
    if token_budget < 1:
        raise DataError(f"the token budget of a microbatch must be at least 1, got {token_budget}.")
    if any(length < 0 for length in lengths):
        raise DataError(f"lengths must not be negative, got {min(lengths)}.")
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= token_budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def minibatches(num_rows: int, num_minibatches: int, generator: torch.Generator) -> list[list[int]]:
    """A random order of the rows in `num_minibatches` parts whose sizes differ by at most one; every row
    once.

    No part is empty: with fewer rows than parts there is one part per row. Example: 5 rows, 2 parts -> sizes
    3 and 2.
    """
    if num_minibatches < 1 or num_rows < 0:
        raise DataError(f"expected at least 1 minibatch and 0 rows, got {num_minibatches} and {num_rows}.")
    parts = min(num_minibatches, num_rows)
    if parts == 0:
        return []
    order = torch.randperm(num_rows, generator=generator, device=generator.device).tolist()
    small, longer = divmod(num_rows, parts)
    starts = [part * small + min(part, longer) for part in range(parts + 1)]
    return [order[a:b] for a, b in pairwise(starts)]
