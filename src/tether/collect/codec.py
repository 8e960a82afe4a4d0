"""Entries as rows of the tables, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

from tether.collect.engine import Unreadable
from tether.collect.entries import Answer, Provenance, StoredPrompt, Text
from tether.collect.judgement import Choice, Judgement, Strength
from tether.errors import DataError
from tether.records.fields import check_unicode
from tether.records.texts import one_form
from tether.types import Message, Role

__all__ = [
    "answer_of", "answer_row", "check_plain", "content_of", "gold_of", "judgement_of", "judgement_row", "prompt_of", "prompt_row", "stored",
    "stored_content", "text_from_json", "text_to_json", "to_json", "utc_time",
]  # fmt: skip

T = TypeVar("T")


def to_json(value: Any, what: str) -> str:
    """Compact JSON. Raises DataError for what JSON has no word for (NaN among it)."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{what} cannot be stored as JSON ({error})") from error
    return text


def check_plain(text: Any, what: str) -> None:
    """Text for a column of its own. Raises DataError for what not every database keeps."""
    if not isinstance(text, str):
        raise DataError(f"{what} must be text, got {text!r:.60}")
    if "\x00" in text:
        raise DataError(f"{what} holds the character U+0000, which PostgreSQL does not store; remove it")
    check_unicode(text, what)


def utc_time(text: str, what: str) -> str:
    """A time in ISO 8601 as it is stored: one with another offset is turned into UTC. Raises DataError for what is no time."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC).isoformat(timespec="milliseconds") if found.utcoffset() else text
    except (ValueError, OverflowError) as error:
        raise DataError(f"{what} must be a time in ISO 8601, such as 2026-01-31T12:00:00Z, got {text!r:.40}") from error


def text_to_json(text: Text, what: str) -> str:
    """A string, or a list of [role, content]."""
    return to_json(text if isinstance(text, str) else [[turn.role, turn.content] for turn in text], what)


def content_of(text: Text, role: Role, what: str) -> str:
    """What a prompt (role "user") or an answer ("assistant") is compared by: its JSON in one form (``records.texts.one_form``)."""
    return text_to_json(one_form(text, role), what)


def stored_content(text: str, role: Role) -> str:
    """The same of a stored text."""
    return content_of(text_from_json(text), role, "a stored text") if text.startswith(f'[["{role}"') else text


def stored(convert: Callable[[Any], T], value: Any) -> T:
    """A stored value, converted. Raises Unreadable where it is not what was written."""
    try:
        return convert(value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable(f"a stored value is {value!r:.40}") from error


def text_from_json(text: str) -> Text:
    return stored(_text_of, text)


def _text_of(text: str) -> Text:
    value = json.loads(text)
    return value if isinstance(value, str) else tuple(Message(role, content) for role, content in value)


def gold_of(row: Any) -> Choice | None:
    """The known choice of a row of items."""
    return None if row.gold is None else stored(Choice, row.gold)


def prompt_row(prompt: StoredPrompt) -> dict[str, Any]:
    what = f"prompt {prompt.prompt_id!r}"
    return {
        "prompt_id": prompt.prompt_id,
        "text": text_to_json(prompt.text, what),
        "columns": to_json(dict(prompt.columns), what),
        "held_out": prompt.held_out,
    }


def prompt_of(row: Any) -> StoredPrompt:
    return StoredPrompt(row.prompt_id, text_from_json(row.text), stored(json.loads, row.columns), bool(row.held_out))


def answer_row(answer: Answer) -> dict[str, Any]:
    what = f"answer {answer.answer_id!r}"
    return {
        "answer_id": answer.answer_id,
        "prompt_id": answer.prompt_id,
        "text": text_to_json(answer.text, what),
        "provenance": to_json(asdict(answer.provenance), what),
    }


def answer_of(row: Any) -> Answer:
    return Answer(row.answer_id, row.prompt_id, text_from_json(row.text), stored(_provenance, row.provenance))


def _provenance(text: str) -> Provenance:
    return Provenance(**json.loads(text))


def judgement_row(judgement: Judgement) -> dict[str, Any]:
    what = f"judgement {judgement.judgement_id!r}"
    for name in ("judgement_id", "reason", "comment", "made_at"):
        check_plain(getattr(judgement, name), f"{what}: {name}")
    utc_time(judgement.made_at, f"{what}: made_at")
    if judgement.seconds is not None and not 0 <= judgement.seconds < math.inf:
        raise DataError(f"{what}: seconds must be a finite number from 0, got {judgement.seconds}")
    return {
        "judgement_id": judgement.judgement_id,
        "item_id": judgement.item_id,
        "annotator_id": judgement.annotator,
        "choice": judgement.choice.value,
        "shown": to_json(list(judgement.shown), what),
        "strength": None if judgement.strength is None else judgement.strength.value,
        "ranking": to_json([list(tier) for tier in judgement.ranking], what),
        "reason": judgement.reason,
        "comment": judgement.comment,
        "seconds": judgement.seconds,
        "made_at": judgement.made_at,
        "withdrawn_at": judgement.withdrawn_at,
    }


def judgement_of(row: Any) -> Judgement:
    return Judgement(
        judgement_id=row.judgement_id,
        item_id=row.item_id,
        annotator=row.annotator_id,
        choice=stored(Choice, row.choice),
        shown=stored(lambda text: tuple(json.loads(text)), row.shown),
        strength=None if row.strength is None else stored(Strength, row.strength),
        ranking=() if row.ranking == "[]" else stored(lambda text: tuple(map(tuple, json.loads(text))), row.ranking),
        reason=row.reason,
        comment=row.comment,
        seconds=row.seconds,
        made_at=row.made_at,
        withdrawn_at=row.withdrawn_at,
    )
