"""Bad rows as one error that lists them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tether.errors import DataError

__all__ = ["refuse_bad_rows"]

_MAX_SHOWN = 20  # rows written out in full in one error; the others are listed by number


def refuse_bad_rows(problems: Mapping[int, str], source: str, num_rows: int) -> None:
    """Raise one DataError for all bad rows (number from 1 -> what is wrong); nothing when there are none."""
    if not problems:
        return
    numbers = sorted(problems)
    lines = [f"  row {number}: {problems[number]}" for number in numbers[:_MAX_SHOWN]]
    if len(numbers) > _MAX_SHOWN:
        lines.append(f"  and {len(numbers) - _MAX_SHOWN} more: rows {_ranges(numbers[_MAX_SHOWN:])}")
    count = "1 row" if num_rows == 1 else f"{num_rows} rows"
    raise DataError(
        f"{source}: {len(numbers)} of {count} cannot be used; correct or remove them.\n" + "\n".join(lines)
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Example: [3, 4, 5, 9] -> "3-5, 9"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
