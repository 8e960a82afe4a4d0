"""Preference data of others, in one neutral form, into the database.

A row becomes a prompt, its answers, one item and the judgements on it. Contents decide what is there already (``identity``): importing the
same rows twice adds nothing, whatever the names of their files. The answers of an item are put in the order of their ids, so that the
better one is not always the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tether.collect.adding import Added
from tether.collect.codec import check_plain, content_of, utc_time
from tether.collect.engine import reading
from tether.collect.exchange.given import Imported, Parser, Word, as_gold
from tether.collect.exchange.identity import Placing, place_prompts, place_rows
from tether.collect.exchange.judged import Said, say
from tether.collect.exchange.summaries import one_vote_each, refuse_summaries
from tether.collect.exchange.tables import read_table
from tether.collect.store import Store
from tether.errors import DataError
from tether.records import read_prompts, refuse_bad_rows
from tether.records.fields import as_mapping, check_unicode
from tether.records.texts import one_form

__all__ = ["ImportReport", "import_file", "import_prompts", "import_rows"]


@dataclass(slots=True)
class ImportReport:
    """Counts of an import: new and known prompts, answers, items, judgements; notes on what was not kept."""

    rows: int = 0
    prompts: Added = field(default_factory=lambda: Added(0, 0))
    answers: Added = field(default_factory=lambda: Added(0, 0))
    items: Added = field(default_factory=lambda: Added(0, 0))
    judgements: Added = field(default_factory=lambda: Added(0, 0))
    notes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = {"prompts": self.prompts, "answers": self.answers, "items": self.items, "judgements": self.judgements}
        *parts, last = (f"{one.new} {name}" for name, one in counts.items())
        known = f"{self.items.known} items and {self.judgements.known} judgements were there already"
        notes = "".join(f"\n  {count} x {note}" for note, count in sorted(self.notes.items()))
        return f"{self.rows} rows: {', '.join(parts)} and {last} added; {known}{notes}"


Summaries = Literal["refuse", "as_votes"]


def import_file(
    store: Store, path: str | Path, parse: Parser, *, judged: bool = True, summaries: Summaries = "refuse", gold: bool = False
) -> ImportReport:
    """Import every row of a .jsonl, .json, .parquet or .csv file, or of tether:NAME. See ``import_rows``."""
    return import_rows(store, read_table(path), parse, str(path), judged=judged, summaries=summaries, gold=gold)


def import_prompts(store: Store, path: str | Path) -> Added:
    """Prompts alone, to draw answers to. A row without a `prompt_id` is the stored prompt with its contents, or gets a hash of
    them. Raises one DataError with all bad rows."""
    rows = read_table(path)
    prompts = read_prompts(rows, str(path))
    named = [isinstance(row, Mapping) and row.get("prompt_id") is not None for row in rows]
    with reading(store.engine) as connection:
        placed = iter(place_prompts(connection, [one for one, own in zip(prompts, named, strict=True) if not own]))
    return store.add_prompts([one if own else next(placed) for one, own in zip(prompts, named, strict=True)])


def import_rows(
    store: Store, rows: Sequence[Mapping[str, Any] | DataError], parse: Parser, source: str, *, judged: bool = True,
    summaries: Summaries = "refuse", gold: bool = False,
) -> ImportReport:  # fmt: skip
    """Import rows; ``judged = False`` takes prompts, answers and items alone, to be judged anew. ``source`` names them in messages and
    in the provenance of the answers. Raises one DataError with all bad rows; nothing is stored then.

    A further row that judges the same item in the same name is the word of a further annotator: "import (2)". What is stored already is
    counted and left. A row whose answers are all the same text is counted and left out: there is nothing to compare. ``summaries``:
    rows of our own pairs export are refused, or taken as one vote each (``exchange.summaries``). ``gold``: the word of a row is no
    judgement, but the known choice of a test question about its two answers.
    """
    if summaries == "as_votes":
        parse = one_vote_each(parse)
    else:
        refuse_summaries(rows, source)
    parsed = _parse(rows, as_gold(parse) if gold else parse, source)
    report = ImportReport(rows=len(rows), notes=Counter(note for row in parsed for note in row.notes))
    used = [_simple(row) for row in parsed]
    unlike = [row for row in used if len({content_of(answer.text, "assistant", "an answer") for answer in row.answers}) > 1]
    if len(unlike) < len(used):
        report.notes[_EQUAL] = len(used) - len(unlike)
    with reading(store.engine) as connection:
        placing = place_rows(connection, unlike, Path(source).name)
        said = say(connection, placing.rows if judged else (), source)
    _write(store, placing, said, report)
    return report


_EQUAL = "row whose answers are the same text: nothing to compare, not stored"


def _simple(row: Imported) -> Imported:
    """Answers as they are stored; with an id of the file they are left as they are."""
    return replace(row, answers=tuple(one if one.answer_id else replace(one, text=one_form(one.text, "assistant")) for one in row.answers))


def _write(store: Store, placing: Placing, said: Said, report: ImportReport) -> None:
    new = store.add_prompts(placing.prompts), store.add_answers(placing.answers), store.add_items(placing.items)
    ids = {annotator.name: annotator.id for annotator in store.annotators()}
    for name in dict.fromkeys(one.annotator for one in said.new):
        if name not in ids:
            ids[name] = store.add_annotator(name).id
    store.record_all([replace(one, annotator=ids[one.annotator]) for one in said.new])
    rows = placing.rows
    met = (
        {one.prompt_id for one in rows},
        {name for one in rows for name in one.names},
        {one.item.item_id for one in rows},
    )
    report.prompts, report.answers, report.items = (Added(one.new, len(all_) - one.new) for one, all_ in zip(new, met, strict=True))
    report.judgements = Added(len(said.new), said.known)


def _parse(rows: Sequence[Mapping[str, Any] | DataError], parse: Parser, source: str) -> list[Imported]:
    parsed: list[Imported] = []
    problems: dict[int, str] = {}
    for number, row in enumerate(rows, start=1):
        try:
            parsed += map(_sound, parse(as_mapping(row)))
        except DataError as error:
            problems[number] = str(error)
    refuse_bad_rows(problems, source, len(rows))
    if not parsed:
        raise DataError(f"{source}: no rows; is it the right file?")
    return parsed


def _sound(row: Imported) -> Imported:
    """What the database would refuse when half of the file is in, refused with its row: texts and names that cannot be stored, times that
    are none. Raises DataError."""
    for text in (row.prompt, *(answer.text for answer in row.answers)):
        for part in (text,) if isinstance(text, str) else (turn.content for turn in text):
            check_unicode(part, "a text")
    for answer in row.answers:
        check_plain(answer.model, "the name of a model")
        check_plain(answer.answer_id, "the id of an answer")
    return replace(row, words=tuple(map(_sound_word, row.words)))


def _sound_word(word: Word) -> Word:
    check_plain(word.annotator, "the name of the annotator")
    if not (name := word.annotator.strip()):
        raise DataError("the name of the annotator is empty.")
    return replace(word, annotator=name, made_at=word.made_at and utc_time(word.made_at, "the time of the judgement"))
