"""The growth bench: slopes of known curves, and the table that RESULTS.md takes."""

from __future__ import annotations

import pytest

from bench import growth


def points(power):
    return [
        {"answer_tokens": n, "group": 4, "tokens": n, **dict.fromkeys((*growth._PHASES, "seconds"), (n / 100) ** power), "peak_mib": 1.0}
        for n in (32, 64, 512)
    ]


@pytest.mark.parametrize("power", [1, 2])
def test_the_exponent_is_the_power_of_the_curve(power):
    assert growth._slope(points(power), "update_seconds") == pytest.approx(power)


def test_a_table_has_a_row_for_every_point_and_the_exponents():
    table = growth._table("tokens of an answer", points(1)).splitlines()
    assert table[2] == "| 32 | 32 | 0.32 | 0.32 | 0.32 | 0.32 | 10.0 | 1 |"
    assert len(table[:5]) == 5
    assert table[-1] == "Exponent of seconds in tokens: generate 1.00, reference 1.00, update 1.00, step 1.00."
