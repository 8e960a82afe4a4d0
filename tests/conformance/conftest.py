"""What the oracles share: random inputs of awkward shapes, central differences, and the comparison itself."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tether.conformance import run_case
from tether.conformance.codec import encode

Matrix = list[list[float]]
JUNK = (math.nan, math.inf, -math.inf, 1e30)


def single(x: float) -> float:
    """The nearest float32, so that an expectation in exact arithmetic holds for both dtypes."""
    return struct.unpack("f", struct.pack("f", x))[0]


class Draw:
    """Random inputs from one seed; seeds 0 to 2 are the degenerate shapes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        sizes = {0: (1, 1), 1: (1, 6), 2: (5, 1)}
        self.rows, self.columns = sizes.get(seed) or (self.random.randint(2, 6), self.random.randint(2, 8))

    def number(self, low: float = -2.0, high: float = 2.0) -> float:
        return single(self.random.uniform(low, high))

    def row(self, n: int, low: float = -2.0, high: float = 2.0) -> list[float]:
        return [self.number(low, high) for _ in range(n)]

    def matrix(self, low: float = -2.0, high: float = 2.0) -> Matrix:
        return [self.row(self.columns, low, high) for _ in range(self.rows)]

    def mask(self) -> list[list[bool]]:
        """With gaps inside rows and empty rows; at least one live position."""
        mask = [[self.random.random() < 0.65 for _ in range(self.columns)] for _ in range(self.rows)]
        if self.rows > 2:
            mask[self.random.randrange(self.rows)] = [False] * self.columns
        if not any(map(any, mask)):
            mask[self.random.randrange(self.rows)][self.random.randrange(self.columns)] = True
        return mask

    def junk(self, x: Any, mask: Any) -> Any:
        """`x` with what no one may read at the pads."""
        if isinstance(mask, list):
            return [self.junk(one, live) for one, live in zip(x, mask, strict=True)]
        return x if mask else self._fill(x)

    def _fill(self, x: Any) -> Any:
        return [self._fill(one) for one in x] if isinstance(x, list) else self.random.choice(JUNK)

    def groups(self, n: int) -> list[int]:
        """Ids that are neither dense nor contiguous, with a group of one."""
        ids = [self.random.choice([3, 17, 40]) for _ in range(n)]
        ids[0] = 99 if n > 2 else ids[0]
        self.random.shuffle(ids)
        return ids


@pytest.fixture(params=range(9))
def draw(request: pytest.FixtureRequest) -> Draw:
    return Draw(request.param)


def _slope(f: Callable[[], float], row: list, k: int) -> float:
    """Central difference of fourth order in row[k]."""
    x, h = row[k], 1e-4

    def at(step: float) -> float:
        row[k] = x + step * h
        value = f()
        row[k] = x
        return value

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


@pytest.fixture(scope="session")
def slopes() -> Callable[..., Any]:
    """slopes(f, x, live): the gradient of f() in a nested list x, 0 where not live."""

    def walk(f: Callable[[], float], x: list, live: Any = True) -> list:
        out = []
        for k, item in enumerate(x):
            alive = live[k] if isinstance(live, list) else live
            if isinstance(item, list):
                out.append(walk(f, item, alive))
            else:
                out.append(_slope(f, x, k) if alive else 0.0)
        return out

    return walk


@pytest.fixture(scope="session")
def agrees() -> Callable[..., None]:
    """agrees(op, inputs, expected, gradients): through JSON and run_case, in both dtypes."""

    def check(op: str, inputs: dict, expected: dict, gradients: dict | None = None, single: bool = True) -> None:
        def failures(outputs: dict, dtype: torch.dtype, rtol: float, atol: float) -> tuple:
            case = {"id": op, "op": op, "inputs": inputs, "expected": outputs, "rtol": rtol, "atol": atol}
            return run_case(json.loads(json.dumps(encode(case), allow_nan=False)), dtype).failures

        if expected:
            assert failures(expected, torch.float64, 1e-9, 1e-11) == ()
        if gradients:
            assert failures(gradients, torch.float64, 1e-6, 1e-8) == ()
        if single:
            assert failures({**expected, **(gradients or {})}, torch.float32, 0, 0) == ()

    return check
