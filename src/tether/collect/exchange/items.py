"""What both kinds of export read: items with the split of their prompts, judgements, texts. Inside the caller's view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tether.collect import schema
from tether.collect.adding import chunks
from tether.collect.codec import judgement_of, text_from_json
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Text
from tether.collect.exchange.rule import Rule
from tether.collect.judgement import Judgement
from tether.collect.store import Store
from tether.errors import ConfigError, DataError

__all__ = ["annotator_ids", "item_rows", "judgements_on", "outside", "refuse_none", "texts_of", "told"]


def annotator_ids(store: Store, wanted: Sequence[str]) -> tuple[str, ...]:
    """Annotators by id or name. Raises ConfigError for one that nobody has: a misspelt name would leave its votes in."""
    known = store.annotators()
    by_word = {one.name: one.id for one in known} | {one.id: one.id for one in known}
    if unknown := [word for word in wanted if word not in by_word]:
        there = ", ".join(f"{one.id} ({one.name})" for one in known) or "none"
        raise ConfigError(f"without: there is no annotator {', '.join(map(repr, unknown))}; known: {there}", store.place)
    return tuple(by_word[word] for word in wanted)


def item_rows(connection: Connection) -> Iterator[Any]:
    """Items as they were added, each with whether its prompt is held out."""
    items, prompts = schema.items, schema.prompts
    query = sa.select(items, prompts.c.held_out).join(prompts).order_by(items.c.number)
    yield from connection.execution_options(yield_per=500).execute(query)


def outside(row: Any, rule: Rule) -> str:
    """Why the rule leaves an item out before anything is said of it; "" where it does not."""
    if row.gold is not None and not rule.gold:
        return "gold"
    if rule.split == "all" or (rule.split == "held_out") == bool(row.held_out):
        return ""
    return "held out" if row.held_out else "not held out"


def judgements_on(connection: Connection, item_ids: Sequence[str]) -> dict[str, list[Judgement]]:
    """All judgements of these items, withdrawn ones too, in the order they were made."""
    table = schema.judgements
    query = sa.select(table).where(table.c.item_id.in_(item_ids)).order_by(table.c.item_id, table.c.number)
    found = map(judgement_of, connection.execute(query))
    return {item_id: list(group) for item_id, group in groupby(found, lambda one: one.item_id)}


def told(num_rows: int, what: str, left_out: Counter[str]) -> str:
    """The counts of an export in words. Example: 3, "5 pairs", {"tie": 2} -> "3 rows of 5 pairs; left out: 2 tie"."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
    return f"{num_rows} rows of {what}" + (f"; left out: {reasons}" if reasons else "")


def refuse_none(rows: Iterator[dict[str, Any]], place: str, report: object) -> Iterator[dict[str, Any]]:
    """The rows. Raises DataError at the end of none."""
    none = True
    for row in rows:
        none = False
        yield row
    if none:
        raise DataError(f"{place}: the rule of the export leaves no rows ({report}); nothing was written")


def texts_of(connection: Connection, column: Any, ids: set[str]) -> dict[str, Text]:
    """id -> text, from the table of the column."""
    found: dict[str, Text] = {}
    for chunk in chunks(sorted(ids)):
        for row in connection.execute(sa.select(column, column.table.c.text).where(column.in_(chunk))):
            found[row[0]] = text_from_json(row.text)
    return found
