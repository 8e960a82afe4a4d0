"""Texts in rows: strings, or messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tether.collect import schema
from tether.collect.engine import reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.store import Store
from tether.errors import DataError
from tether.records.texts import Text
from tether.types import Role

__all__ = ["Form", "Format", "as_stored", "form_of"]

Format = Literal["auto", "plain", "conversational"]
Form = Callable[[Text, Role], Any]


def form_of(store: Store, format: Format) -> Form:
    """How a text is written. "auto": strings if all stored texts are, else messages. Raises DataError where "plain" is asked and a text is
    a conversation."""
    if format not in ("auto", "plain", "conversational"):
        raise DataError(f"format must be auto, plain or conversational, got {format!r}")
    if format == "conversational":
        return _messages
    with reading(store.engine) as connection:
        for table in (schema.prompts, schema.answers):
            turns = connection.scalar(sa.select(next(iter(table.primary_key))).where(table.c.text.like("[%")).limit(1))
            if turns is not None and format == "plain":
                raise DataError(f"{store.place}: {turns!r} is a conversation and has no plain form; export it as conversational")
            if turns is not None:
                return _messages
    return as_stored


def as_stored(text: Text, _role: Role) -> Any:
    """A string, or messages where it is a conversation."""
    return text if isinstance(text, str) else [{"role": turn.role, "content": turn.content} for turn in text]


def _messages(text: Text, role: Role) -> Any:
    return [{"role": role, "content": text}] if isinstance(text, str) else as_stored(text, role)
