"""K ranked answers to one prompt, and files whose rows are comparisons, rankings, or both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tether.errors import DataError
from tether.records.fields import (
    Row,
    absent,
    as_mapping,
    check_answer,
    check_same_kind,
    field_names,
    has,
    kind_of,
    prompt_field,
    text_field,
)
from tether.records.rows import comparison_from_row, read_rows
from tether.types import Comparison, Ranking

__all__ = ["ranking_from_row", "read_judgements"]


def ranking_from_row(row: Row) -> Ranking:
    """A ranking from `prompt`, `answers` (K texts or conversations) and `ranking`: their numbers from 0, the best first, equals in a list.

    Example: answers [a, b, c, d], ranking [2, [0, 3], 1] -> c is best, a and d tie, b is worst: places (2, 4, 1, 2).
    """
    row = as_mapping(row)
    if missing := absent(row, "prompt", "answers", "ranking"):
        raise DataError(f"{missing}: expected `prompt`, `answers`, `ranking`; {field_names(row)}.")
    prompt, answers = prompt_field(row, "prompt"), row["answers"]
    if not isinstance(answers, Sequence) or isinstance(answers, str) or len(answers) < 2:
        raise DataError(f"`answers` must be a list of at least two answers, got {kind_of(answers)}.")
    read = []
    for number, answer in enumerate(answers):
        name = f"answers[{number}]"
        text = text_field({name: answer}, name)
        check_same_kind(prompt, text, name)
        check_answer(text, name)
        read.append(text)
    return Ranking(prompt, tuple(read), _places(row["ranking"], len(read)))


def read_judgements(rows: Iterable[Row | DataError], source: str) -> list[Comparison | Ranking]:
    """Every row as a comparison, or as a ranking where it has `answers`; one DataError with all bad rows."""
    return read_rows(rows, source, lambda row, _: ranking_from_row(row) if has(as_mapping(row), "answers") else comparison_from_row(row))


def _places(ranking: Any, count: int) -> tuple[int, ...]:
    """Competition places ("1224"): equals share the best place among them."""
    groups = [group if isinstance(group, list) else [group] for group in ranking] if isinstance(ranking, list) else []
    flat = [number for group in groups for number in group]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in flat) or sorted(flat) != list(range(count)):
        raise DataError(
            f"`ranking` must hold the numbers 0 to {count - 1} of the answers, each once, the best first, equals as a list inside it; "
            f"got {ranking!r:.60}."
        )
    places, place = [0] * count, 1
    for group in groups:
        for number in group:
            places[number] = place
        place += len(group)
    return tuple(places)
