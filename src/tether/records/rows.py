"""One row, or all rows, to demonstrations, comparisons and prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from tether.errors import DataError
from tether.records.fields import (
    Row,
    absent,
    as_mapping,
    check_answer,
    check_prompt,
    check_same_kind,
    check_unicode,
    field_names,
    has,
    messages_field,
    prompt_field,
    text_field,
)
from tether.records.problems import refuse_bad_rows
from tether.records.prompts import explicit_prompt, implicit_prompt, split_messages, without_prompt
from tether.types import Comparison, Demonstration, Feedback, Prompt

__all__ = [
    "comparison_from_row",
    "demonstration_from_row",
    "feedback_from_row",
    "prompt_from_row",
    "read_comparisons",
    "read_demonstrations",
    "read_feedback",
    "read_prompts",
    "read_rows",
]

T = TypeVar("T")


def demonstration_from_row(row: Row) -> Demonstration:
    """A demonstration from `prompt` + `completion`, or from `messages` (the prompt ends before the first
    assistant turn).
    """
    row = as_mapping(row)
    if has(row, "completion"):
        prompt = prompt_field(row, "prompt")
        completion = without_prompt(text_field(row, "completion"), prompt)
        check_same_kind(prompt, completion, "completion")
    elif has(row, "messages"):
        prompt, completion = split_messages(messages_field(row["messages"], "messages"))
    else:
        raise DataError(f"{_nulls(row, 'completion', 'messages')}expected `prompt` and `completion`, or `messages`; {field_names(row)}.")
    check_answer(completion, "completion")
    texts = (
        [completion]
        if isinstance(completion, str)
        else [m.content for m in completion if m.role == "assistant"]
    )
    if not all(text.strip() for text in texts):
        raise DataError("the answer is empty: expected text to imitate in every assistant turn.")
    return Demonstration(prompt=prompt, completion=completion)


def comparison_from_row(row: Row) -> Comparison:
    """A comparison from `prompt`, `chosen`, `rejected`; without `prompt` it is what both answers begin with.
    `margin` and `label` are optional.
    """
    row = as_mapping(row)
    if missing := absent(row, "chosen", "rejected"):
        raise DataError(f"{missing}: expected `prompt`, `chosen`, `rejected`; {field_names(row)}.")
    chosen, rejected = text_field(row, "chosen"), text_field(row, "rejected")
    if has(row, "prompt"):
        prompt, chosen, rejected = explicit_prompt(prompt_field(row, "prompt"), chosen, rejected)
    elif nulls := _nulls(row, "prompt"):
        raise DataError(f"{nulls}expected text or messages; leave the column out where the answers hold the prompt.")
    else:
        prompt, chosen, rejected = implicit_prompt(chosen, rejected)
    check_prompt(prompt)
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        check_same_kind(prompt, answer, name)
        check_answer(answer, name)
    return Comparison(prompt=prompt, chosen=chosen, rejected=rejected, margin=_margin(row), label=_label(row))


def feedback_from_row(row: Row) -> tuple[Feedback, ...]:
    """One judged answer from `prompt`, `completion`, `label` (true: liked); two from a comparison, the chosen
    one first.
    """
    row = as_mapping(row)
    if has(row, "chosen") or has(row, "rejected"):
        pair = comparison_from_row(row)
        if pair.label != 1:
            raise DataError(f"`label` is {pair.label:g}: a doubtful comparison does not say which is liked; drop the row or its label.")
        return (Feedback(pair.prompt, pair.chosen, True), Feedback(pair.prompt, pair.rejected, False))
    if missing := absent(row, "prompt", "completion", "label"):
        raise DataError(
            f"{missing}: expected `prompt`, `completion`, `label`, or a comparison (`prompt`, `chosen`, `rejected`); {field_names(row)}."
        )
    label = row["label"]
    if not isinstance(label, bool) and label not in (0, 1):
        raise DataError(f"`label` must be true (liked) or false, got {label!r:.40}.")
    answer = demonstration_from_row(row)
    check_prompt(answer.prompt)
    return (Feedback(answer.prompt, answer.completion, bool(label)),)


def prompt_from_row(row: Row, index: int) -> Prompt:
    """A prompt from `prompt`, or from `messages` without a final answer; the other fields are its columns.

    `prompt_id` is the field of that name, else the index of the row (from 0) as text.
    """
    row = as_mapping(row)
    if has(row, "prompt"):
        text = prompt_field(row, "prompt")
    elif has(row, "messages"):
        turns = messages_field(row["messages"], "messages")
        text = turns[:-1] if turns[-1].role == "assistant" else turns
        check_prompt(text)
    else:
        raise DataError(f"{_nulls(row, 'prompt', 'messages')}expected `prompt` or `messages`; {field_names(row)}.")
    columns = {key: value for key, value in row.items() if key not in ("prompt", "messages", "prompt_id")}
    return Prompt(prompt_id=_prompt_id(row, index), text=text, columns=columns)


def read_demonstrations(rows: Iterable[Row | DataError], source: str) -> list[Demonstration]:
    """Every row as a demonstration, or one DataError with all bad rows, those that could not be read among them."""
    return read_rows(rows, source, lambda row, _: demonstration_from_row(row))


def read_comparisons(rows: Iterable[Row | DataError], source: str) -> list[Comparison]:
    """Every row as a comparison, or one DataError with all bad rows."""
    return read_rows(rows, source, lambda row, _: comparison_from_row(row))


def read_feedback(rows: Iterable[Row | DataError], source: str) -> list[Feedback]:
    """Every row as judged answers (a comparison gives two), or one DataError with all bad rows."""
    return [one for pair in read_rows(rows, source, lambda row, _: feedback_from_row(row)) for one in pair]


def read_prompts(rows: Iterable[Row | DataError], source: str) -> list[Prompt]:
    """Every row as a prompt, or one DataError with all bad rows, ids that occur twice among them."""
    first_row: dict[str, int] = {}

    def read(row: Row, index: int) -> Prompt:
        prompt = prompt_from_row(row, index)
        if prompt.prompt_id in first_row:
            raise DataError(
                f"prompt_id {prompt.prompt_id!r} is that of row {first_row[prompt.prompt_id]} too: "
                "expected one row per id. Make ids unique, or leave prompt_id out."
            )
        first_row[prompt.prompt_id] = index + 1
        return replace(prompt, origin=f"{source}, row {index + 1}")

    return read_rows(rows, source, read)


def _nulls(row: Row, *names: str) -> str:
    """Example: {"a": None}, "a", "b" -> "`a` is null: "; "" where none of the names is there."""
    found = absent(row, *(name for name in names if name in row))
    return f"{found}: " if found else ""


def read_rows(rows: Iterable[Row | DataError], source: str, one: Callable[[Any, int], T]) -> list[T]:
    """Every row by ``one`` (row, index from 0), or one DataError with all bad rows."""
    records: list[T] = []
    problems: dict[int, str] = {}
    index = -1
    for index, row in enumerate(rows):
        try:
            records.append(one(row, index))
        except DataError as error:
            problems[index + 1] = str(error)
    refuse_bad_rows(problems, source, index + 1)
    if not records:
        raise DataError(f"{source}: no rows. Expected at least one; is it the right file and split?")
    return records


def _margin(row: Row) -> float:
    value = row.get("margin")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e30:
        raise DataError(f"`margin` must be a finite number in score units, got {value!r:.40}.")
    if value < 0:
        raise DataError(
            f"`margin` is {value}: negative says that `rejected` is the better one; swap the two."
        )
    return float(value)


def _label(row: Row) -> float:
    """The share of belief in `chosen`; true/false is what judged answers have, and would be misread."""
    value = row.get("label")
    if value is None:  # an export of judgements says only how it was decided; what stands there as a tie is one
        return 0.5 if row.get("soft_label") == 0.5 else 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise DataError(
            f"`label` of a comparison is the probability that `chosen` is the better answer, a number from 0 to 1 (.5 is a tie), "
            f"got {value!r:.40}."
        )
    return float(value)


def _prompt_id(row: Row, index: int) -> str:
    value = row.get("prompt_id")
    if value is None:
        return str(index)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise DataError(f"`prompt_id` must be text or a whole number, got {value!r:.40}.")
    check_unicode(str(value), "`prompt_id`")
    return str(value)
