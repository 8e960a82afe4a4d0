"""The words of rows as judgements: which of them are new, which are there already, and which contradict what is stored.

A word without an id is somebody's: the name stands for a crowd, and each further word on an item in the same name is the word of a further
annotator, "import (2)". A word with an id was made by the person of that name, who has one word on an item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tether.collect import schema
from tether.collect.adding import chunks
from tether.collect.codec import judgement_of
from tether.collect.engine import Connection
from tether.collect.engine import sqlalchemy as sa
from tether.collect.exchange.given import Word
from tether.collect.exchange.identity import PlacedRow
from tether.collect.judgement import Choice, Item, Judgement
from tether.errors import DataError

__all__ = ["Said", "say"]

_MOST_TOLD = 5


@dataclass(slots=True)
class Said:
    """``new`` judgements, whose annotators are named instead of numbered, and how many were there already."""

    new: list[Judgement] = field(default_factory=list)
    known: int = 0


def say(connection: Connection, rows: Iterable[PlacedRow], source: str) -> Said:
    """The judgements of all rows. Raises one DataError with the words of named persons that contradict stored ones or each other."""
    rows = list(rows)
    stored = _Stored.of(connection, rows)
    said, problems = Said(), []
    for row in rows:
        for word in row.row.words:
            made = _judgement(row, word)
            try:
                new = stored.own_word(made) if word.judgement_id else stored.somebodys_word(made)
            except DataError as error:
                problems.append(f"\n  {error}")
                continue
            if new is None:
                said.known += 1
            else:
                said.new.append(new)
    if problems:
        more = f"\n  and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise DataError(
            f"{source}: {len(problems)} judgements contradict others of the same person on the same item; nothing was stored. Take the "
            f"rows out, or import them into a database of their own{''.join(problems[:_MOST_TOLD])}{more}"
        )
    return said


_Place = tuple[str, str]  # item, name of the annotator


@dataclass
class _Stored:
    """``words``: the live judgement of an annotator on an item, also of this import; ``withdrawn``: what was taken back; ``used``: places
    that a word of this import has."""

    words: dict[_Place, Judgement]
    withdrawn: set[tuple[Any, ...]]
    by_id: dict[str, tuple[str, Judgement]]
    used: set[_Place] = field(default_factory=set)

    @classmethod
    def of(cls, connection: Connection, rows: Sequence[PlacedRow]) -> _Stored:
        names: dict[str, str] = {row.annotator_id: row.name for row in connection.execute(sa.select(schema.annotators))}
        table = schema.judgements
        stored = cls({}, set(), {})
        ids = {word.judgement_id for row in rows for word in row.row.words if word.judgement_id}
        for column, values in ((table.c.item_id, {row.item.item_id for row in rows}), (table.c.judgement_id, ids)):
            for found in _rows(connection, column, values):
                name = names[found.annotator]
                stored.by_id[found.judgement_id] = (name, found)
                if found.withdrawn_at is None:
                    stored.words[found.item_id, name] = found
                else:
                    stored.withdrawn.add((found.item_id, name, *_content(found)))
        return stored

    def somebodys_word(self, made: Judgement) -> Judgement | None:
        """The word in the first name of the row "import", "import (2)", ... that is free; None where one of them has said it already."""
        crowd = made.annotator
        for number in count(1):
            name = crowd if number == 1 else f"{crowd} ({number})"
            place = (made.item_id, name)
            if place in self.used:
                continue
            there = self.words.get(place)
            if there is None and (*place, *_content(made)) not in self.withdrawn:
                break
            if there is None or _content(there) == _content(made):
                self.used.add(place)
                return None
        new = replace(made, annotator=name, judgement_id=_id_of(made, name))
        self.used.add(place)
        self.words[place] = new
        return new

    def own_word(self, made: Judgement) -> Judgement | None:
        """The word, None where it is stored. Raises DataError where the person has said otherwise."""
        place = (made.item_id, made.annotator)
        name, same_id = self.by_id.get(made.judgement_id, ("", None))
        if same_id is not None and (same_id.item_id, name) == place:
            self._refuse_another(same_id, made)
            return None
        if (there := self.words.get(place)) is not None:
            self._refuse_another(there, made)
            return None
        new = made if same_id is None else replace(made, judgement_id=_id_of(made, made.annotator))  # the id is another database's too
        self.words[place] = new
        self.by_id[new.judgement_id] = (made.annotator, new)
        return new

    def _refuse_another(self, there: Judgement, made: Judgement) -> None:
        if _content(there) != _content(made):
            raise DataError(
                f"{made.annotator} says {_told(made)} of the item {made.item_id}, and has said {_told(there)} (judgement "
                f"{there.judgement_id!r})"
            )


def _rows(connection: Connection, column: Any, values: Iterable[str]) -> Iterator[Judgement]:
    for chunk in chunks(sorted(values)):
        query = sa.select(schema.judgements).where(column.in_(chunk)).order_by(schema.judgements.c.number)
        yield from map(judgement_of, connection.execute(query))


def _content(judgement: Judgement) -> tuple[Any, ...]:
    """What was said, without when and how it was shown."""
    ranking = tuple(tuple(sorted(tier)) for tier in judgement.ranking)
    return judgement.choice, judgement.strength, ranking, judgement.reason, judgement.comment


def _told(judgement: Judgement) -> str:
    strength = f" ({judgement.strength.value})" if judgement.strength else ""
    return f"{judgement.choice.value}{strength}{', with a remark' if judgement.reason or judgement.comment else ''}"


def _judgement(row: PlacedRow, word: Word) -> Judgement:
    tiers = tuple(tuple(row.names[at] for at in tier) for tier in word.tiers)
    choice = Choice.BOTH_BAD if word.both_bad else _choice(row.item, tiers)
    return Judgement(
        judgement_id=word.judgement_id,
        item_id=row.item.item_id,
        annotator=word.annotator,
        choice=choice,
        shown=tuple(row.names[at] for at in word.shown) or row.item.answers,
        strength=word.strength if choice in (Choice.FIRST, Choice.SECOND) else None,
        ranking=tiers if choice is Choice.RANKED else (),
        reason=word.reason,
        comment=word.comment,
        seconds=word.seconds,
        made_at=word.made_at,
    )


def _choice(item: Item, tiers: Sequence[Sequence[str]]) -> Choice:
    if not tiers:
        return Choice.SKIP
    if len(item.answers) > 2:
        return Choice.RANKED
    best, *others = tiers
    if not others:
        return Choice.TIE
    return Choice.SECOND if item.answers.index(best[0]) else Choice.FIRST


def _id_of(made: Judgement, name: str) -> str:
    said = (made.item_id, name, made.choice.value, repr(made.ranking), str(made.strength), made.reason, made.comment)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:24]
