"""Values out of JSON that may hold anything: numbers, rows and tables of numbers, or what stands for their absence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["nested", "number", "numbers", "percent", "rows", "whole"]


def rows(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list; none where there is no list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def numbers(value: Any) -> Mapping[str, float]:
    """An object of numbers."""
    return {str(k): number(v) for k, v in value.items()} if isinstance(value, dict) else {}


def number(value: Any) -> float:
    """A float; the log writes "nan" and "inf" as strings. Anything else is NaN."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def percent(value: Any) -> str:
    """A share in words; a dash for what is no number."""
    return f"{100 * value:z.1f} %" if isinstance(value, int | float) and math.isfinite(value) else "–"


def whole(value: Any) -> int:
    """A whole number; 0 for anything else."""
    size = number(value)
    return int(size) if isinstance(value, int | float) and math.isfinite(size) else 0


def nested(value: Any, *keys: str) -> Any:
    """A nested value of a mapping; None where any part of the path is missing."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
