"""Judgements into the database, out of it, and taken back. Inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tether.collect import schema
from tether.collect.adding import GOLD, answers_of_items, next_number
from tether.collect.assign import reserve
from tether.collect.codec import judgement_of, judgement_row
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.judgement import Choice, Item, Judgement
from tether.errors import DataError, StoreConflict

__all__ = ["history", "judgements_of", "now_text", "record", "undo"]

_TABLE = schema.judgements
_LIVE = _TABLE.c.withdrawn_at.is_(None)


def now_text() -> str:
    """The time as it is stored: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def record(connection: Connection, judgement: Judgement) -> Judgement:
    """See ``Store.record``."""
    stored = connection.execute(sa.select(_TABLE).where(_TABLE.c.judgement_id == judgement.judgement_id)).first()
    if stored is not None:
        return _same(judgement_of(stored), judgement)
    item = _checked_item(connection, judgement)
    _refuse_second_word(connection, judgement)
    made = judgement if judgement.made_at else replace(judgement, made_at=now_text())
    connection.execute(sa.insert(_TABLE).values(**judgement_row(made), number=next_number(connection, _TABLE)))
    if made.withdrawn_at is None:
        _count(connection, item, made.choice, -1)
        held = schema.reservations
        connection.execute(sa.delete(held).where(held.c.annotator_id == made.annotator, held.c.item_id == made.item_id))
    return made


def undo(connection: Connection, annotator: str, judgement_id: str | None, reserved_until: float) -> Judgement | None:
    """See ``Store.undo``."""
    query = sa.select(_TABLE).where(_TABLE.c.annotator_id == annotator)
    if judgement_id is None:
        query = query.where(_LIVE).order_by(_TABLE.c.number.desc()).limit(1)
    else:
        query = query.where(_TABLE.c.judgement_id == judgement_id)
    row = connection.execute(query).first()
    if row is None:
        if judgement_id is not None:
            raise DataError(f"annotator {annotator!r} has made no judgement {judgement_id!r}")
        return None
    found = judgement_of(row)
    if found.withdrawn_at is not None:
        return found
    withdrawn = replace(found, withdrawn_at=now_text())
    change = sa.update(_TABLE).where(_TABLE.c.judgement_id == found.judgement_id)
    connection.execute(change.values(withdrawn_at=withdrawn.withdrawn_at))
    item = connection.execute(sa.select(schema.items).where(schema.items.c.item_id == found.item_id)).one()
    _count(connection, item, found.choice, 1)
    reserve(connection, annotator, found.item_id, reserved_until)
    return withdrawn


def history(connection: Connection, annotator: str, limit: int) -> list[Judgement]:
    """See ``Store.history``."""
    query = sa.select(_TABLE).where(_TABLE.c.annotator_id == annotator, _LIVE).order_by(_TABLE.c.number.desc()).limit(limit)
    return [judgement_of(row) for row in connection.execute(query)]


def judgements_of(connection: Connection, include_withdrawn: bool) -> Iterator[Judgement]:
    """See ``Store.judgements``."""
    query = sa.select(_TABLE).order_by(_TABLE.c.number)
    rows = connection.execution_options(yield_per=1000).execute(query if include_withdrawn else query.where(_LIVE))
    return map(judgement_of, rows)


def _same(stored: Judgement, sent: Judgement) -> Judgement:
    """The stored judgement, where what was sent says the same. When it was made and withdrawn is the store's knowledge."""
    if replace(sent, made_at=sent.made_at or stored.made_at, withdrawn_at=stored.withdrawn_at) != stored:
        raise StoreConflict(f"judgement {sent.judgement_id!r} is stored already with another content; a new one needs an id of its own")
    return stored


def _checked_item(connection: Connection, judgement: Judgement) -> Any:
    if not judgement.judgement_id:
        raise DataError("judgement_id is empty; the page makes one, so that a request that is sent twice is stored once")
    row = connection.execute(sa.select(schema.items).where(schema.items.c.item_id == judgement.item_id)).first()
    if row is None:
        raise DataError(f"judgement {judgement.judgement_id!r} is of the item {judgement.item_id!r}, which is not stored")
    who = schema.annotators
    if connection.scalar(sa.select(who.c.number).where(who.c.annotator_id == judgement.annotator)) is None:
        raise DataError(f"judgement {judgement.judgement_id!r} is by the annotator {judgement.annotator!r}, who is not stored")
    judgement.check(Item(row.item_id, row.prompt_id, answers_of_items(connection, [row.item_id])[row.item_id]))
    return row


def _refuse_second_word(connection: Connection, judgement: Judgement) -> None:
    if judgement.withdrawn_at is not None:
        return
    same = (_TABLE.c.item_id == judgement.item_id, _TABLE.c.annotator_id == judgement.annotator, _LIVE)
    earlier = connection.scalar(sa.select(_TABLE.c.judgement_id).where(*same))
    if earlier is not None:
        raise StoreConflict(
            f"annotator {judgement.annotator!r} has judged the item {judgement.item_id!r} already ({earlier!r}); withdraw that one first"
        )


def _count(connection: Connection, item: Any, choice: Choice, change: int) -> None:
    """A skip leaves the item wanting as many judgements as before; a gold item always wants one more."""
    if choice is not Choice.SKIP and item.stream != GOLD:
        table = schema.items
        connection.execute(sa.update(table).where(table.c.item_id == item.item_id).values(missing=table.c.missing + change))
