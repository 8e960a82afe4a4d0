"""Numbers with their units, as sentences, tables and pages write them."""

from __future__ import annotations

__all__ = ["percent", "percent_range", "seconds"]


def seconds(value: float) -> str:
    """Example: 1.23 -> "1.2 s", 14.4 -> "14 s"."""
    return f"{value:z.1f} s" if value < 10 else f"{value:z.0f} s"


def percent(share: float) -> str:
    """Example: 0.7 -> "70 %"."""
    return f"{100 * share:z.0f} %"


def percent_range(low: float, high: float) -> str:
    """The ends of an interval, after its ``percent``. Example: 0.62, 0.78 -> "[62, 78]"."""
    return f"[{100 * low:z.0f}, {100 * high:z.0f}]"
