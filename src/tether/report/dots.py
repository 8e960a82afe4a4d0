"""Values of things that have no order, people or bins, as dots with their intervals: one row each, never a line between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tether.report.charts import WIDTH, number, ticks

__all__ = ["DotChart", "DotRow", "dot_chart"]

_LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 104.0, 12.0, 8.0, 17.0, 36.0
_LONGEST_NAME = 15  # characters that fit beside the frame


@dataclass(frozen=True, slots=True)
class DotRow:
    """One row in coordinates of the viewBox; ``short``: the name as far as it fits; ``label``: name, value and interval in words."""

    y: float
    x: float
    low: float
    high: float
    short: str
    label: str
    marked: bool


@dataclass(frozen=True, slots=True)
class DotChart:
    """A chart ready to draw. ``reference``: (position, meaning) of the line that values are held against, None without one."""

    title: str
    unit: str
    meaning: str
    height: float
    rows: tuple[DotRow, ...]
    x_ticks: tuple[tuple[float, str], ...]
    reference: tuple[float, str] | None
    legend: str

    @property
    def summary(self) -> str:
        """The chart in words, for those who cannot see it."""
        return f"{self.title} ({self.unit}). " + "; ".join(row.label for row in self.rows)


def dot_chart(
    title: str,
    unit: str,
    meaning: str,
    rows: Sequence[tuple[str, float, float, float]],
    *,
    reference: tuple[float, str] | None = None,
    bounds: tuple[float, float] | None = None,
    marked: frozenset[str] = frozenset(),
    confidence: float = 0.95,
) -> DotChart:
    """``rows``: (name, value, low, high), drawn from top to bottom. ``bounds``: what always lies inside the frame, such as 0 and 1 for a
    share. An interval without an end reaches the frame. ``marked``: names that stand out. Raises ValueError without a finite value.
    """
    kept = [row for row in rows if math.isfinite(row[1])]
    if not kept:
        raise ValueError(f"{title}: no value to draw")
    inside = [end for _, *ends in kept for end in ends if math.isfinite(end)] + list(bounds or ()) + ([reference[0]] if reference else [])
    low, high = min(inside), max(inside)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def across(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return round(_LEFT + share * (WIDTH - _RIGHT - _LEFT), 1)

    drawn = tuple(
        DotRow(
            _TOP + _ROW * (k + 0.5), across(value), across(least), across(most),
            _short(name), _told(name, value, least, most), name in marked,
        )
        for k, (name, value, least, most) in enumerate(kept)
    )
    legend = f"dot: value; bar: {confidence:z.0%} interval" + (f"; line: {reference[1]}" if reference else "")
    legend += "; orange: named" if any(row.marked for row in drawn) else ""
    line = (across(reference[0]), reference[1]) if reference else None
    places = tuple((across(value), number(value)) for value in ticks(low, high, 4))
    return DotChart(title, unit, meaning, _TOP + _ROW * len(drawn) + _BOTTOM, drawn, places, line, legend)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _told(name: str, value: float, low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{name}: {number(value)}, too little for an interval"
    return f"{name}: {number(value)} [{number(low)}, {number(high)}]"
