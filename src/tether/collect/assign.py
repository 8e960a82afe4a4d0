"""Who gets which item next. Inside the caller's transaction, which is the only one that writes; nothing is locked between two calls.

An annotator looks at one item at a time: it is reserved until it is judged, another item is taken, or its time is over. An item is given
out as long as its live judgements and running reservations are fewer than the judgements it wants.
"""

from __future__ import annotations

from typing import Any

from tether.collect import schema
from tether.collect.adding import GOLD, RANDOM, STRATEGY
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Progress
from tether.collect.judgement import Choice
from tether.collect.order import share_of
from tether.collect.settings import Settings

__all__ = ["assign", "judged_by", "next_in_stream", "progress", "reserve"]

_CURSORS = {RANDOM: "random_cursor", STRATEGY: "active_cursor"}


def assign(connection: Connection, annotator: Any, settings: Settings, now: float) -> Any | None:
    """The row of the item that the annotator (a row) should judge now, reserved; None when there is nothing left for this one.

    The same until it is judged. Which stream comes next is drawn from (seed, annotator, number of live judgements) alone.
    """
    items = schema.items
    held = connection.execute(
        sa.select(items)
        .join(schema.reservations, schema.reservations.c.item_id == items.c.item_id)
        .where(schema.reservations.c.annotator_id == annotator.annotator_id)
    ).first()
    if held is not None and _still_wanted(connection, held, annotator.annotator_id, now):
        reserve(connection, annotator.annotator_id, held.item_id, now + 60 * settings.reservation_minutes)
        return held
    for stream in _streams(connection, annotator.annotator_id, settings):
        item = _next_after_cursor(connection, stream, annotator, now)
        if item is not None:
            reserve(connection, annotator.annotator_id, item.item_id, now + 60 * settings.reservation_minutes)
            _note(connection, item, stream, annotator.annotator_id)
            return item
    connection.execute(sa.delete(schema.reservations).where(schema.reservations.c.annotator_id == annotator.annotator_id))
    return None


def judged_by(annotator_id: str) -> Any:
    """Condition on an item: this annotator has a live judgement of it."""
    table = schema.judgements
    return sa.exists().where(
        table.c.item_id == schema.items.c.item_id, table.c.annotator_id == annotator_id, table.c.withdrawn_at.is_(None)
    )


def next_in_stream(stream: int, annotator_id: str, now: float, after: float | None) -> Any:
    """The query for a stream's first item that is free for the annotator, behind the place ``after``; walks the index tether_items_next."""
    items, held = schema.items, schema.reservations
    query = sa.select(items).where(items.c.stream == stream, schema.wanting, ~judged_by(annotator_id))
    if stream != GOLD:
        running = sa.select(sa.func.count()).where(
            held.c.item_id == items.c.item_id, held.c.annotator_id != annotator_id, held.c.until > now
        )
        query = query.where(items.c.missing > running.scalar_subquery())
    if after is not None:
        query = query.where(items.c.place > after)
    return query.order_by(items.c.place).limit(1)


def reserve(connection: Connection, annotator_id: str, item_id: str, until: float) -> None:
    """The annotator looks at this item and at no other."""
    connection.execute(sa.delete(schema.reservations).where(schema.reservations.c.annotator_id == annotator_id))
    connection.execute(sa.insert(schema.reservations).values(annotator_id=annotator_id, item_id=item_id, until=until))


def progress(connection: Connection, annotator_id: str) -> Progress:
    """See ``Store.progress``. What is open is counted from indexes: all open items less the annotator's own among them."""
    items, mine = schema.items, schema.judgements
    count = sa.select(sa.func.count())
    live = (mine.c.annotator_id == annotator_id, mine.c.withdrawn_at.is_(None))
    wanting = (items.c.stream.in_((RANDOM, STRATEGY)), schema.wanting)
    total = connection.scalar(count.select_from(mine).where(*live)) or 0
    skipped = connection.scalar(count.select_from(mine).where(*live, mine.c.choice == Choice.SKIP.value)) or 0
    open_items = connection.scalar(count.select_from(items).where(*wanting)) or 0
    done = connection.scalar(count.select_from(mine.join(items)).where(*live, *wanting)) or 0
    return Progress(judged=total - skipped, skipped=skipped, open=open_items - done)


def _still_wanted(connection: Connection, item: Any, annotator_id: str, now: float) -> bool:
    """A reservation that ran out may have let others fill the item; and another page may have judged it."""
    items, held = schema.items, schema.reservations
    running = sa.select(sa.func.count()).where(held.c.item_id == items.c.item_id, held.c.annotator_id != annotator_id, held.c.until > now)
    wanted = sa.or_(items.c.stream == GOLD, items.c.missing > running.scalar_subquery())
    query = sa.select(items.c.item_id).where(items.c.item_id == item.item_id, ~judged_by(annotator_id), wanted)
    return connection.scalar(query) is not None


def _streams(connection: Connection, annotator_id: str, settings: Settings) -> list[int]:
    table = schema.judgements
    turn = connection.scalar(sa.select(sa.func.count()).where(table.c.annotator_id == annotator_id, table.c.withdrawn_at.is_(None)))
    random_first = share_of(settings.random_share, settings.seed, "turn random", annotator_id, turn)
    ordinary = [RANDOM, STRATEGY] if random_first else [STRATEGY, RANDOM]
    return [GOLD, *ordinary] if share_of(settings.gold_share, settings.seed, "turn gold", annotator_id, turn) else ordinary


def _next_after_cursor(connection: Connection, stream: int, annotator: Any, now: float) -> Any | None:
    after = None if stream == GOLD else getattr(annotator, _CURSORS[stream])
    item = connection.execute(next_in_stream(stream, annotator.annotator_id, now, after)).first()
    if item is None and after is not None:
        item = connection.execute(next_in_stream(stream, annotator.annotator_id, now, None)).first()
    return item


def _note(connection: Connection, item: Any, stream: int, annotator_id: str) -> None:
    items, annotators = schema.items, schema.annotators
    if item.chosen_by is None:
        connection.execute(sa.update(items).where(items.c.item_id == item.item_id).values(chosen_by=item.way))
    if stream != GOLD:
        connection.execute(
            sa.update(annotators).where(annotators.c.annotator_id == annotator_id).values({_CURSORS[stream]: item.place})
        )
