"""Fields of one row, checked: what was expected, what came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from tether.errors import DataError
from tether.types import Message, Role

__all__ = [
    "absent",
    "as_mapping",
    "check_answer",
    "check_prompt",
    "check_same_kind",
    "check_unicode",
    "field_names",
    "has",
    "kind_of",
    "messages_field",
    "prompt_field",
    "text_field",
]

Text = str | tuple[Message, ...]
Row = Mapping[str, Any]

_ROLES: tuple[str, ...] = get_args(Role)


def as_mapping(row: Any) -> Row:
    """The row; what stands in the place of an unreadable one (see ``read_lines``) is raised."""
    if isinstance(row, DataError):
        raise row
    if not isinstance(row, Mapping):
        raise DataError(f"expected an object with named fields, got {kind_of(row)}.")
    odd = [key for key in row if not isinstance(key, str)]
    if odd:
        raise DataError(f"field names must be strings, got {odd[0]!r:.40}.")
    return row


def has(row: Row, name: str) -> bool:
    return row.get(name) is not None


def absent(row: Row, *names: str) -> str:
    """What keeps fields from being read. Example: {"a": None}, "a", "b" -> "`a` is null, `b` is missing"."""
    return ", ".join(f"`{name}` is {'null' if name in row else 'missing'}" for name in names if not has(row, name))


def field_names(row: Row) -> str:
    names = ", ".join(f"`{key[:30]}`" for key in list(row)[:12])
    return f"the row has {names}{', ...' if len(row) > 12 else ''}" if names else "the row is empty"


def kind_of(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true/false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def text_field(row: Row, name: str) -> Text:
    """A field that is a string or a conversation."""
    value = row.get(name)
    if value is None:
        raise DataError(f"{absent(row, name)}; {field_names(row)}.")
    if isinstance(value, str):
        check_unicode(value, f"`{name}`")
        return value
    return messages_field(value, name)


def prompt_field(row: Row, name: str) -> Text:
    prompt = text_field(row, name)
    check_prompt(prompt)
    return prompt


def messages_field(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise DataError(
            f'`{name}` must be a string or a list of {{"role": ..., "content": ...}}, got {kind_of(value)}.'
            if name != "messages"
            else f'`messages` must be a list of {{"role": ..., "content": ...}}, got {kind_of(value)}.'
        )
    if not value:
        raise DataError(f"`{name}` is an empty list: expected at least one message.")
    return tuple(_message(turn, f"`{name}`, message {at}") for at, turn in enumerate(value, start=1))


def _message(turn: Any, place: str) -> Message:
    if isinstance(turn, Message):
        return turn
    if not isinstance(turn, Mapping):
        raise DataError(f'{place}: expected {{"role": ..., "content": ...}}, got {kind_of(turn)}.')
    role, content = turn.get("role"), turn.get("content")
    if without := absent(turn, "role", "content"):
        raise DataError(f'{place}: {without}; expected {{"role": ..., "content": ...}}.')
    if role not in _ROLES:
        raise DataError(f"{place}: role must be one of {', '.join(_ROLES)}, got {role!r:.40}.")
    if turn.get("tool_calls"):
        raise DataError(f"{place}: tool_calls cannot be rendered; write the call as the content of the turn.")
    text = _content(content, place)
    check_unicode(text, place)
    return Message(role=cast("Role", role), content=text)


def _content(content: Any, place: str) -> str:
    """A string, or text parts as multi-modal exports write them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise DataError(f"{place}: content must be a string, got {kind_of(content)}.")
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{place}: content holds parts that are not text; only text can be trained on.")
    return "".join(cast("list[str]", texts))


def check_prompt(prompt: Text) -> None:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise DataError("the prompt is empty.")
        return
    if not any(m.content.strip() for m in prompt):
        raise DataError("the prompt is empty: all its messages are.")
    if prompt[-1].role not in ("user", "tool"):
        raise DataError(
            f"the prompt must end with a user (or tool) message, its last role is {prompt[-1].role}."
        )


def check_answer(answer: Text, name: str) -> None:
    if isinstance(answer, str):
        return
    if not answer or answer[0].role != "assistant" or answer[-1].role != "assistant":
        roles = ", ".join(m.role for m in answer) or "none"
        raise DataError(
            f"`{name}` must begin and end with an assistant message after the prompt; its roles are: {roles}."
        )


def check_same_kind(prompt: Text, answer: Text, name: str) -> None:
    """A conversation may be answered by a string (one assistant turn), a plain string only by a string."""
    if isinstance(prompt, str) and not isinstance(answer, str):
        raise DataError(
            f"the prompt is a string and `{name}` a conversation: "
            'write the prompt as [{"role": "user", "content": ...}].'
        )


def check_unicode(text: str, name: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} holds half of a surrogate pair (\\u{ord(text[error.start]):04x}), which is no "
            "character; repair the export (a cut emoji is the usual cause)."
        ) from error
