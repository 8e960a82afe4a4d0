"""Items and judgements as the page knows them. Blind: ids of the database, which may name a model, never leave the server; neither does
which answer is stored first.

An id on the wire is a hash of the id in the database (of an answer: together with the annotator and the item), the same after a restart,
so that a judgement that waited in a browser still finds its item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tether.collect.entries import Shown
from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.web.body import BadBody, number, text, text_list, text_tiers

__all__ = ["FIELDS", "Desk", "handle"]

FIELDS = ("judgement_id", "item", "shown", "choice", "strength", "ranking", "reason", "comment", "seconds")
"""What the page sends of a judgement."""

_LONGEST_TEXT = 4000
_SIDES = {"left": 0, "right": 1}
_DAY_S = 86_400.0


class _Items(Protocol):
    def items(self) -> Iterable[Item]:
        """All of them."""
        ...


@dataclass
class Desk:
    """Between the store and the page. State: the items that were met, by their id on the wire, and whether all were read once."""

    store: _Items
    _met: dict[str, Item] = field(default_factory=dict)
    _read: bool = False

    def show(self, annotator: str, shown: Shown | None) -> dict[str, Any] | None:
        """The item for the page, None where there is none."""
        if shown is None:
            return None
        self._met[_item_handle(shown.item)] = shown.item
        turns = [("user", shown.prompt)] if isinstance(shown.prompt, str) else [(turn.role, turn.content) for turn in shown.prompt]
        return {
            "item": _item_handle(shown.item),
            "prompt": [{"role": role, "text": content} for role, content in turns],
            "answers": list(shown.answers),
            "shown": [handle("answer", annotator, shown.item.item_id, answer) for answer in shown.shown],
        }

    def judgement(self, annotator: str, fields: Mapping[str, Any]) -> Judgement:
        """What the page sent, in terms of the database. Raises BadBody."""
        item = self._item(text(fields, "item", 100))
        names = {handle("answer", annotator, item.item_id, answer): answer for answer in item.answers}
        shown = _known(text_list(fields["shown"], "shown"), names)
        choice = _choice(fields["choice"], item, shown)
        found = Judgement(
            judgement_id=_identifier(text(fields, "judgement_id", 64)),
            item_id=item.item_id,
            annotator=annotator,
            choice=choice,
            shown=shown,
            strength=_strength(fields["strength"]),
            ranking=tuple(_known(tier, names) for tier in text_tiers(fields["ranking"], "ranking")),
            reason=text(fields, "reason", _LONGEST_TEXT),
            comment=text(fields, "comment", _LONGEST_TEXT),
            seconds=number(fields, "seconds", _DAY_S),
        )
        return found

    def _item(self, handle: str) -> Item:
        if handle not in self._met and not self._read:  # shown by an earlier start of the server, and so there when this one began
            self._met.update({_item_handle(item): item for item in self.store.items()})
            self._read = True
        if handle not in self._met:
            raise BadBody(422, "item: there is none of this id")
        return self._met[handle]


def handle(*parts: str) -> str:
    """An id on the wire: a hash of what it stands for."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _item_handle(item: Item) -> str:
    return handle("item", item.item_id)


def _identifier(found: str) -> str:
    """A random id: a short or a chosen one could be another's."""
    if len(found) != 32 or not set(found) <= set("0123456789abcdef"):
        raise BadBody(422, "judgement_id: expected 32 hexadecimal digits")
    return found


def _known(handles: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    found = [names.get(handle) for handle in handles]
    if None in found:
        raise BadBody(422, "an answer is named that the item does not have")
    return tuple(name for name in found if name is not None)


def _choice(found: Any, item: Item, shown: tuple[str, ...]) -> Choice:
    """A side becomes the answer that stood there."""
    if isinstance(found, str) and found in _SIDES and len(shown) == 2:
        return Choice.FIRST if shown[_SIDES[found]] == item.answers[0] else Choice.SECOND
    if found in ("tie", "both_bad", "skip", "ranked"):
        return Choice(found)
    raise BadBody(422, "choice: expected left or right (of two answers), tie, both_bad, skip or ranked")


def _strength(found: Any) -> Strength | None:
    if found is None:
        return None
    if found not in ("slight", "much"):
        raise BadBody(422, "strength: expected slight, much or null")
    return Strength(found)
