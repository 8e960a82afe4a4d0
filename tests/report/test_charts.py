"""Geometry of curves."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tether.report.charts import HEIGHT, WIDTH, chart, number, thin, ticks

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def _numbers(path: str) -> list[float]:
    return [float(value) for value in re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?", path)]


@given(st.lists(st.floats(), max_size=300))
@example([0.0, -1.6959369196814301e308])  # the span is finite, with room beside it it is not
@example([1.7e308, -1.7e308])
@example([1.7e308])
def test_every_number_gives_a_path_inside_the_frame(values: list[float]):
    drawn = chart("m", "1", "meaning", {"a": list(enumerate(values))})
    xy = _numbers(drawn.lines[0].path)
    assert all(0 <= x <= WIDTH for x in xy[::2])
    assert all(0 <= y <= HEIGHT for y in xy[1::2])
    assert drawn.lines[0].not_finite == sum(not math.isfinite(v) for v in values)


def test_counts_that_stay_zero_have_no_negative_ticks():
    ticks_of_zeros = chart("m", "steps", "", {"a": [(1, 0.0), (2, 0.0)]}).y_ticks
    assert ticks_of_zeros[0][1] == "0"


def test_points_of_a_scatter_stand_away_from_the_frame_and_are_not_called_last():
    drawn = chart("m", "score", "", {"a": [(0.0, 1.0)], "b": [(2.0, 3.0)]}, scatter=True)
    line = chart("m", "score", "", {"a": [(0.0, 1.0), (2.0, 3.0)]})
    assert min(mark.x for one in drawn.lines for mark in one.marks) > min(mark.x for mark in line.lines[0].marks)
    assert max(mark.x for one in drawn.lines for mark in one.marks) < WIDTH - 8
    assert drawn.summary == "m (score). a: 1; b: 3"
    assert line.summary == "m (score). a: last 3"


def test_a_number_that_is_not_finite_breaks_the_line():
    drawn = chart("m", "1", "", {"a": [(1, 0.0), (2, 1.0), (3, math.nan), (4, 1.0), (5, 0.0)]})
    assert drawn.lines[0].path.count("M") == 2
    assert [mark.label for mark in drawn.lines[0].marks] == [
        "a: 0 at 1",
        "a: 1 at 2",
        "a: 1 at 4",
        "a: 0 at 5",
    ]


def test_higher_is_drawn_higher():
    y = _numbers(chart("m", "1", "", {"a": [(1, 0.0), (2, 5.0)]}).lines[0].path)[1::2]
    assert y[1] < y[0]


@given(FINITE, FINITE, st.integers(2, 8))
def test_ticks_lie_inside_and_rise(a: float, b: float, count: int):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, count)
    room = 1e-6 * (high - low) if math.isfinite(high - low) else 0
    assert all(low - room <= t <= high + room for t in found)
    assert found == sorted(found)
    assert len(found) <= 3 * count


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3, 3, []), (0, 40, [0, 10, 20, 30, 40])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]):
    assert ticks(low, high, 4) == expected


@given(st.lists(FINITE, min_size=1, max_size=2000), st.integers(8, 100))
def test_thinning_keeps_the_peaks_and_the_ends(values: list[float], most: int):
    kept = thin(list(enumerate(values)), most)
    assert len(kept) <= most + 8
    assert (kept[0], kept[-1]) == ((0, values[0]), (len(values) - 1, values[-1]))
    assert max(y for _, y in kept) == max(values)
    assert min(y for _, y in kept) == min(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (12.0, "12"), (math.nan, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (-0.0, "0")],
)
def test_numbers_are_short(value: float, text: str):
    assert number(value) == text
