"""Rows into the tables: what is there already is compared, what refers to nothing is refused. Inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from tether.collect import schema
from tether.collect.codec import check_plain, prompt_row, stored_content
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import StoredPrompt
from tether.collect.judgement import Item
from tether.collect.order import share_of
from tether.collect.select import in_random_share, random_place
from tether.collect.settings import Settings
from tether.errors import DataError
from tether.types import Prompt

__all__ = ["GOLD", "RANDOM", "STRATEGY", "Added", "add_items", "add_prompts", "add_rows", "answers_of_items", "chunks", "known_ids"]

GOLD, RANDOM, STRATEGY = 0, 1, 2
_CHUNK = 500  # parameters per statement stay under every database's limit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Added:
    """``new`` rows were added, ``known`` ones were there with the same contents."""

    new: int
    known: int


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Lists of at most 500."""
    left = iter(values)
    while chunk := list(islice(left, _CHUNK)):
        yield chunk


def known_ids(connection: Connection, column: Any, ids: Iterable[str]) -> set[str]:
    """Those of the ids that the column holds."""
    found: set[str] = set()
    for chunk in chunks(ids):
        found.update(connection.scalars(sa.select(column).where(column.in_(chunk))))
    return found


def add_rows(
    connection: Connection,
    table: Any,
    rows: Iterable[dict[str, Any]],
    refers: Mapping[str, Any],
    begin: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: {},
) -> Added:
    """Add rows by their primary key; they are numbered as they come. ``begin``: the columns of a new row that are not its contents:
    they are not compared, because they change later or go by the settings of the moment.

    ``refers``: column -> the column elsewhere that must hold its values. Raises DataError for another content under a known id, and for a
    reference to nothing.
    """
    key = next(iter(table.primary_key.columns))
    new = known = 0
    number = next_number(connection, table)
    for chunk in chunks(rows):
        unlike = _without_repeats(chunk, key.name)
        stored = {row[key.name]: row for row in connection.execute(sa.select(table).where(key.in_(list(unlike)))).mappings()}
        for row_id, row in unlike.items():
            if row_id in stored and (other := [name for name, value in row.items() if stored[row_id][name] != value]):
                raise DataError(f"{key.name} {row_id!r} is stored already with another {', '.join(other)}; the new one needs its own id")
        fresh = [row for row_id, row in unlike.items() if row_id not in stored]
        for name, column in refers.items():
            _refuse_loose_ends(connection, key.name, fresh, name, column)
        if fresh:
            connection.execute(sa.insert(table), [row | begin(row) | {"number": number + at} for at, row in enumerate(fresh)])
        number, new, known = number + len(fresh), new + len(fresh), known + len(chunk) - len(fresh)
    return Added(new, known)


def add_prompts(connection: Connection, prompts: Iterable[Prompt], settings: Settings) -> Added:
    """Add prompts, each on its side of the held-out split: that of the same contents, which are drawn for by their hash."""
    table = schema.prompts
    # A database from before sides went by contents may hold one turn of a user on the side that another hash gave it.
    turns = sa.select(table.c.text, table.c.held_out).where(table.c.text.like('[["user"%')).order_by(table.c.number.desc())
    sides = {stored_content(row.text, "user"): bool(row.held_out) for row in connection.execute(turns)}

    def side(row: dict[str, Any]) -> dict[str, Any]:
        content = stored_content(row["text"], "user")
        drawn = sides.get(content)
        return {"held_out": share_of(settings.held_out_share, settings.seed, "held out", content) if drawn is None else drawn}

    def contents(prompt: Prompt) -> dict[str, Any]:
        row = prompt_row(StoredPrompt(prompt.prompt_id, prompt.text, prompt.columns))
        del row["held_out"]  # a side is fixed when the prompt is added
        return row

    return add_rows(connection, table, map(contents, prompts), {}, side)


def next_number(connection: Connection, table: Any) -> int:
    """The number of the next row of the table, from 0."""
    return connection.scalar(sa.select(sa.func.coalesce(sa.func.max(table.c.number), -1) + 1)) or 0


def _without_repeats(rows: Sequence[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    unlike: dict[str, dict[str, Any]] = {}
    for row in rows:
        check_plain(row[key], key)
        if not row[key]:
            raise DataError(f"{key} is empty")
        if unlike.setdefault(row[key], row) != row:
            raise DataError(f"{key} {row[key]!r} comes twice with different contents; give each an id of its own")
    return unlike


def _refuse_loose_ends(connection: Connection, key: str, rows: Sequence[dict[str, Any]], name: str, column: Any) -> None:
    known = known_ids(connection, column, {row[name] for row in rows})
    for row in rows:
        if row[name] not in known:
            raise DataError(f"{key} {row[key]!r} refers to the {name} {row[name]!r}, which is not stored; add that first")


def add_items(connection: Connection, items: Iterable[Item], settings: Settings) -> Added:
    """Items with their answers; every item learns here whether it overlaps and whether it belongs to the random share."""
    new = known = 0
    for chunk in chunks(items):
        for item in chunk:
            _check_item(item)
        _check_answers(connection, chunk)
        unlike = {item.item_id: item for item in chunk}
        stored = answers_of_items(connection, unlike)
        refers = {"prompt_id": schema.prompts.c.prompt_id}
        added = add_rows(connection, schema.items, map(_item_row, chunk), refers, lambda row: _first_place(row, settings))
        for item in chunk:
            if stored.get(item.item_id, item.answers) != item.answers or unlike[item.item_id] != item:
                raise DataError(f"item_id {item.item_id!r} comes twice with other answers; give the new one an id of its own")
        places = [
            {"item_id": item.item_id, "position": position, "answer_id": answer}
            for item in unlike.values()
            if item.item_id not in stored
            for position, answer in enumerate(item.answers)
        ]
        if places:
            connection.execute(sa.insert(schema.item_answers), places)
        new, known = new + added.new, known + added.known
    return Added(new, known)


def answers_of_items(connection: Connection, item_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """item -> its answers in their order, for those that are stored."""
    table = schema.item_answers
    found: dict[str, tuple[str, ...]] = {}
    for chunk in chunks(item_ids):
        for row in connection.execute(sa.select(table).where(table.c.item_id.in_(chunk)).order_by(table.c.item_id, table.c.position)):
            found[row.item_id] = (*found.get(row.item_id, ()), row.answer_id)
    return found


def _check_item(item: Item) -> None:
    if len(item.answers) < 2 or len(set(item.answers)) != len(item.answers):
        raise DataError(f"item {item.item_id!r}: expected two or more different answers, got {list(item.answers)}")
    if item.gold is not None and (len(item.answers) != 2 or item.gold.value not in ("first", "second", "tie", "both_bad")):
        raise DataError(f"item {item.item_id!r}: a gold item has two answers and the known choice first, second, tie or both_bad")


def _check_answers(connection: Connection, items: Sequence[Item]) -> None:
    table = schema.answers
    prompt_of: dict[str, str] = {}
    for chunk in chunks({answer for item in items for answer in item.answers}):
        query = sa.select(table.c.answer_id, table.c.prompt_id).where(table.c.answer_id.in_(chunk))
        prompt_of.update({row.answer_id: row.prompt_id for row in connection.execute(query)})
    for item in items:
        for answer in item.answers:
            if prompt_of.get(answer) != item.prompt_id:
                found = f"answers the prompt {prompt_of[answer]!r}" if answer in prompt_of else "is not stored; add it first"
                raise DataError(f"item {item.item_id!r} is about the prompt {item.prompt_id!r}, and its answer {answer!r} {found}")


def _item_row(item: Item) -> dict[str, Any]:
    return {"item_id": item.item_id, "prompt_id": item.prompt_id, "gold": None if item.gold is None else item.gold.value}


def _first_place(row: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """How a new item is served: by the settings of this moment."""
    name, gold = row["item_id"], row["gold"] is not None
    overlaps = not gold and share_of(settings.overlap, settings.seed, "overlap", name)
    wanted = settings.judgements_per_overlap_item if overlaps else 1
    stream = GOLD if gold else RANDOM if in_random_share(name, settings) else STRATEGY
    way = ("gold", "random", "unscored")[stream]
    return {"stream": stream, "wanted": wanted, "missing": wanted, "place": random_place(name, settings.seed), "way": way}
