"""A ConformanceReport as a text table or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from .codec import encode
from .run import ConformanceReport, Failure, OperationResult

_HEADER = ("operation", "dtype", "device", "cases", "passed", "worst abs", "worst rel")
_LONGEST_NUMBERS = 160  # characters of got and expected in the table; the JSON has all


def as_text(report: ConformanceReport) -> str:
    """The table, one line per operation, device and dtype; then what failed; then the verdict."""
    rows = [_HEADER, *(_row(line) for line in report.operations)]
    rows += [(name, "-", "-", str(count), "MISSING", "-", "-") for name, count in report.missing.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    table = [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    failed = [
        text
        for line in report.operations
        for failure in line.failures
        for text in _failure_lines(line, failure)
    ]
    missing = [
        f"MISSING {name}: {_cases(count)}, an operation that is not known"
        for name, count in report.missing.items()
    ]
    return "\n".join([*table, "", *failed, *missing, f"{report.path}: {report.verdict}"])


def as_json(report: ConformanceReport) -> str:
    """The whole report, with the failing numbers in full; numbers that are not finite as in the case format."""
    return json.dumps(encode({**asdict(report), "ok": report.ok, "verdict": report.verdict}), indent=1)


def _row(line: OperationResult) -> tuple[str, ...]:
    return (
        line.operation,
        line.dtype,
        line.device,
        str(line.num_cases),
        str(line.num_passed),
        f"{line.worst.absolute:.1e}",
        f"{line.worst.relative:.1e}",
    )


def _failure_lines(line: OperationResult, failure: Failure) -> list[str]:
    output = f" {failure.output}" if failure.output else ""
    head = (
        f"FAILED {failure.case_id} ({line.operation}, {line.dtype}, {line.device}){output}: {failure.problem}"
    )
    if failure.output is None:
        return [head]
    return [head, f"    got      {_short(failure.got)}", f"    expected {_short(failure.expected)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_NUMBERS else f"{text[: _LONGEST_NUMBERS - 3]}..."


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"
