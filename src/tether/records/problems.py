"""Bad rows as one error that lists them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tether.errors import DataError

__all__ = ["refuse_bad_rows"]

_MAX_SHOWN = 20  # different problems written out in one error; the other rows are listed by number
_MAX_SPANS = 20  # spans such as 3-5 in one list of row numbers


def refuse_bad_rows(problems: Mapping[int, str], source: str, num_rows: int) -> None:
    """Raise one DataError for all bad rows (number from 1 -> what is wrong); nothing when there are none.

    Rows that share a problem share a line.
    """
    if not problems:
        return
    by_problem: dict[str, list[int]] = {}
    for number in sorted(problems):
        by_problem.setdefault(problems[number], []).append(number)
    shown, rest = list(by_problem.items())[:_MAX_SHOWN], list(by_problem.values())[_MAX_SHOWN:]
    lines = [f"  {_rows(numbers)}: {problem}" for problem, numbers in shown]
    if rest:
        others = sorted(number for numbers in rest for number in numbers)
        lines.append(f"  and {len(others)} more: {_rows(others)}")
    count = "1 row" if num_rows == 1 else f"{num_rows} rows"
    raise DataError(
        f"{source}: {len(problems)} of {count} cannot be used; correct or remove them.\n" + "\n".join(lines)
    )


def _rows(numbers: Sequence[int]) -> str:
    return f"row {numbers[0]}" if len(numbers) == 1 else f"rows {_ranges(numbers)}"


def _ranges(numbers: Sequence[int]) -> str:
    """Example: [3, 4, 5, 9] -> "3-5, 9"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans[:_MAX_SPANS])
    left = sum(b - a + 1 for a, b in spans[_MAX_SPANS:])
    return f"{text} and {left} further ones" if left else text
