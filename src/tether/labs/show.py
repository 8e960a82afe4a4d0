"""A lab's result for the terminal, as text within 100 columns, and for a program, as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict

from tether.labs.result import LabResult, Table

__all__ = ["WIDTH", "as_json", "as_text"]

WIDTH = 100  # columns
GAP = "  "


def as_text(result: LabResult) -> str:
    """Question, tables and notes, in the order of reading; no escape sequences."""
    head = textwrap.fill(f"{result.name}: {result.question}", WIDTH, subsequent_indent=GAP)
    notes = [textwrap.fill(note, WIDTH, initial_indent="* ", subsequent_indent=GAP) for note in result.notes]
    return "\n\n".join([head, *map(_table, result.tables), "\n".join(notes)]).rstrip() + "\n"


def as_json(result: LabResult) -> str:
    """Everything in the result, unrounded. Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"."""
    return json.dumps(_finite(asdict(result)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _table(table: Table) -> str:
    columns = [
        [name, *(_cell(row[i], spec) for row in table.rows)]
        for i, (name, spec) in enumerate(zip(table.columns, table.formats, strict=True))
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        GAP + GAP.join(
            cell.rjust(width) if spec else cell.ljust(width)
            for cell, width, spec in zip(line, widths, table.formats, strict=True)
        )
        for line in zip(*columns, strict=True)
    ]  # fmt: skip
    return "\n".join([textwrap.fill(table.title, WIDTH), *(line.rstrip() for line in lines)])


def _cell(value: float | int | str, spec: str) -> str:
    if isinstance(value, str):
        return value
    text = format(value, spec)
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text  # no "-0.000"


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value
