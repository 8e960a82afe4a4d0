"""Which rows go through the model together, and which rows share an optimiser step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch

from tether.errors import DataError

__all__ = ["microbatches", "minibatches"]


def microbatches(lengths: Sequence[int], token_budget: int, families: Sequence[Hashable] | None = None) -> list[list[int]]:
    """Row indices in passes with rows * longest row <= token_budget, longest first; every index once.

    ``families``: a name per row; rows of one name (answers to one prompt, which a pass computes once) stay together, unless one pass does
    not hold them all. A row longer than the budget stands alone. The passes depend on lengths and names alone, and rows that fit into one
    pass stay in it as they are. Examples: lengths [2, 5, 3], budget 6 -> [[1], [2, 0]]; lengths [2, 5, 3, 5], budget 10, families
    a, b, b, a -> [[1, 2], [3, 0]].
    """
    if token_budget < 1:
        raise DataError(f"the token budget of a microbatch must be at least 1, got {token_budget}.")
    if any(length < 0 for length in lengths):
        raise DataError(f"lengths must not be negative, got {min(lengths)}.")
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    members: dict[Hashable, list[int]] = {}
    for index in longest_first:
        members.setdefault(index if families is None else families[index], []).append(index)
    passes: list[list[int]] = []
    for family in members.values():
        longest = lengths[passes[-1][0]] if passes else -1  # the first row of a pass is its longest
        if lengths[family[0]] <= longest and (len(passes[-1]) + len(family)) * longest <= token_budget:
            passes[-1] += family
            continue
        size = max(1, token_budget // max(1, lengths[family[0]]))
        passes += [family[first : first + size] for first in range(0, len(family), size)]
    return passes


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
