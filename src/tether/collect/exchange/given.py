"""What a row of a file says, in one neutral form between layouts of files (``formats``, ``tools``, ``judgement_rows``) and the database.

Ids are empty where the file gives none: then the contents decide (``identity``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tether.collect.entries import Text
from tether.collect.judgement import Choice, Strength
from tether.errors import DataError

__all__ = ["GivenAnswer", "Imported", "Parser", "Word", "as_gold", "without_place"]


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer of a row."""

    text: Text
    model: str = ""
    answer_id: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A judgement of a row. ``tiers``: places of answers in the row, the best tier first; empty for a skip, whose ``reason`` says why.

    ``shown``: places in the order they were shown; where the file does not tell, the order of the item, which is that of a hash, stands in.
    ``both_bad``: the one tier is no good. ``judgement_id``: of a judgement that a named person made; a word without one is somebody's.
    """

    annotator: str
    tiers: tuple[tuple[int, ...], ...] = ()
    strength: Strength | None = None
    reason: str = ""
    comment: str = ""
    seconds: float | None = None
    made_at: str = ""
    shown: tuple[int, ...] = ()
    both_bad: bool = False
    judgement_id: str = ""


@dataclass(frozen=True, slots=True)
class Imported:
    """What one row says. ``notes``: what it holds that has no place in the database, counted in the report."""

    prompt: Text
    answers: tuple[GivenAnswer, ...]
    words: tuple[Word, ...] = ()
    notes: tuple[str, ...] = ()
    prompt_id: str = ""
    item_id: str = ""
    gold: Choice | None = None


Parser = Callable[[Mapping[str, Any]], Iterable[Imported]]
"""A row to what it says. Raises DataError with what is wrong with the row."""


def without_place(row: Mapping[str, Any], *known: str, of: str = "") -> list[str]:
    """A note for every column that holds something, is not ``known`` and so is not stored. ``of``: what stands before its name."""
    return [
        f"column `{of}{name}`, not kept: it has no place in the database"
        for name, value in row.items()
        if name not in known and value not in (None, "", [], {})
    ]


_KNOWN = {((0,), (1,)): Choice.FIRST, ((1,), (0,)): Choice.SECOND, ((0, 1),): Choice.TIE}


def as_gold(parse: Parser) -> Parser:
    """The parser, with the one word of a row on its two answers taken as the known choice of a test question."""

    def parse_gold(row: Mapping[str, Any]) -> Iterator[Imported]:
        for one in parse(row):
            known = _KNOWN.get(one.words[0].tiers) if len(one.words) == 1 else None
            if known is None or len(one.answers) != 2:
                raise DataError("a test question has two answers and one word on them, which is its known choice.")
            note = "test question: its known choice is that of the row, and nobody's judgement"
            yield replace(one, words=(), gold=known, notes=(*one.notes, note))

    return parse_gold
