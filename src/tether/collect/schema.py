"""The tables of a collection, as SQLAlchemy Core: the same on SQLite and on PostgreSQL.

    prompts 1-n answers, prompts 1-n items, items n-m answers (item_answers, in order), items 1-n judgements, annotators 1-n judgements

Texts are JSON: a string, or a list of [role, content]. ``number`` counts rows of a table as they were added; ids are the users'.
"""

from __future__ import annotations

from typing import Any

from tether.collect.engine import sqlalchemy as sa

__all__ = [
    "SCHEMA_VERSION", "annotators", "answers", "item_answers", "items", "judgements", "meta", "metadata", "prompts", "reservations",
    "scorers", "scores", "wanting",
]  # fmt: skip

SCHEMA_VERSION = 1
"""Raised by every change that an older Tether could not read."""

metadata = sa.MetaData()


def _table(name: str, *parts: Any) -> sa.Table:
    return sa.Table(f"tether_{name}", metadata, *parts)


def _id(name: str, table: str, **options: Any) -> sa.Column:
    return sa.Column(name, sa.Text, sa.ForeignKey(f"tether_{table}.{name}"), nullable=False, **options)


def _text(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text, nullable=nullable)


def _number() -> sa.Column:
    return sa.Column("number", sa.Integer, nullable=False, unique=True)


meta = _table("meta", sa.Column("key", sa.Text, primary_key=True), _text("value"))

prompts = _table(
    "prompts",
    sa.Column("prompt_id", sa.Text, primary_key=True),
    _number(),
    _text("text"),
    _text("columns"),
    sa.Column("held_out", sa.Boolean, nullable=False),
)

answers = _table(
    "answers",
    sa.Column("answer_id", sa.Text, primary_key=True),
    _number(),
    _id("prompt_id", "prompts", index=True),
    _text("text"),
    _text("provenance"),
)

items = _table(
    "items",
    sa.Column("item_id", sa.Text, primary_key=True),
    _number(),
    _id("prompt_id", "prompts", index=True),
    _text("gold", nullable=True),
    sa.Column("stream", sa.Integer, nullable=False),  # 0 gold, 1 the random share, 2 the strategy's
    sa.Column("place", sa.Float(53), nullable=False),  # the smallest is served next within its stream
    sa.Column("wanted", sa.Integer, nullable=False),
    sa.Column("missing", sa.Integer, nullable=False),  # wanted less the live judgements that are no skips; a gold item stays at 1
    _text("way"),  # how ``place`` was found
    _text("chosen_by", nullable=True),  # ``way`` when the item was first shown
)
wanting = items.c.missing > sa.literal_column("0")
"""Condition on an item: it still wants judgements. The number is spelled out, so that a planner matches the index below without a value."""
# item_id is in it so that items which the annotator has judged are passed over without a look at their rows.
sa.Index("tether_items_next", items.c.stream, items.c.place, items.c.item_id, sqlite_where=wanting, postgresql_where=wanting)

item_answers = _table(
    "item_answers",
    _id("item_id", "items"),
    sa.Column("position", sa.Integer, nullable=False),
    _id("answer_id", "answers", index=True),
    sa.PrimaryKeyConstraint("item_id", "position"),
)

annotators = _table(
    "annotators",
    sa.Column("annotator_id", sa.Text, primary_key=True),
    _number(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    # The last place served in streams 1 and 2: the search for the next item begins there, and once more from the start if nothing follows.
    sa.Column("random_cursor", sa.Float(53), nullable=True),
    sa.Column("active_cursor", sa.Float(53), nullable=True),
)

judgements = _table(
    "judgements",
    sa.Column("judgement_id", sa.Text, primary_key=True),
    _number(),
    _id("item_id", "items"),
    _id("annotator_id", "annotators"),
    _text("choice"),
    _text("shown"),
    _text("strength", nullable=True),
    _text("ranking"),
    _text("reason"),
    _text("comment"),
    sa.Column("seconds", sa.Float(53), nullable=True),
    _text("made_at"),
    _text("withdrawn_at", nullable=True),
)
_live = judgements.c.withdrawn_at.is_(None)
# One live judgement per item and annotator, whatever two open pages send.
sa.Index("tether_judgements_live", judgements.c.item_id, judgements.c.annotator_id, unique=True, sqlite_where=_live, postgresql_where=_live)
sa.Index("tether_judgements_of_annotator", judgements.c.annotator_id, judgements.c.number)
sa.Index("tether_judgements_of_item", judgements.c.item_id, judgements.c.number)  # an export asks for those of 500 items at a time

reservations = _table(
    "reservations",
    _id("annotator_id", "annotators", primary_key=True),  # an annotator looks at one item
    _id("item_id", "items", index=True),
    sa.Column("until", sa.Float(53), nullable=False),  # seconds since 1970
)

scorers = _table("scorers", sa.Column("scorer_id", sa.Text, primary_key=True), _number(), _text("set_at"))  # the newest has the largest

scores = _table(
    "scores",
    sa.Column("scorer_id", sa.Text, sa.ForeignKey("tether_scorers.scorer_id"), nullable=False),
    _id("answer_id", "answers"),
    sa.Column("value", sa.Float(53), nullable=False),
    sa.PrimaryKeyConstraint("scorer_id", "answer_id"),
)
