"""What a person said about the answers to one prompt: frozen, free of the database and of the page.

An item is two or more answers to one prompt, in a fixed order that no annotator sees: ``answers[0]`` is called *first*, ``answers[1]``
*second*. Each judgement records the order in which the answers were shown (``shown``, left to right); the choice itself is stored in
terms of answers, never of sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tether.errors import DataError

__all__ = ["Choice", "Item", "Judgement", "Strength"]


class Choice(StrEnum):
    """What was said of an item."""

    FIRST = "first"  # answers[0] is better
    SECOND = "second"  # answers[1] is better
    TIE = "tie"  # equally good
    BOTH_BAD = "both_bad"  # equal, and neither should be given
    SKIP = "skip"  # no judgement; ``reason`` says why
    RANKED = "ranked"  # an item of three or more answers: ``ranking`` holds the tiers


class Strength(StrEnum):
    """How much better; None where nobody was asked or the choice is no preference."""

    SLIGHT = "slight"
    MUCH = "much"


@dataclass(frozen=True, slots=True)
class Item:
    """Answers to one prompt that are compared. ``gold`` is the known choice of a test question, else None."""

    item_id: str
    prompt_id: str
    answers: tuple[str, ...]
    gold: Choice | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """One annotator's word on one item.

    ``judgement_id`` is made by the page, so that a request that is sent twice is stored once. ``shown``: answer ids from left to right (or
    top to bottom). ``ranking``: tiers of answer ids, the best first, for Choice.RANKED. ``seconds``: active time on the item (hidden tabs
    and breaks are not counted). ``made_at``: ISO 8601, UTC. ``withdrawn_at``: set by an undo; a withdrawn judgement is kept and counts
    nowhere.
    """

    judgement_id: str
    item_id: str
    annotator: str
    choice: Choice
    shown: tuple[str, ...]
    strength: Strength | None = None
    ranking: tuple[tuple[str, ...], ...] = ()
    reason: str = ""
    comment: str = ""
    seconds: float | None = None
    made_at: str = ""
    withdrawn_at: str | None = None

    def check(self, item: Item) -> None:
        """Raises DataError where it does not fit the item: other answers, a ranking that is no partition, a skip without a reason."""
        if self.item_id != item.item_id:
            raise DataError(f"judgement {self.judgement_id!r} is of item {self.item_id!r}, not of {item.item_id!r}")
        if sorted(self.shown) != sorted(item.answers):
            raise DataError(f"judgement {self.judgement_id!r}: shown {list(self.shown)}, but the item has the answers {list(item.answers)}")
        if self.choice is Choice.RANKED:
            placed = [answer for tier in self.ranking for answer in tier]
            if sorted(placed) != sorted(item.answers) or not all(self.ranking):
                raise DataError(f"judgement {self.judgement_id!r}: the ranking must place each answer of the item once, got {self.ranking}")
        elif self.ranking:
            raise DataError(f"judgement {self.judgement_id!r}: a ranking belongs to the choice 'ranked', not to {self.choice.value!r}")
        elif self.choice is not Choice.SKIP and len(item.answers) != 2:
            raise DataError(f"judgement {self.judgement_id!r}: an item of {len(item.answers)} answers is ranked or skipped")
        if self.choice is Choice.SKIP and not self.reason.strip():
            raise DataError(f"judgement {self.judgement_id!r}: a skip needs its reason")
        if self.strength is not None and self.choice not in {Choice.FIRST, Choice.SECOND}:
            raise DataError(f"judgement {self.judgement_id!r}: a strength belongs to a preference, not to {self.choice.value!r}")
