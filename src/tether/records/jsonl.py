"""JSON lines in and out: strict in what it reads, all or nothing in what it writes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from tether.errors import DataError
from tether.files import write_atomic_bytes
from tether.records.fields import check_unicode, kind_of
from tether.records.problems import refuse_bad_rows

__all__ = ["file_sha256", "iter_jsonl", "read_jsonl", "read_lines", "write_jsonl"]

Row = Mapping[str, Any]

_MAX_DEPTH = 64  # brackets inside brackets; real rows have under ten


def iter_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any] | DataError]]:
    """(row number from 1, row or what is wrong with it), one line at a time. Blank lines are no rows; a
    UTF-8 mark is skipped.
    """
    number = 0
    with open(path, "rb") as file:
        for line_number, line in enumerate(file, start=1):
            if line_number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    yield 1, DataError("the file is UTF-16; save it as UTF-8.")
                    return
            if not line.strip():
                continue
            number += 1
            try:
                yield number, _parse_line(line)
            except DataError as error:
                place = "" if line_number == number else f"(line {line_number}) "
                yield number, DataError(f"{place}{error}")


def read_jsonl(path: str | Path, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of a JSONL file, the first `limit` of them, or one DataError with all bad rows."""
    rows = read_lines(path, limit)
    problems = {number: str(row) for number, row in enumerate(rows, start=1) if isinstance(row, DataError)}
    refuse_bad_rows(problems, str(path), len(rows))
    return cast("list[dict[str, Any]]", rows)


def read_lines(path: str | Path, limit: int | None = None) -> list[dict[str, Any] | DataError]:
    """Like `read_jsonl`, but what is wrong with an unreadable row stands in its place: the reader of the columns
    then names all bad rows, of either kind, in one error.
    """
    try:
        return [row for _, row in islice(iter_jsonl(path), limit)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}). Check the path.") from error


def write_jsonl(path: str | Path, rows: Iterable[Row]) -> Path:
    """Write all rows or nothing: to a temporary file beside `path`, flushed to disk, then renamed over it."""
    return write_atomic_bytes(path, (_format_line(row, number, Path(path)) for number, row in enumerate(rows, start=1)))


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(
            line.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8 at byte {error.start + 1} of the line; save the file as UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"not JSON ({error.msg}, column {error.colno}); expected one object per line{_guess(line)}."
        ) from error
    except RecursionError as error:
        raise DataError(f"nested deeper than {_MAX_DEPTH} levels; expected a flat object.") from error
    except ValueError as error:  # DataError included, and whole numbers of thousands of digits
        raise DataError(str(error)) from error
    if not isinstance(row, dict):
        raise DataError(f"expected an object {{...}}, got {kind_of(row)}.")
    _check_values(row)
    return cast("dict[str, Any]", row)


def _guess(line: bytes) -> str:
    """Two files that are not JSON lines, by their signs."""
    if line.strip() in (b"[", b"]"):
        return ", not one list over several lines"
    return ", which ends in a line feed (here are carriage returns alone)" if b"\r" in line.strip() else ""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        seen: set[str] = set()
        twice = sorted({key for key, _ in pairs if key in seen or seen.add(key)})
        raise DataError(f"the key {twice[0]!r} occurs twice in one object; which value counts? Keep one.")
    return row


def _refuse_constant(name: str) -> float:
    raise DataError(f"{name} is not JSON; leave the field out or write null.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise DataError(f"the number {text[:40]} is too large for a 64-bit float.")
    return value


def _check_values(row: Any) -> None:
    """Refuse deep nesting and lone surrogates, without recursion."""
    level, depth = [row], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise DataError(f"nested deeper than {_MAX_DEPTH} levels; expected a flat object.")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                check_unicode(value, "a text")
        level = below


def _format_line(row: Row, number: int, path: Path) -> bytes:
    try:
        return json.dumps(dict(row), ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: row {number} cannot be written as JSON ({error}); nothing was written."
        ) from error
