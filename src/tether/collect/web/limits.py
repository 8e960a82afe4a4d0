"""How often somebody may ask, and what guessing costs. State is bounded: the client that was quiet longest is forgotten first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["LARGEST_BODY", "SLOWEST_S", "Guesses", "Rate"]

LARGEST_BODY = 2**20
"""Bytes of a request's body."""

SLOWEST_S = 10.0
"""A request whose head or body takes longer is given up."""

_MOST_CLIENTS = 10_000


@dataclass
class Rate:
    """A token bucket for each client: ``burst`` requests at once, ``per_second`` on average. State: what is left, and since when."""

    per_second: float = 20.0
    burst: float = 40.0
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def admits(self, client: str) -> bool:
        """One more request of this client: True where it may pass."""
        now = self.clock()
        left, since = self._left.pop(client, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.per_second)
        admitted = left >= 1
        self._left[client] = (left - 1 if admitted else left, now)
        _forget(self._left)
        return admitted


@dataclass
class Guesses:
    """Wrong tokens of each address. After ``free`` of them every further one is answered ``delay_s`` later. State: the counts."""

    free: int = 10
    delay_s: float = 1.0
    forgiven_after_s: float = 300.0
    clock: Callable[[], float] = time.monotonic
    _wrong: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    def wrong(self, address: str) -> float:
        """Count one; the seconds to wait before it is answered."""
        now = self.clock()
        count, last = self._wrong.pop(address, (0, now))
        count = 1 if now - last > self.forgiven_after_s else count + 1
        self._wrong[address] = (count, now)
        _forget(self._wrong)
        return self.delay_s if count > self.free else 0.0


def _forget(clients: OrderedDict[str, tuple]) -> None:
    if len(clients) > _MOST_CLIENTS:
        clients.popitem(last=False)
