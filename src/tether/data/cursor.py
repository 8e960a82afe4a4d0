"""The position in the data: which items come next, and the state that makes a resumed run see the same
ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from tether.errors import DataError

__all__ = ["Cursor", "epoch_order"]

_KEYS = ("num_items", "seed", "epoch", "position")


@final
class Cursor:
    """Endless indices over N items: every item once per epoch, in an order that is a function of (seed,
    epoch) alone.
    """

    def __init__(self, num_items: int, seed: int) -> None:
        if num_items < 1:
            raise DataError(f"no items to walk over: expected at least 1, got {num_items}.")
        self.num_items, self.seed = num_items, seed
        self._epoch = self._position = 0
        self._order = epoch_order(num_items, seed, 0)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Cursor:
        """The cursor that wrote `state`, at the same place."""
        wrong = {key: state.get(key) for key in _KEYS if type(state.get(key)) is not int}
        if wrong or set(state) - set(_KEYS):
            raise DataError(
                f"not the state of a data cursor: expected whole numbers {', '.join(_KEYS)}, got "
                f"{dict(state)}."
            )
        cursor = cls(state["num_items"], state["seed"])
        if state["epoch"] < 0 or not 0 <= state["position"] < state["num_items"]:
            raise DataError(f"the state of the data cursor is out of range: {dict(state)}.")
        cursor._move(state["epoch"], state["position"])
        return cursor

    def go_to(self, state: Mapping[str, Any]) -> None:
        """Move this cursor to the place of `state`, which must be of the same items and seed."""
        other = Cursor.from_state(state)
        if (other.num_items, other.seed) != (self.num_items, self.seed):
            raise DataError(
                f"the cursor of the checkpoint walks over {other.num_items} items with seed {other.seed}, this "
                f"one over {self.num_items} with seed {self.seed}: the data are not the same."
            )
        self._move(other.epoch, other.position)

    @property
    def epoch(self) -> int:
        """Number of epochs completed."""
        return self._epoch

    @property
    def position(self) -> int:
        """Items already given of the current epoch."""
        return self._position

    def next(self, n: int) -> list[int]:
        """The next n indices, going on into the next epoch where this one ends."""
        if n < 0:
            raise DataError(f"cannot take {n} items: expected 0 or more.")
        taken: list[int] = []
        while len(taken) < n:
            part = self._order[self._position : self._position + n - len(taken)]
            taken += part.tolist()
            end = self._position + len(part)
            self._move(self._epoch + end // self.num_items, end % self.num_items)
        return taken

    def next_within_epoch(self, n: int) -> list[int]:
        """The next n items, or what is left of this epoch: an optimiser step that never mixes two epochs."""
        return self.next(min(n, self.num_items - self.position % self.num_items))

    def state(self) -> dict[str, int]:
        """Plain numbers for a checkpoint."""
        return {
            "num_items": self.num_items,
            "seed": self.seed,
            "epoch": self._epoch,
            "position": self._position,
        }

    def _move(self, epoch: int, position: int) -> None:
        if epoch != self._epoch:
            self._order = epoch_order(self.num_items, self.seed, epoch)
        self._epoch, self._position = epoch, position


def epoch_order(num_items: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of one epoch: items sorted by a hash of (seed, epoch, item), the same on every machine
    and version.
    """
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    with np.errstate(
        over="ignore"
    ):  # arithmetic modulo 2**64 (splitmix64); distinct inputs give distinct keys
        keys = start + np.arange(1, num_items + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(keys ^ (keys >> np.uint64(31)), kind="stable")
