"""Scores of answers by reward models, and the order of the items that follows. Inside the caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tether.collect import schema
from tether.collect.adding import STRATEGY, chunks, known_ids, next_number
from tether.collect.codec import check_plain
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.judgement import Item
from tether.collect.judging import now_text
from tether.collect.select import place_items
from tether.collect.settings import Settings, Strategy
from tether.errors import DataError

__all__ = ["read_scores", "rerank", "scorer_ids", "write_scores"]


def write_scores(connection: Connection, scorer_id: str, scores: Mapping[str, float]) -> None:
    """See ``Store.set_scores``."""
    check_plain(scorer_id, "the id of a scorer")
    if odd := [f"{answer!r}: {value!r}" for answer, value in scores.items() if not _finite(value)]:
        raise DataError(f"scorer {scorer_id!r}: scores must be finite numbers, got {', '.join(odd[:5])} ({len(odd)} in all)")
    if loose := sorted(set(scores) - known_ids(connection, schema.answers.c.answer_id, scores)):
        raise DataError(f"scorer {scorer_id!r}: no such answers: {', '.join(loose[:5])} ({len(loose)} in all)")
    scorers, table = schema.scorers, schema.scores
    values = {"number": next_number(connection, scorers), "set_at": now_text()}
    if not connection.execute(sa.update(scorers).where(scorers.c.scorer_id == scorer_id).values(values)).rowcount:
        connection.execute(sa.insert(scorers).values(scorer_id=scorer_id, **values))
    for chunk in chunks(scores.items()):
        connection.execute(sa.delete(table).where(table.c.scorer_id == scorer_id, table.c.answer_id.in_([answer for answer, _ in chunk])))
        connection.execute(sa.insert(table), [{"scorer_id": scorer_id, "answer_id": answer, "value": value} for answer, value in chunk])


def read_scores(connection: Connection, scorer_id: str) -> dict[str, float]:
    """See ``Store.scores``."""
    table = schema.scores
    found = {row.answer_id: row.value for row in connection.execute(sa.select(table).where(table.c.scorer_id == scorer_id))}
    if not found:
        raise DataError(f"there are no scores by {scorer_id!r}; known: {', '.join(scorer_ids(connection)) or 'none'}")
    return found


def scorer_ids(connection: Connection) -> list[str]:
    """See ``Store.scorers``."""
    return list(connection.scalars(sa.select(schema.scorers.c.scorer_id).order_by(schema.scorers.c.number)))


def rerank(connection: Connection, settings: Settings) -> None:
    """Put the strategy's items in their order; annotators begin anew at its head. The random share and gold items stay as they are."""
    items, places = schema.items, schema.item_answers
    query = sa.select(items.c.item_id, items.c.prompt_id, places.c.answer_id).join(places).where(items.c.stream == STRATEGY)
    answers: dict[str, tuple[str, Any]] = {}
    for row in connection.execute(query.order_by(items.c.item_id, places.c.position)):
        answers[row.item_id] = (row.prompt_id, (*answers.get(row.item_id, ("", ()))[1], row.answer_id))
    scorers = {} if settings.strategy is Strategy.RANDOM else {name: read_scores(connection, name) for name in scorer_ids(connection)}
    placed = place_items([Item(item, prompt, found) for item, (prompt, found) in answers.items()], scorers, settings)
    change = sa.update(items).where(items.c.item_id == sa.bindparam("which")).values(place=sa.bindparam("to"), way=sa.bindparam("how"))
    if placed:
        connection.execute(change, [{"which": one.item_id, "to": one.place, "how": one.way} for one in placed])
    connection.execute(sa.update(schema.annotators).values(active_cursor=None))


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
