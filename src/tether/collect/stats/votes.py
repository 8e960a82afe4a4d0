"""Judgements as columns of numbers: what every statistic here is computed from. Read once, in one pass over the records.

A *unit* is a pair of answers to one prompt, whatever item showed it, with its two answers in the order of their ids. That order means
nothing, and ids may tell quality ("good1" after "bad1"): no statistic may change when it is turned round. A two-answer item is
one unit; a ranking of k answers is taken apart into its k (k - 1) / 2 pairs. ``outcome`` is +1 where the unit's first answer was preferred,
-1 the second, 0 for a tie and for "both bad".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import log, nan

import numpy as np
from numpy.typing import NDArray

from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.errors import DataError

__all__ = ["Votes", "read_votes"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_GOLD_KINDS = {Choice.FIRST, Choice.SECOND, Choice.TIE, Choice.BOTH_BAD}
_CHOICES = {choice: index for index, choice in enumerate(Choice)}


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """Two tables. Judgements (one row each, withdrawn ones left out): ``choice`` (index in Choice), ``by``, ``on_prompt``, ``on_gold``,
    ``seconds`` (NaN: not measured), ``characters`` (of all answers of the item; NaN where a length is missing), ``gold_hit`` (1 right, 0
    wrong, NaN no gold or skipped), ``ids``. Votes on units (one row per pair of a judgement that is no skip):

    ``unit``, ``prompt``, ``annotator``  integers from 0
    ``outcome``       +1, 0, -1 (above); ``both_bad`` True where the 0 is "both bad"
    ``side``          +1 where the unit's first answer stood further left (or up), else -1
    ``length_ratio``  log of the length of the first over the second answer; NaN where a length is missing or 0
    ``strength``      1 much, 0 slight, -1 not asked
    ``ranked``        from a ranking: its pairs are not independent of each other
    ``random``        of an item that was drawn at random, so that it stands for all items (False: chosen by a strategy)
    ``gold``          of a test question: left out of all statistics but gold accuracy and speed
    ``occasion``      0 for the annotator's first judgement of the unit, 1, 2, ... for repeats
    ``judgement``     row in the table of judgements
    """

    annotators: tuple[str, ...]
    prompts: tuple[str, ...]
    ids: tuple[str, ...]
    skip_reasons: Mapping[str, int]
    num_withdrawn: int
    choice: Ints
    by: Ints
    on_prompt: Ints
    on_gold: NDArray[np.bool_]
    seconds: Floats
    characters: Floats
    gold_hit: Floats
    unit: Ints
    prompt: Ints
    annotator: Ints
    outcome: Ints
    both_bad: NDArray[np.bool_]
    side: Ints
    length_ratio: Floats
    strength: Ints
    ranked: NDArray[np.bool_]
    gold: NDArray[np.bool_]
    random: NDArray[np.bool_]
    occasion: Ints
    judgement: Ints
    unit_answers: tuple[tuple[str, str], ...]
    unit_prompt: Ints

    @property
    def num_units(self) -> int:
        """Pairs of answers that were judged at least once."""
        return len(self.unit_answers)

    def first_votes(self) -> NDArray[np.bool_]:
        """Rows that agreement is computed from: the annotator's first judgement of the unit, not of a test question."""
        return (self.occasion == 0) & ~self.gold


def read_votes(
    judgements: Iterable[Judgement], items: Iterable[Item], answers: Mapping[str, str | int], *, random_items: Collection[str] | None = None
) -> Votes:
    """``answers``: the text of each answer, or its length in characters. Answers without an entry have no length. ``random_items``: ids
    of the items that were drawn at random; None: all were.

    Repeats are counted in the order of ``made_at``, then of the sequence. Raises DataError for a judgement that does not fit its item,
    whose item is unknown, or whose id occurs twice.
    """
    reader = _Reader(items, answers, random_items)
    kept = [judgement for judgement in judgements if reader.counts(judgement)]
    for judgement in sorted(kept, key=lambda j: j.made_at):
        reader.add(judgement)
    return reader.votes()


class _Reader:
    """Collects rows. State: codes of names, and the rows so far."""

    def __init__(self, items: Iterable[Item], answers: Mapping[str, str | int], random_items: Collection[str] | None) -> None:
        self._items = {item.item_id: item for item in items}
        self._answers = answers
        self._random_items = None if random_items is None else frozenset(random_items)
        self._annotators: dict[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._units: dict[tuple[int, str, str], int] = {}
        self._unit_prompt: list[int] = []
        self._ratios: list[float] = []
        self._pairs: dict[str, list[tuple[int, str, str]]] = {}  # of an item: its units
        self._seen: set[str] = set()
        self._skips: dict[str, int] = {}
        self._withdrawn = 0
        self._ids: list[str] = []
        self._characters: dict[str, float] = {}  # of an item: its answers
        self._judged: list[tuple[int, int, int, bool, float, float, float, int, bool]] = []
        self._rows: list[tuple[int, int, int, int]] = []

    def counts(self, judgement: Judgement) -> bool:
        """False for a withdrawn judgement; checks the others."""
        if judgement.judgement_id in self._seen:
            raise DataError(f"judgement {judgement.judgement_id!r} occurs twice: each id is one judgement; remove the copy")
        self._seen.add(judgement.judgement_id)
        item = self._items.get(judgement.item_id)
        if item is None:
            raise DataError(f"judgement {judgement.judgement_id!r} is of item {judgement.item_id!r}, which is not among the items given")
        judgement.check(item)
        self._withdrawn += judgement.withdrawn_at is not None
        return judgement.withdrawn_at is None

    def add(self, judgement: Judgement) -> None:
        """One judgement: its own row, and a row for each of its pairs."""
        item = self._items[judgement.item_id]
        who = self._annotators.setdefault(judgement.annotator, len(self._annotators))
        choice, index = judgement.choice, len(self._judged)
        hit = float(choice is item.gold) if item.gold in _GOLD_KINDS and choice is not Choice.SKIP else nan
        seconds = nan if judgement.seconds is None else judgement.seconds
        strength = -1 if judgement.strength is None else int(judgement.strength is Strength.MUCH)
        drawn = self._random_items is None or item.item_id in self._random_items
        self._ids.append(judgement.judgement_id)
        prompt = self._prompts.setdefault(item.prompt_id, len(self._prompts))
        self._judged.append((_CHOICES[choice], who, prompt, item.gold is not None, seconds, self._length_of(item), hit, strength, drawn))
        if choice is Choice.SKIP:
            reason = judgement.reason.strip()
            self._skips[reason] = self._skips.get(reason, 0) + 1
            return
        place, shown = _places(judgement, item), judgement.shown
        for unit, first, second in self._pairs.get(item.item_id) or self._new_pairs(item):
            outcome = (place[first] < place[second]) - (place[first] > place[second])
            self._rows.append((unit, outcome, 1 if shown.index(first) < shown.index(second) else -1, index))

    def _new_pairs(self, item: Item) -> list[tuple[int, str, str]]:
        prompt = self._prompts[item.prompt_id]
        pairs = []
        for first, second in combinations(sorted(item.answers), 2):
            key = (prompt, first, second)
            if key not in self._units:
                self._units[key] = len(self._units)
                self._unit_prompt.append(prompt)
                self._ratios.append(self._log_ratio(first, second))
            pairs.append((self._units[key], first, second))
        self._pairs[item.item_id] = pairs
        return pairs

    def _length(self, answer: str) -> int:
        value = self._answers.get(answer, 0)
        return len(value) if isinstance(value, str) else value

    def _log_ratio(self, first: str, second: str) -> float:
        lengths = self._length(first), self._length(second)
        size = log(max(lengths) / min(lengths)) if min(lengths) > 0 else nan  # rounded alike whichever comes first
        return size if lengths[0] > lengths[1] else -size

    def _length_of(self, item: Item) -> float:
        if item.item_id not in self._characters:
            lengths = [self._length(answer) for answer in item.answers]
            self._characters[item.item_id] = float(sum(lengths)) if min(lengths) > 0 else nan
        return self._characters[item.item_id]

    def votes(self) -> Votes:
        """The columns."""
        ints, flags = np.int64, np.bool_
        choice, by, on_prompt, on_gold, seconds, characters, hit, strength, drawn = _columns(self._judged, 9)
        unit, outcome, side, row = _columns(self._rows, 4).astype(ints)
        choice, by, on_prompt, strength = (column.astype(ints) for column in (choice, by, on_prompt, strength))
        on_gold = on_gold.astype(flags)
        unit_prompt = np.asarray(self._unit_prompt, dtype=ints)
        ratio = np.asarray(self._ratios, dtype=np.float64)
        return Votes(
            annotators=tuple(self._annotators), prompts=tuple(self._prompts), ids=tuple(self._ids),
            skip_reasons=self._skips, num_withdrawn=self._withdrawn,
            choice=choice, by=by, on_prompt=on_prompt, on_gold=on_gold, seconds=seconds, characters=characters, gold_hit=hit,
            unit=unit, prompt=unit_prompt[unit], annotator=by[row], outcome=outcome, both_bad=choice[row] == _CHOICES[Choice.BOTH_BAD],
            side=side, length_ratio=ratio[unit], strength=strength[row], ranked=choice[row] == _CHOICES[Choice.RANKED],
            gold=on_gold[row], random=drawn[row].astype(flags), occasion=_occasions(by[row], unit), judgement=row,
            unit_answers=tuple((first, second) for _, first, second in self._units), unit_prompt=unit_prompt,
        )  # fmt: skip


def _occasions(who: Ints, unit: Ints) -> Ints:
    """How many earlier rows have the same annotator and unit."""
    if len(unit) == 0:
        return np.zeros(0, dtype=np.int64)
    key = who * (int(unit.max()) + 1) + unit
    order = np.argsort(key, kind="stable")
    first = np.r_[True, np.diff(key[order]) != 0]
    rank = np.arange(len(key)) - np.maximum.accumulate(np.where(first, np.arange(len(key)), 0))
    occasion = np.empty_like(rank)
    occasion[order] = rank
    return occasion


def _places(judgement: Judgement, item: Item) -> dict[str, int]:
    """The tier of each answer, 0 the best."""
    if judgement.choice is Choice.RANKED:
        return {answer: tier for tier, answers in enumerate(judgement.ranking) for answer in answers}
    first, second = item.answers
    return {first: int(judgement.choice is Choice.SECOND), second: int(judgement.choice is Choice.FIRST)}


def _columns(rows: list[tuple], num_columns: int) -> Floats:
    return np.asarray(rows, dtype=np.float64).reshape(-1, num_columns).T.copy()
