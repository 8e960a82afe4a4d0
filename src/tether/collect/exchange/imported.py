"""Preference data of others, in one neutral form, into the database.

A row becomes a prompt, its answers, one item and the judgements on it. Ids are hashes of the contents: importing a file twice adds nothing.
The answers of an item are put in the order of their ids, so that the better one is not always the first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tether.collect.adding import Added
from tether.collect.codec import text_to_json
from tether.collect.entries import Answer, Provenance, Text
from tether.collect.exchange.tables import read_table
from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.store import Store
from tether.errors import DataError
from tether.records import read_prompts, refuse_bad_rows
from tether.records.fields import as_mapping
from tether.types import Prompt

__all__ = [
    "GivenAnswer", "ImportReport", "Imported", "Parser", "Word", "import_file", "import_prompts", "import_rows", "item_of", "prompt_id_of",
    "simplest",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer of a row."""

    text: Text
    model: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A judgement of a row. ``tiers``: places of answers in the row, the best tier first; empty for a skip, whose ``reason`` says why.

    ``shown``: places in the order they were shown; where the file does not tell, the order of the item, which is that of a hash, stands in.
    """

    annotator: str
    tiers: tuple[tuple[int, ...], ...] = ()
    strength: Strength | None = None
    reason: str = ""
    comment: str = ""
    seconds: float | None = None
    made_at: str = ""
    shown: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """What one row says. ``notes``: what it holds that has no place in the database, counted in the report."""

    prompt: Text
    answers: tuple[GivenAnswer, ...]
    words: tuple[Word, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Parser = Callable[[Mapping[str, Any]], Iterable[Imported]]
"""A row to what it says. Raises DataError with what is wrong with the row."""


@dataclass(slots=True)
class ImportReport:
    """Counts of an import: new and known prompts, answers, items; judgements; notes on what was not kept."""

    rows: int = 0
    prompts: Added = field(default_factory=lambda: Added(0, 0))
    answers: Added = field(default_factory=lambda: Added(0, 0))
    items: Added = field(default_factory=lambda: Added(0, 0))
    judgements: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = [f"{name.new} {what}" for name, what in ((self.prompts, "prompts"), (self.answers, "answers"), (self.items, "items"))]
        known = self.items.known
        notes = "".join(f"\n  {count} x {note}" for note, count in sorted(self.notes.items()))
        return f"{self.rows} rows: {', '.join(parts)} and {self.judgements} judgements added; {known} items were there already{notes}"


def prompt_id_of(text: Text) -> str:
    """An id that is a hash of the prompt: equal prompts of several files are one."""
    return hashlib.sha256(text_to_json(text, "a prompt").encode()).hexdigest()[:24]


def item_of(prompt_id: str, answers: Sequence[str]) -> Item:
    """The item of these answers: its id and its order are functions of the set of answers."""
    ordered = tuple(sorted(answers))
    return Item(hashlib.sha256("\n".join(ordered).encode()).hexdigest()[:24], prompt_id, ordered)


def simplest(text: Text) -> Text:
    """A single assistant turn is its string; anything else stays."""
    return text[0].content if not isinstance(text, str) and len(text) == 1 and text[0].role == "assistant" else text


def import_file(store: Store, path: str | Path, parse: Parser, *, judged: bool = True) -> ImportReport:
    """Import every row of a .jsonl, .json, .parquet or .csv file. See ``import_rows``."""
    return import_rows(store, read_table(path), parse, str(path), judged=judged)


def import_prompts(store: Store, path: str | Path) -> Added:
    """Prompts alone, to draw answers to. A row without a `prompt_id` gets a hash of its text. Raises one DataError with all bad rows."""
    rows = read_table(path)
    prompts = read_prompts(rows, str(path))
    named = [isinstance(row, Mapping) and row.get("prompt_id") is not None for row in rows]
    return store.add_prompts(
        one if own else replace(one, prompt_id=prompt_id_of(one.text)) for one, own in zip(prompts, named, strict=True)
    )


def import_rows(
    store: Store, rows: Sequence[Mapping[str, Any] | DataError], parse: Parser, source: str, *, judged: bool = True
) -> ImportReport:
    """Import rows; ``judged = False`` takes prompts, answers and items alone, to be judged anew. ``source`` names them in messages and
    in the provenance of the answers. Raises one DataError with all bad rows; nothing is stored then.

    A further row that judges the same item in the same name is the word of a further annotator: "import (2)".
    """
    parsed = _parse(rows, parse, source)
    report = ImportReport(rows=len(rows), notes=Counter(note for row in parsed for note in row.notes))
    name = Path(source).name
    placed = [_place(row, name) for row in parsed]
    report.prompts = store.add_prompts(_unlike_prompts(placed))
    report.answers = store.add_answers(answer for one in placed for answer in one.answers)
    report.items = store.add_items(one.item for one in placed)
    if judged:
        before = _num_judgements(store)
        annotators = _Annotators(store)
        store.record_all(list(_judgements(placed, annotators)))
        report.judgements = _num_judgements(store) - before
    return report


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row with its ids; ``names``: the answer id of every place in the row."""

    row: Imported
    prompt: Prompt
    answers: tuple[Answer, ...]
    names: tuple[str, ...]
    item: Item


def _parse(rows: Sequence[Mapping[str, Any] | DataError], parse: Parser, source: str) -> list[Imported]:
    parsed: list[Imported] = []
    problems: dict[int, str] = {}
    for number, row in enumerate(rows, start=1):
        try:
            parsed += parse(as_mapping(row))
        except DataError as error:
            problems[number] = str(error)
    refuse_bad_rows(problems, source, len(rows))
    if not parsed:
        raise DataError(f"{source}: no rows; is it the right file?")
    return parsed


def _place(row: Imported, source: str) -> _Placed:
    prompt = Prompt(prompt_id_of(row.prompt), row.prompt, row.columns)
    seen: Counter[tuple[Text, str]] = Counter()
    answers = []
    for given in row.answers:
        text = simplest(given.text)
        number = seen[text, given.model]  # two equal texts are two answers
        seen[text, given.model] += 1
        answers.append(Answer.of(prompt.prompt_id, text, Provenance(source, given.model), number=number))
    names = tuple(answer.answer_id for answer in answers)
    return _Placed(row, prompt, tuple(answers), names, item_of(prompt.prompt_id, names))


def _unlike_prompts(placed: Iterable[_Placed]) -> Iterator[Prompt]:
    """Every prompt once, with the columns of its first row."""
    seen: set[str] = set()
    for one in placed:
        if one.prompt.prompt_id not in seen:
            seen.add(one.prompt.prompt_id)
            yield one.prompt


class _Annotators:
    """Names to ids, made when they are first heard of."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids = {annotator.name: annotator.id for annotator in store.annotators()}

    def id_of(self, name: str) -> str:
        if name not in self._ids:
            self._ids[name] = self._store.add_annotator(name).id
        return self._ids[name]


def _judgements(placed: Iterable[_Placed], annotators: _Annotators) -> Iterator[Judgement]:
    times: Counter[tuple[str, str]] = Counter()
    for one in placed:
        for word in one.row.words:
            times[one.item.item_id, word.annotator] += 1
            count = times[one.item.item_id, word.annotator]
            name = word.annotator if count == 1 else f"{word.annotator} ({count})"
            yield _judgement(one, word, annotators.id_of(name), name)


def _judgement(placed: _Placed, word: Word, annotator: str, name: str) -> Judgement:
    item = placed.item
    tiers = tuple(tuple(placed.names[at] for at in tier) for tier in word.tiers)
    choice = _choice(item, tiers)
    said = (item.item_id, name, repr(tiers), str(word.strength), word.reason, word.comment)
    return Judgement(
        judgement_id=hashlib.sha256("\n".join(said).encode()).hexdigest()[:24],
        item_id=item.item_id,
        annotator=annotator,
        choice=choice,
        shown=tuple(placed.names[at] for at in word.shown) or item.answers,
        strength=word.strength if choice in (Choice.FIRST, Choice.SECOND) else None,
        ranking=tiers if choice is Choice.RANKED else (),
        reason=word.reason,
        comment=word.comment,
        seconds=word.seconds,
        made_at=word.made_at,
    )


def _choice(item: Item, tiers: Sequence[Sequence[str]]) -> Choice:
    if not tiers:
        return Choice.SKIP
    if len(item.answers) > 2:
        return Choice.RANKED
    best, *others = tiers
    if not others:
        return Choice.TIE
    return Choice.SECOND if item.answers.index(best[0]) else Choice.FIRST


def _num_judgements(store: Store) -> int:
    return sum(1 for _ in store.judgements(include_withdrawn=True))
