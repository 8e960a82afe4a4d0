"""Which stored prompts, answers and items the rows of a file are about. Contents decide; the name of a file never does.

    prompt   its text; a string and one turn of a user are the same
    answer   prompt, text (a string and one turn of the assistant are the same), name of the model, and a running number among equal ones
             of a row
    item     the set of its answers (and the known choice of a test question)

What is stored with the same contents is meant, whatever its id: a database from before this rule, when the file's name was a part of an
id, takes a file again without doubling it. A new entry gets the id that the file gives, where that is free, else a hash of its
contents. Ids of a file tell equal contents apart: two draws of the same text stay two answers.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

from tether.collect import schema
from tether.collect.adding import answers_of_items, chunks, known_ids
from tether.collect.codec import answer_of, content_of, gold_of, stored_content, text_from_json
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Answer, Provenance, Text
from tether.collect.exchange.given import GivenAnswer, Imported
from tether.collect.judgement import Choice, Item
from tether.types import Prompt

__all__ = ["PlacedRow", "Placing", "item_of", "place_prompts", "place_rows", "prompt_id_of"]

Content = TypeVar("Content", bound=Hashable)
Slot = str | int
"""An id that a file gives, or a running number from 0."""


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row with its item; ``names``: the answer id of every place in the row."""

    row: Imported
    prompt_id: str
    names: tuple[str, ...]
    item: Item


@dataclass(frozen=True, slots=True)
class Placing:
    """Rows with their ids, and what of them is not stored yet, each once and in the order of the rows."""

    rows: tuple[PlacedRow, ...]
    prompts: tuple[Prompt, ...]
    answers: tuple[Answer, ...]
    items: tuple[Item, ...]


def prompt_id_of(text: Text) -> str:
    """An id that is a hash of the prompt: equal prompts of several files are one."""
    return _hash(content_of(text, "user", "a prompt"))


def item_of(prompt_id: str, answers: Sequence[str]) -> Item:
    """The item of these answers: its id and its order are functions of the set of answers."""
    ordered = tuple(sorted(answers))
    return Item(_hash("\n".join(ordered)), prompt_id, ordered)


def place_prompts(connection: Connection, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts without ids of their own, with the ids that their contents have: of the first stored one (in the form in which it is
    stored), else a hash.
    """
    texts = [content_of(prompt.text, "user", "a prompt") for prompt in prompts]
    table, first = schema.prompts, dict[str, Prompt]()
    for chunk in chunks(names[0] for names in _prompts_by_text(connection, set(texts)).values()):
        for row in connection.execute(sa.select(table).where(table.c.prompt_id.in_(chunk))):
            first[stored_content(row.text, "user")] = Prompt(row.prompt_id, text_from_json(row.text))
    found = []
    for text, prompt in zip(texts, prompts, strict=True):
        known = first.setdefault(text, replace(prompt, prompt_id=_hash(text)))
        found.append(replace(prompt, prompt_id=known.prompt_id, text=known.text))
    return found


def place_rows(connection: Connection, rows: Sequence[Imported], source: str) -> Placing:
    """Look up what the rows mean. ``source``: where new answers come from, kept in their provenance."""
    prompt_ids, new_prompts = _place_prompts(connection, rows)
    names, new_answers = _place_answers(connection, rows, prompt_ids, source)
    items, new_items = _place_items(connection, rows, prompt_ids, names)
    placed = tuple(PlacedRow(*one) for one in zip(rows, prompt_ids, names, items, strict=True))
    return Placing(placed, tuple(new_prompts), tuple(new_answers), tuple(new_items))


def _place_prompts(connection: Connection, rows: Sequence[Imported]) -> tuple[list[str], list[Prompt]]:
    texts = [content_of(row.prompt, "user", "a prompt") for row in rows]
    asked = [row.prompt_id or _hash(text) for row, text in zip(rows, texts, strict=True)]
    table = schema.prompts
    stored: dict[str, str] = {}  # id -> text
    for chunk in chunks(dict.fromkeys(asked)):
        for row in connection.execute(sa.select(table).where(table.c.prompt_id.in_(chunk))):
            stored[row.prompt_id] = stored_content(row.text, "user")
    wanted: dict[str, dict[Slot, None]] = {}
    for text, name in zip(texts, asked, strict=True):
        wanted.setdefault(text, {})[name] = None
    by_text = _prompts_by_text(connection, {text for text, name in zip(texts, asked, strict=True) if stored.get(name) != text})
    for name, text in stored.items():
        if text in wanted and name not in by_text.setdefault(text, []):
            by_text[text].append(name)
    ids = _assign(wanted, by_text, set(stored), lambda text, number: _hash(text if not number else f"{text}\n{number}"))
    placed = [ids[text, name] for text, name in zip(texts, asked, strict=True)]
    known = {name for names in by_text.values() for name in names}
    new: dict[str, Prompt] = {}
    for name, row in zip(placed, rows, strict=True):
        if name not in known:
            new.setdefault(name, Prompt(name, row.prompt))
    return placed, list(new.values())


def _prompts_by_text(connection: Connection, texts: set[str]) -> dict[str, list[str]]:
    """Those of the prompts with these texts, whatever their ids: one walk over all prompts."""
    found: dict[str, list[str]] = {}
    if texts:
        table = schema.prompts
        query = sa.select(table.c.prompt_id, table.c.text).order_by(table.c.number)
        for row in connection.execution_options(yield_per=1000).execute(query):
            if (text := stored_content(row.text, "user")) in texts:
                found.setdefault(text, []).append(row.prompt_id)
    return found


_AnswerContent = tuple[str, str, str]  # prompt_id, text as JSON, name of the model


def _place_answers(
    connection: Connection, rows: Sequence[Imported], prompt_ids: Sequence[str], source: str
) -> tuple[list[tuple[str, ...]], list[Answer]]:
    slots = [list(_slots(row.answers, prompt)) for row, prompt in zip(rows, prompt_ids, strict=True)]
    wanted: dict[_AnswerContent, dict[Slot, None]] = {}
    for content, slot in (one for found in slots for one in found):
        wanted.setdefault(content, {})[slot] = None
    stored = _stored_answers(connection, prompt_ids)
    given = {answer.answer_id for row in rows for answer in row.answers if answer.answer_id}
    taken = known_ids(connection, schema.answers.c.answer_id, given)
    ids = _assign(wanted, stored, taken, lambda content, number: _hash(json.dumps([*content, number])))
    known = {name for names in stored.values() for name in names}
    placed, new = [], {}
    for row, prompt, found in zip(rows, prompt_ids, slots, strict=True):
        names = tuple(ids[one] for one in found)
        placed.append(names)
        for name, answer in zip(names, row.answers, strict=True):
            if name not in known:
                new.setdefault(name, Answer(name, prompt, answer.text, Provenance(source, answer.model)))
    return placed, list(new.values())


def _slots(answers: Iterable[GivenAnswer], prompt_id: str) -> Iterator[tuple[_AnswerContent, Slot]]:
    seen: Counter[_AnswerContent] = Counter()
    for answer in answers:
        content = (prompt_id, content_of(answer.text, "assistant", "an answer"), answer.model)
        yield content, answer.answer_id or seen[content]  # two equal texts are two answers
        seen[content] += 1


def _stored_answers(connection: Connection, prompt_ids: Iterable[str]) -> dict[_AnswerContent, list[str]]:
    table = schema.answers
    found: dict[_AnswerContent, list[str]] = {}
    for chunk in chunks(dict.fromkeys(prompt_ids)):
        for row in connection.execute(sa.select(table).where(table.c.prompt_id.in_(chunk)).order_by(table.c.number)):
            content = (row.prompt_id, stored_content(row.text, "assistant"), answer_of(row).provenance.model)
            found.setdefault(content, []).append(row.answer_id)
    return found


_ItemContent = tuple[tuple[str, ...], Choice | None]  # answers, sorted; the known choice in terms of the first of them


def _place_items(
    connection: Connection, rows: Sequence[Imported], prompt_ids: Sequence[str], names: Sequence[tuple[str, ...]]
) -> tuple[list[Item], list[Item]]:
    contents = [_item_content(found, row.gold) for row, found in zip(rows, names, strict=True)]
    wanted: dict[_ItemContent, dict[Slot, None]] = {}
    for row, content in zip(rows, contents, strict=True):
        wanted.setdefault(content, {})[row.item_id or 0] = None
    items = _stored_items(connection, {found[0] for found in names})
    stored: dict[_ItemContent, list[str]] = {}
    for item in items.values():
        stored.setdefault(_item_content(item.answers, item.gold), []).append(item.item_id)
    taken = known_ids(connection, schema.items.c.item_id, {row.item_id for row in rows if row.item_id})
    ids = _assign(wanted, stored, taken, _item_id)
    placed, new = [], {}
    for row, prompt, found, content in zip(rows, prompt_ids, names, contents, strict=True):
        name = ids[content, row.item_id or 0]
        if name not in items:
            order, gold = (found, row.gold) if row.item_id else content
            items[name] = new[name] = Item(name, prompt, order, gold)
        placed.append(items[name])
    return placed, list(new.values())


def _item_content(answers: Sequence[str], gold: Choice | None) -> _ItemContent:
    ordered = tuple(sorted(answers))
    if gold in (Choice.FIRST, Choice.SECOND) and ordered != tuple(answers):
        gold = Choice.SECOND if gold is Choice.FIRST else Choice.FIRST
    return ordered, gold


def _item_id(content: _ItemContent, number: int) -> str:
    answers, gold = content
    return _hash("\n".join([*answers, *([gold.value] if gold else []), *([str(number)] if number else [])]))


def _stored_items(connection: Connection, answer_ids: Iterable[str]) -> dict[str, Item]:
    """The items that one of these answers belongs to, in the order they were added."""
    places, items = schema.item_answers, schema.items
    rows: list[Any] = []
    for chunk in chunks(sorted(answer_ids)):
        rows += connection.execute(sa.select(items).join(places).where(places.c.answer_id.in_(chunk)))
    answers = answers_of_items(connection, dict.fromkeys(row.item_id for row in rows))
    ordered = sorted(rows, key=lambda row: row.number)
    return {
        row.item_id: Item(row.item_id, row.prompt_id, answers[row.item_id], gold_of(row))
        for row in ordered
    }


def _assign(
    wanted: Mapping[Content, Mapping[Slot, None]],
    stored: Mapping[Content, Sequence[str]],
    taken: set[str],
    make: Callable[[Content, int], str],
) -> dict[tuple[Content, Slot], str]:
    """(contents, slot) -> id, no two slots of the same contents alike.

    A slot is the stored id that it names, else the next stored one of these contents that no slot names, else new: its own id where nobody
    has that (``taken``), else ``make(contents, number)``.
    """
    taken, found = set(taken), {}
    for content, slots in wanted.items():
        there = stored.get(content, ())
        free = iter([name for name in there if name not in slots])
        used = set(there)
        for slot in slots:
            name = slot if isinstance(slot, str) and slot in there else next(free, None)
            if name is None and isinstance(slot, str) and slot not in taken:
                name = slot
            if name is None:
                numbers = count(slot if isinstance(slot, int) else 0)
                name = next(made for number in numbers if (made := make(content, number)) not in used)
            used.add(name)
            taken.add(name)
            found[content, slot] = name
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
