"""No number is shown as minus zero: "-0.000" reads as a loss that there is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tether.collect.stats.words import interval_text
from tether.progress import headline
from tether.report.charts import number
from tether.stats import Interval

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tether"
SHOWING = ("collect", "report", "run/reward_audit")
ALONE = (
    "audit.py", "compare.py", "progress.py", "run/best_of_n.py", "run/best_of_n_command.py", "run/cards.py", "run/direct_stage.py",
    "run/displacement.py", "run/evaluate_stage.py", "run/evaluate_text.py", "run/reward_stage.py", "stats.py",
)  # fmt: skip
"""What prints measured values. Python's format option z (PEP 682) turns what is rounded to minus zero into zero."""

_FIXED = re.compile(r"\.\d+[f%]$|^[^z]*\+[^z]*\.\d+g$")


def _specs(file: Path) -> Iterator[tuple[int, str, str]]:
    """(line, expression, format) of every replacement field of an f-string."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            yield node.lineno, ast.unparse(node.value), ast.unparse(node.format_spec)[2:-1]


def test_fixed_point_numbers_have_no_minus_zero():
    files = [file for room in SHOWING for file in sorted((PACKAGE / room).rglob("*.py"))] + [PACKAGE / name for name in ALONE]
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: {{{value}:{spec}}} can print -0; add the option z, as in {{x:+z.3f}}"
        for file in files
        for line, value, spec in _specs(file)
        if _FIXED.search(spec) and "z" not in spec
    ]
    assert found == []


@pytest.mark.parametrize("value", [-0.0, -1e-9, -0.0004, -1e-320])
def test_small_numbers_below_zero_are_not_minus_zero(value: float):
    shown = [
        number(value),
        interval_text(Interval(value, value, value, 0.95, 9)),
        headline({"reward": value, "kl_k1_token": value}),
    ]
    assert [text for text in shown if re.search(r"-0(\.0*)?(?![.\de])", text)] == []
