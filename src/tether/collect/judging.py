"""Judgements into the database, out of it, and taken back. Inside the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tether.collect import schema
from tether.collect.adding import GOLD, answers_of_items, chunks, known_ids, next_number
from tether.collect.assign import reserve
from tether.collect.codec import judgement_of, judgement_row
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.judgement import Choice, Item, Judgement
from tether.errors import DataError, StoreConflict

__all__ = ["history", "judgements_of", "now_text", "record_all", "undo"]

_TABLE = schema.judgements
_LIVE = _TABLE.c.withdrawn_at.is_(None)


def now_text() -> str:
    """The time as it is stored: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def record_all(connection: Connection, judgements: Sequence[Judgement]) -> list[Judgement]:
    """See ``Store.record_all``. Five statements per 500 judgements."""
    return [stored for chunk in chunks(judgements) for stored in _record_chunk(connection, chunk)]


def _record_chunk(connection: Connection, judgements: Sequence[Judgement]) -> list[Judgement]:
    known = {row.judgement_id: judgement_of(row) for row in _rows(connection, _TABLE.c.judgement_id, [j.judgement_id for j in judgements])}
    items = {row.item_id: row for row in _rows(connection, schema.items.c.item_id, {j.item_id for j in judgements})}
    answers = answers_of_items(connection, items)
    who = known_ids(connection, schema.annotators.c.annotator_id, {j.annotator for j in judgements})
    live = {
        (row.item_id, row.annotator_id): row.judgement_id
        for row in _rows(connection, _TABLE.c.item_id, list(items), _LIVE, _TABLE.c.annotator_id.in_(who))
    }
    now, fresh, stored = now_text(), [], []
    for judgement in judgements:
        if judgement.judgement_id in known:
            stored.append(_same(known[judgement.judgement_id], judgement))
            continue
        _check(judgement, items, answers, who)
        made = judgement if judgement.made_at else replace(judgement, made_at=now)
        if made.withdrawn_at is None:
            _refuse_second_word(made, live)
        fresh.append(made)
        stored.append(made)
        known[made.judgement_id] = made
    if fresh:
        _insert(connection, fresh, items)
    return stored


def _rows(connection: Connection, column: Any, values: Collection[str], *conditions: Any) -> Any:
    return connection.execute(sa.select(column.table).where(column.in_(list(values)), *conditions)).all()


def _insert(connection: Connection, judgements: Sequence[Judgement], items: Mapping[str, Any]) -> None:
    number = next_number(connection, _TABLE)
    connection.execute(sa.insert(_TABLE), [judgement_row(one) | {"number": number + at} for at, one in enumerate(judgements)])
    live = [one for one in judgements if one.withdrawn_at is None]
    for item_id, count in Counter(one.item_id for one in live if one.choice is not Choice.SKIP).items():
        _count(connection, items[item_id], -count)
    held = schema.reservations
    ended = sa.delete(held).where(held.c.annotator_id == sa.bindparam("who"), held.c.item_id == sa.bindparam("what"))
    if live:
        connection.execute(ended, [{"who": one.annotator, "what": one.item_id} for one in live])


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
    if found.choice is not Choice.SKIP:
        _count(connection, item, 1)
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


def _check(judgement: Judgement, items: Mapping[str, Any], answers: Mapping[str, tuple[str, ...]], who: Collection[str]) -> None:
    if not judgement.judgement_id:
        raise DataError("judgement_id is empty; the page makes one, so that a request that is sent twice is stored once")
    if judgement.item_id not in items:
        raise DataError(f"judgement {judgement.judgement_id!r} is of the item {judgement.item_id!r}, which is not stored")
    if judgement.annotator not in who:
        raise DataError(f"judgement {judgement.judgement_id!r} is by the annotator {judgement.annotator!r}, who is not stored")
    judgement.check(Item(judgement.item_id, items[judgement.item_id].prompt_id, answers[judgement.item_id]))


def _refuse_second_word(judgement: Judgement, live: dict[tuple[str, str], str]) -> None:
    earlier = live.setdefault((judgement.item_id, judgement.annotator), judgement.judgement_id)
    if earlier != judgement.judgement_id:
        raise StoreConflict(
            f"annotator {judgement.annotator!r} has judged the item {judgement.item_id!r} already ({earlier!r}); withdraw that one first"
        )


def _count(connection: Connection, item: Any, change: int) -> None:
    """A skip leaves the item wanting as many judgements as before (its callers see to that); a gold item always wants one more."""
    if item.stream != GOLD:
        table = schema.items
        connection.execute(sa.update(table).where(table.c.item_id == item.item_id).values(missing=table.c.missing + change))
