"""Numbers to the geometry of a curve: scales, ticks, SVG path data. No markup here; the template draws.

Coordinates are those of the viewBox, y downwards. Points that are not finite break a line and are counted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["HEIGHT", "WIDTH", "Callout", "Chart", "Line", "Mark", "chart", "number", "thin", "ticks"]

WIDTH, HEIGHT = 340.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 8.0, 10.0, 36.0
_MOST_MARKS = 60  # beyond, single points are no longer drawn, only the line

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """One point with the words shown when it is pointed at."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Callout:
    """A point that is named in the picture; ``ring``: also circled. In a chart its place is that of the viewBox."""

    x: float
    y: float
    label: str
    ring: bool = False
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One series: ``path`` is SVG path data, ``colour`` an index into the palette, ``last`` the last value
    in words.
    """

    name: str
    colour: int
    path: str
    marks: tuple[Mark, ...]
    last: str
    not_finite: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart ready to draw. Ticks are (position, label)."""

    title: str
    unit: str
    meaning: str
    x_label: str
    scatter: bool
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    healthy: str = ""
    callouts: tuple[Callout, ...] = ()

    @property
    def summary(self) -> str:
        """The chart in words, for those who cannot see it."""
        return f"{self.title} ({self.unit}). " + "; ".join(
            f"{line.name}: {'' if self.scatter else 'last '}{line.last}" for line in self.lines
        ) + "".join(f"; {callout.label}" for callout in self.callouts if callout.ring)


def chart(
    title: str,
    unit: str,
    meaning: str,
    series: Mapping[str, Points],
    *,
    x_label: str = "step",
    scatter: bool = False,
    healthy: str = "",
    most_points: int = 240,
    callouts: Sequence[Callout] = (),
    names: Mapping[str, Sequence[str]] | None = None,
) -> Chart:
    """Lay out one chart; the order of ``series`` decides the colours. A series without a finite point keeps
    its legend. In a ``scatter`` every series is a single point, away from the frame. ``names``: of the points of a series,
    shown when they are pointed at. Series of more than ``most_points`` are thinned, and ``meaning`` says so.
    """
    if any(len(points) > most_points for points in series.values()):
        meaning = f"{meaning} Drawn with about {most_points} of its points, every peak among them.".lstrip()
    finite = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        for name, points in series.items()
    }
    everything = [point for points in finite.values() for point in points]
    x_scale = _Scale.over([x for x, _ in everything], _LEFT, WIDTH - _RIGHT, pad=0.1 if scatter else 0.0)
    y_scale = _Scale.over([y for _, y in everything], HEIGHT - _BOTTOM, _TOP, pad=0.15 if scatter else 0.06)
    lines = tuple(
        _line(name, index, points, x_scale, y_scale, most_points, (names or {}).get(name))
        for index, (name, points) in enumerate(series.items())
    )
    placed = [replace(c, x=x_scale(c.x), y=y_scale(c.y)) for c in callouts if math.isfinite(c.x) and math.isfinite(c.y)]
    return Chart(title, unit, meaning, x_label, scatter, lines, x_scale.ticks(5), y_scale.ticks(4), healthy, _apart(placed))


def _apart(callouts: Sequence[Callout]) -> tuple[Callout, ...]:
    """Without those whose words would stand on another's; circled ones stay and come first."""
    kept: list[Callout] = []
    for callout in sorted(callouts, key=lambda c: not c.ring):
        if callout.ring or all(abs(callout.x - k.x) > 90 or abs(callout.y - k.y) > 14 for k in kept):
            kept.append(callout)
    return tuple(kept)


_LARGEST = sys.float_info.max / 4  # so that a span with its room does not overflow; what lies beyond is drawn at the border


@dataclass(frozen=True, slots=True)
class _Scale:
    """Linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, pad: float = 0.0) -> _Scale:
        """All of ``values`` with ``pad`` of their span beyond each end; a series of zeros, mostly counts and shares, gets 0 to 1."""
        if values and not any(values):
            return cls(0.0, 1.0, start, end)
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        low, high = (min(max(bound, -_LARGEST), _LARGEST) for bound in (low, high))
        room = (high - low) * pad or (abs(high) * 0.1 or 1.0) * (low == high)
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self, count: int) -> tuple[tuple[float, str], ...]:
        return tuple((self(value), number(value)) for value in ticks(self.low, self.high, count))


def _line(
    name: str, index: int, points: Points, x_scale: _Scale, y_scale: _Scale, most_points: int, names: Sequence[str] | None
) -> Line:
    said = names or [f"{name}: {number(y)} at {number(x)}" for x, y in points]
    finite = [(x, y, text) for (x, y), text in zip(points, said, strict=True) if math.isfinite(x) and math.isfinite(y)]
    parts, pen_down = [], False
    for x, y in thin(points, most_points):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{x_scale(x):g} {y_scale(y):g}")
        pen_down = True
    shown = finite if len(finite) <= _MOST_MARKS else finite[-1:]
    marks = tuple(Mark(x_scale(x), y_scale(y), text) for x, y, text in shown)
    last = number(points[-1][1]) if points else "none"
    return Line(name, index % 8, "".join(parts), marks, last, len(points) - len(finite))


def thin(points: Points, most: int) -> Points:
    """At most about ``most`` points that keep every peak: first, lowest, highest and last of each bucket; a
    gap (NaN) stays a gap.
    """
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / max(most // 4, 1))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        bucket = range(start, min(start + size, len(points)))
        finite = [i for i in bucket if math.isfinite(points[i][1])]
        chosen = {bucket[0], bucket[-1]}
        if finite:
            chosen |= {min(finite, key=lambda i: points[i][1]), max(finite, key=lambda i: points[i][1])}
        kept += [points[i] for i in sorted(chosen)]
    return kept


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values inside [low, high], about ``count``. Example: (0, 1, 4) -> [0, 0.2, 0.4, 0.6, 0.8, 1]."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return []
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1.0, 2.0, 5.0, 10.0)), key=lambda s: abs(math.log(s / raw)))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) + 0.0 if step > 1e-9 else k * step for k in range(first, last + 1)]


def number(value: float) -> str:
    """Short and honest: four digits, a dash for NaN. Example: 0.123456 -> "0.1235", 12 -> "12"."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.4g}"
