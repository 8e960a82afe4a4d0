"""Rows of any trainer's table as answers with rewards: which columns are which, and what cannot be read, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tether.data.load import load_rows
from tether.errors import DataError
from tether.records import refuse_bad_rows

__all__ = ["NAMES", "AnswerRow", "Answers", "read_answers"]

NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "prompts", "query", "question"),
    "completion": ("completion", "completions", "response", "responses", "model response", "answer", "text"),
    "reward": ("reward", "rewards", "score", "scores"),
}
"""Names that a column may have, the first that is there; the plural ones may hold a list per row, one entry an answer."""
_MAX_REASONS = 5
_NO_REWARD = {"step", "advantage", "advantages", "epoch", "index", "prompt_id", "sample_index", "length"}


@dataclass(frozen=True)
class AnswerRow:
    """One answer. ``prompt`` None: not known; ``reward`` NaN: not scored; ``step`` None: no such column."""

    completion: str
    prompt: str | None = None
    reward: float = math.nan
    step: float | None = None


@dataclass(frozen=True)
class Answers:
    """What a file holds. ``reward`` says in words where rewards come from, '' where there are none."""

    rows: tuple[AnswerRow, ...]
    reward: str
    notes: tuple[str, ...]


def read_answers(path: str, reward: str | None = None, *, needs_reward: bool = True) -> Answers:
    """Every answer of a file. Raises DataError with all rows that cannot be read."""
    loaded = load_rows(path)
    _refuse_unreadable(path, loaded.rows)
    columns = list(dict.fromkeys(name for row in loaded.rows if isinstance(row, Mapping) for name in row))
    completion = _column(columns, "completion")
    if completion is None:
        raise DataError(f"{path}: no column of answers. Expected one of {_listed(NAMES['completion'])}; the file has {_listed(columns)}.")
    prompt = _column(columns, "prompt")
    rewards = _reward_columns(path, columns, loaded.rows, reward, {completion, prompt})
    if not rewards and needs_reward and reward is not None:
        raise DataError(f"{path}: no column {reward!r}; the file has {_listed(columns)}.")
    problems: dict[int, str] = {}
    rows: list[AnswerRow] = []
    for number, row in enumerate(loaded.rows, start=1):
        try:
            rows += _answers(row, completion, prompt, rewards)
        except DataError as error:
            problems[number] = str(error)
    refuse_bad_rows(problems, path, len(loaded.rows))
    return Answers(tuple(rows), " + ".join(rewards), tuple(_notes(path, rows, rewards, prompt)))


def _refuse_unreadable(path: str, rows: Sequence[Any]) -> None:
    """Where no row is an object there are no columns to speak of: say what is wrong with the first few rows."""
    if any(isinstance(row, Mapping) for row in rows):
        return
    reasons = [f"  row {number}: {row}" for number, row in enumerate(rows[:_MAX_REASONS], start=1)]
    more = [f"  and {len(rows) - _MAX_REASONS} more"] if len(rows) > _MAX_REASONS else []
    raise DataError(
        "\n".join([f"{path}: no row could be read, of {len(rows)}; correct the file or the program that wrote it.", *reasons, *more])
    )


def _column(columns: Sequence[str], role: str) -> str | None:
    return next((name for name in NAMES[role] if name in columns), None)


def _reward_columns(path: str, columns: Sequence[str], rows: Sequence[Any], named: str | None, taken: set[str | None]) -> tuple[str, ...]:
    """The named column, else one that is called a reward, else every other column of numbers (TRL: one per reward function)."""
    if named is not None:
        return (named,) if named in columns else ()
    known = _column(columns, "reward")
    if known is not None:
        return (known,)
    return tuple(name for name in columns if name not in taken | _NO_REWARD and _is_numeric(name, rows))


def _is_numeric(name: str, rows: Sequence[Any]) -> bool:
    values = [row.get(name) for row in rows if isinstance(row, Mapping)]
    found = [value for value in values if value is not None]
    return bool(found) and all(isinstance(value, int | float) for value in found)


def _answers(row: Any, completion: str, prompt: str | None, rewards: Sequence[str]) -> Iterator[AnswerRow]:
    """The answers of one row: one, or one per entry where the row holds lists of the same length."""
    if isinstance(row, DataError):
        raise row
    missing = [name for name in (completion, *rewards) if name not in row]
    if missing:
        raise DataError(f"no {_listed(missing)}, which other rows have: answers and rewards do not line up.")
    if row[completion] is None:
        raise DataError(f"`{completion}` is null; an answer that is empty is written as an empty string.")
    asked = None if prompt is None or row.get(prompt) is None else row[prompt]
    step = row.get("step")
    step = float(step) if isinstance(step, int | float) else None
    if not _is_list_of_answers(row[completion]):
        yield AnswerRow(_text(row[completion], completion), _prompt(asked), _reward([row[name] for name in rewards], rewards), step)
        return
    count = len(row[completion])
    for name in (completion, *rewards, *([prompt] if isinstance(asked, list) and not _is_messages(asked) and prompt else [])):
        if not isinstance(row[name], list) or len(row[name]) != count:
            found = f"{len(row[name])} entries" if isinstance(row[name], list) else "one value"
            raise DataError(f"`{completion}` has {count} answers and `{name}` {found}: they do not line up.")
    for place, answer in enumerate(row[completion]):
        own = asked[place] if isinstance(asked, list) and not _is_messages(asked) else asked
        yield AnswerRow(_text(answer, completion), _prompt(own), _reward([row[name][place] for name in rewards], rewards), step)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def _is_list_of_answers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and not _is_messages(value)


def _text(value: Any, name: str) -> str:
    """A string, or the turns of a message list after one another."""
    if isinstance(value, str):
        return value
    if not _is_messages(value):
        kind = "an empty list" if value == [] else type(value).__name__
        raise DataError(f'`{name}` must be a string or a list of {{"role": ..., "content": ...}}, got {kind}.')
    return "\n".join(_content(turn, name) for turn in value)


def _content(turn: Mapping[str, Any], name: str) -> str:
    content = turn.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    if content is not None and not isinstance(content, str):
        raise DataError(f"`{name}`: a message whose content is no text.")
    return content or ""


def _prompt(value: Any) -> str | None:
    return None if value is None else _text(value, "prompt")


def _reward(values: Sequence[Any], names: Sequence[str]) -> float:
    """The sum over reward columns; null or NaN says that a reward does not apply, as in TRL. All of them: not scored."""
    for value, name in zip(values, names, strict=True):
        if value is not None and not isinstance(value, int | float):
            raise DataError(f"`{name}` must be a number, got {type(value).__name__}.")
        if isinstance(value, float) and math.isinf(value):
            raise DataError(f"`{name}` is infinite.")
    found = [float(value) for value in values if value is not None and not math.isnan(value)]
    return sum(found) if found else math.nan


def _notes(path: str, rows: Sequence[AnswerRow], rewards: Sequence[str], prompt: str | None) -> Iterator[str]:
    if not rewards:
        yield f"{path} has no column of rewards: nothing is said of reward against length"
    elif len(rewards) > 1:
        yield f"the reward is the plain sum of {_listed(rewards)}; name one with --reward"
    unscored = sum(math.isnan(row.reward) for row in rows) if rewards else 0
    if unscored:
        yield f"{unscored} of {len(rows)} answers of {path} have no reward"
    if prompt is None:
        yield f"{path} has no column of prompts: every answer counts as one of its own"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
