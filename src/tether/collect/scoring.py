"""Scores of answers by reward models, and the order of the items that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tether.collect import schema
from tether.collect.adding import STRATEGY, chunks, known_ids, next_number
from tether.collect.codec import check_plain
from tether.collect.engine import Connection, Engine, reading, writing
from tether.collect.engine import sqlalchemy as sa
from tether.collect.judgement import Item
from tether.collect.judging import now_text
from tether.collect.select import Placed, place_items
from tether.collect.settings import Settings, Strategy
from tether.errors import DataError

__all__ = ["read_scores", "rerank", "scorer_ids", "write_scores"]


def write_scores(engine: Engine, scorer_id: str, scores: Mapping[str, float]) -> None:
    """See ``Store.set_scores``. Many short transactions: annotators write in between."""
    check_plain(scorer_id, "the id of a scorer")
    if not scores:
        raise DataError(f"scorer {scorer_id!r}: there are no scores to store")
    if odd := [f"{answer!r}: {value!r}" for answer, value in scores.items() if not _finite(value)]:
        raise DataError(f"scorer {scorer_id!r}: scores must be finite numbers, got {', '.join(odd[:5])} ({len(odd)} in all)")
    with reading(engine) as connection:
        loose = sorted(set(scores) - known_ids(connection, schema.answers.c.answer_id, scores))
    if loose:
        raise DataError(f"scorer {scorer_id!r}: no such answers: {', '.join(loose[:5])} ({len(loose)} in all)")
    with writing(engine) as connection:
        _make_newest(connection, scorer_id)
    table = schema.scores
    for chunk in chunks(scores.items()):
        with writing(engine) as connection:
            earlier = sa.delete(table).where(table.c.scorer_id == scorer_id, table.c.answer_id.in_([answer for answer, _ in chunk]))
            connection.execute(earlier)
            connection.execute(sa.insert(table), [{"scorer_id": scorer_id, "answer_id": answer, "value": value} for answer, value in chunk])


def _make_newest(connection: Connection, scorer_id: str) -> None:
    scorers = schema.scorers
    values = {"number": next_number(connection, scorers), "set_at": now_text()}
    if not connection.execute(sa.update(scorers).where(scorers.c.scorer_id == scorer_id).values(values)).rowcount:
        connection.execute(sa.insert(scorers).values(scorer_id=scorer_id, **values))


def read_scores(connection: Connection, scorer_id: str) -> dict[str, float]:
    """See ``Store.scores``."""
    if not (found := _scores_of(connection, scorer_id)):
        raise DataError(f"there are no scores by {scorer_id!r}; known: {', '.join(scorer_ids(connection)) or 'none'}")
    return found


def _scores_of(connection: Connection, scorer_id: str) -> dict[str, float]:
    """answer -> score; empty also where ``write_scores`` was killed before the first ones were in."""
    table = schema.scores
    return {row.answer_id: row.value for row in connection.execute(sa.select(table).where(table.c.scorer_id == scorer_id))}


def scorer_ids(connection: Connection) -> list[str]:
    """See ``Store.scorers``."""
    return list(connection.scalars(sa.select(schema.scorers.c.scorer_id).order_by(schema.scorers.c.number)))


def rerank(engine: Engine, settings: Settings) -> None:
    """Put the strategy's items in their order; annotators begin anew at its head. The random share and gold items stay as they are.

    Computed on one view, written in many short transactions: annotators are served in between, from an order that is half new.
    """
    with reading(engine) as connection:
        placed = _placed(connection, settings)
    items = schema.items
    change = sa.update(items).where(items.c.item_id == sa.bindparam("which")).values(place=sa.bindparam("to"), way=sa.bindparam("how"))
    for chunk in chunks(placed):
        with writing(engine) as connection:
            connection.execute(change, [{"which": one.item_id, "to": one.place, "how": one.way} for one in chunk])
    with writing(engine) as connection:
        connection.execute(sa.update(schema.annotators).values(active_cursor=None))


def _placed(connection: Connection, settings: Settings) -> list[Placed]:
    items, places = schema.items, schema.item_answers
    query = sa.select(items.c.item_id, items.c.prompt_id, places.c.answer_id).join(places).where(items.c.stream == STRATEGY)
    answers: dict[str, tuple[str, tuple[str, ...]]] = {}
    for row in connection.execute(query.order_by(items.c.item_id, places.c.position)):
        answers[row.item_id] = (row.prompt_id, (*answers.get(row.item_id, ("", ()))[1], row.answer_id))
    scorers = {} if settings.strategy is Strategy.RANDOM else {name: _scores_of(connection, name) for name in scorer_ids(connection)}
    return place_items([Item(item, prompt, found) for item, (prompt, found) in answers.items()], scorers, settings)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
