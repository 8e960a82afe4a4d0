"""What a lab returns: tables to read, curves to draw, figures for a program, and what to say beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Curve", "LabResult", "Panel", "Table"]

Cell = float | int | str
Figure = float | int | str | list["Figure"] | dict[str, "Figure"]


@dataclass(frozen=True)
class Table:
    """One table. ``formats``: a format specification per column (".4f", "d", "" for text), in the order of ``columns``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    formats: tuple[str, ...]


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with units in the labels. ``log_x``: logarithmic horizontal axis."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False


@dataclass(frozen=True)
class LabResult:
    """``question`` is what the lab asks, one sentence; ``notes`` what its figures show and what they do not.

    ``figures``: every number of the lab unrounded, by name, for ``--json`` and for tests.
    """

    name: str
    question: str
    tables: tuple[Table, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
