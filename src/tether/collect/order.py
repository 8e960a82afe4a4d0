"""Which side an answer is shown on, and every other draw: pure functions of the seed, never of the clock or of who came first."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

__all__ = ["display_order", "share_of", "uniform"]


def uniform(*parts: object) -> float:
    """A number in [0, 1) that is a function of the parts alone: the first 53 bits of a hash."""
    return (int.from_bytes(_digest(parts)[:8], "big") >> 11) / 2**53


def share_of(share: float, *parts: object) -> bool:
    """True for that share of all values of the parts."""
    return uniform(*parts) < share


def display_order(answers: Sequence[str], seed: int, annotator_number: int, item_number: int) -> tuple[str, ...]:
    """The answers as this annotator sees them, left to right.

    Annotators and items are numbered from 0 as they were added. In a block of K annotators and K items (K answers) the order is one drawn
    permutation, turned by (annotator + item) mod K: of K consecutive items an annotator sees each answer place equally often, and of K
    consecutive annotators each sees another answer of an item first. Reloading the page gives the same order.

    Example (K = 2): an annotator sees one of items 0 and 1 with answers[0] on the left and the other one with answers[1] on the left.
    """
    size = len(answers)
    block = (seed, annotator_number // size, item_number // size)
    drawn = sorted(range(size), key=lambda place: _digest(("order", *block, place)))
    turn = (annotator_number + item_number) % size
    return tuple(answers[drawn[(place + turn) % size]] for place in range(size))


def _digest(parts: Sequence[object]) -> bytes:
    return hashlib.blake2b(repr(tuple(parts)).encode("utf-8"), digest_size=16).digest()
