"""Watches for displacement: the chosen answers become less likely while the margin that the loss looks at keeps growing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tether.state import State

__all__ = ["Displacement", "DisplacementWatch", "displacement"]

_WINDOW = 20  # steps looked at
_ENOUGH = 8  # fewer points give no standard error worth the name
_ERRORS = 3.0  # standard errors that a trend must exceed: chance does that once in some hundred windows
_SMALLEST_FALL = 1.0  # nats per sequence over the window: chosen answers e times less likely


@dataclass(frozen=True)
class Displacement:
    """Over the last ``num_steps`` steps: how far the chosen log-probability fell, and where it is against the start (nats per sequence)."""

    num_steps: int
    fall: float
    level: float

    def __str__(self) -> str:
        return (
            f"displacement: over the last {self.num_steps} steps the log-probability of the chosen answers fell by {self.fall:z.1f} nats "
            f"per sequence (now {self.level:+z.1f} against the start) while the margin rose. Both answers become less likely, the rejected "
            "one faster, and the probability goes to answers that nobody compared. What people do about it: add the cross-entropy of the "
            "chosen answers to the loss (sft_coef = 0.1 to 1), raise beta, lower the learning rate or stop here, drop pairs whose two "
            "answers are nearly the same, or compare answers of the policy itself (online_dpo). Read held-out answers before you trust "
            "the margin"
        )


def displacement(chosen: Sequence[float], margins: Sequence[float]) -> Displacement | None:
    """What to say of the last steps, if anything: of the mean change of the chosen log-probability, and of the margin, step by step.

    Both trends (least squares over the last 20 steps, at least 8) must exceed 3 of their standard errors, chosen down and margin up; the
    fall must come to 1 nat per sequence, and the last quarter must lie below the start.
    """
    points = [(c, m) for c, m in zip(chosen, margins, strict=True) if math.isfinite(c) and math.isfinite(m)][-_WINDOW:]
    if len(points) < _ENOUGH:
        return None
    falling, fall_errors = _trend([c for c, _ in points])
    rising, rise_errors = _trend([m for _, m in points])
    fall = -falling * (len(points) - 1)
    last = [c for c, _ in points[-(len(points) // 4) :]]
    level = sum(last) / len(last)
    if fall < _SMALLEST_FALL or level >= 0 or rising <= 0 or min(fall_errors, rise_errors) < _ERRORS:
        return None
    return Displacement(len(points), fall, level)


def _trend(values: Sequence[float]) -> tuple[float, float]:
    """(slope per step, its size in standard errors) of a least-squares line. Example: [0, 1, 2] -> (1, inf)."""
    n = len(values)
    middle, mean = (n - 1) / 2, sum(values) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread
    rest = sum((value - mean - slope * (i - middle)) ** 2 for i, value in enumerate(values))
    error = math.sqrt(rest / (n - 2) / spread)
    return slope, abs(slope) / error if error > 0 else math.inf


class DisplacementWatch:
    """Says it once per stage. State: the two curves of the last steps, and whether it was said."""

    def __init__(self) -> None:
        self._chosen: list[float] = []
        self._margins: list[float] = []
        self._said = False

    def see(self, chosen: float, margin: float) -> Displacement | None:
        """Take one step's numbers; the finding, the first time there is one."""
        self._chosen = [*self._chosen, chosen][-_WINDOW:]
        self._margins = [*self._margins, margin][-_WINDOW:]
        found = None if self._said else displacement(self._chosen, self._margins)
        self._said = self._said or found is not None
        return found

    def state(self) -> State:
        """Both curves as text-safe numbers (a step of kto may lack one side)."""
        curves = {"chosen": self._chosen, "margins": self._margins}
        return State(values={**{name: [str(value) for value in curve] for name, curve in curves.items()}, "said": self._said})

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        self._chosen, self._margins = ([float(value) for value in state.values[name]] for name in ("chosen", "margins"))
        self._said = bool(state.values["said"])
