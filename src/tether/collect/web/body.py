"""JSON of strangers, read strictly: one object, known names, texts that can be stored, finite numbers. Time is linear in its length."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

__all__ = ["BadBody", "number", "read_object", "text", "text_list", "text_tiers"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_ANSWERS = 1000


class BadBody(Exception):
    """What came is not what was asked for. ``status``: 400 for no JSON, 422 for the wrong one; the text is shown to the sender."""

    def __init__(self, status: int, told: str) -> None:
        self.status = status
        super().__init__(told)


def read_object(body: bytes, fields: Collection[str]) -> dict[str, Any]:
    """The object in ``body`` with exactly these names. Raises BadBody."""
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique)
    except RecursionError:
        raise BadBody(400, "the body is nested too deeply") from None
    except ValueError as error:  # also what is not UTF-8, and whole numbers of more digits than Python reads
        raise BadBody(400, "the body is not JSON" if not isinstance(error, _Unwanted) else str(error)) from None
    if not isinstance(found, dict):
        raise BadBody(422, "expected one JSON object")
    if set(found) != set(fields):
        raise BadBody(422, f"expected the fields {', '.join(sorted(fields)) or 'none'}")
    return found


def text(fields: Mapping[str, Any], name: str, longest: int) -> str:
    """A text of at most ``longest`` characters that every database can hold. Raises BadBody."""
    found = fields[name]
    if not isinstance(found, str) or len(found) > longest:
        raise BadBody(422, f"{name}: expected a text of at most {longest} characters")
    if "\x00" in found or _SURROGATE.search(found):
        raise BadBody(422, f"{name}: holds a character that is none (U+0000 or half of a pair); remove it")
    return found


def number(fields: Mapping[str, Any], name: str, highest: float) -> float:
    """A number from 0 to ``highest``. Raises BadBody."""
    found = fields[name]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= highest:
        raise BadBody(422, f"{name}: expected a number from 0 to {highest:g}")
    return float(found)


def text_list(found: Any, name: str) -> list[str]:
    """A list of short texts. Raises BadBody."""
    return _list(found, name, lambda value: text({name: value}, name, 100))


def text_tiers(found: Any, name: str) -> list[list[str]]:
    """A list of lists of short texts. Raises BadBody."""
    return _list(found, name, lambda value: text_list(value, name))


def _list(found: Any, name: str, read: Callable[[Any], Any]) -> list[Any]:
    if not isinstance(found, list) or len(found) > _MOST_ANSWERS:
        raise BadBody(422, f"{name}: expected a list of at most {_MOST_ANSWERS}")
    return [read(value) for value in found]


class _Unwanted(ValueError):
    """JSON to Python, but not to us."""


def _no_constant(name: str) -> float:
    raise _Unwanted(f"{name} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Unwanted("a number is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Unwanted("a name comes twice in one object")
    return found
