"""How judgements are collected: set when the database is made, kept in it as JSON; some of it may change later."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from tether.errors import ConfigError

__all__ = ["CHANGEABLE", "CHOOSING", "Settings", "Strategy"]

CHANGEABLE = (
    "question", "guidelines", "strengths", "comments", "gold_share", "break_after_minutes", "reservation_minutes", "overlap",
    "judgements_per_overlap_item",
)  # fmt: skip
"""What the owner may change later. It acts on what comes after: on the next items shown, and ``overlap`` on items that are added from then
on. The others decide which side an answer stands on, which prompts are held out and which items no strategy touches: a change would mix two
designs in one collection.
"""


class Strategy(StrEnum):
    """Which item comes next, apart from the reserved random share (``tether.collect.select``)."""

    RANDOM = "random"  # every item alike
    UNCERTAINTY = "uncertainty"  # where the newest scores give a preference probability nearest 1/2
    DISAGREEMENT = "disagreement"  # where several scorers' preference probabilities differ most


CHOOSING = frozenset({Strategy.UNCERTAINTY, Strategy.DISAGREEMENT})
"""Strategies that pick hard items; all others serve in random order."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one collection.

    ``guidelines``: markdown of the owner. ``strengths``: ask how much better. ``overlap``: share of the items that are judged by
    ``judgements_per_overlap_item`` annotators, the others by one. ``gold_share``: share of an annotator's turns that are test questions.
    ``random_share``: share of the items that is set apart at import, uniformly at random, and served in random order whatever ``strategy``
    says. ``stratified``: the strategy's items go round the prompts. ``held_out_share``: of the prompts, split by a hash of their text.
    ``reservation_minutes``: how long an item that was shown waits for its judgement before another annotator may get it.

    Raises ConfigError with all problems. Example: ``Settings(overlap=0.3, judgements_per_overlap_item=3, seed=7)``.
    """

    question: str = "Which answer is better?"
    guidelines: str = ""
    strengths: bool = True
    comments: bool = True
    overlap: float = 0.2
    judgements_per_overlap_item: int = 2
    gold_share: float = 0.05
    strategy: Strategy = Strategy.RANDOM
    random_share: float = 0.2
    stratified: bool = False
    break_after_minutes: int | None = 30
    seed: int = 0
    held_out_share: float = 0.1
    reservation_minutes: int = 30

    def __post_init__(self) -> None:
        problems = [*self._texts(), *self._shares(), *self._numbers()]
        if self.strategy not in tuple(Strategy):
            problems.append(f"strategy is {self.strategy!r}: expected one of {', '.join(Strategy)}")
        if problems:
            raise ConfigError(problems, "the settings of the collection")
        object.__setattr__(self, "strategy", Strategy(self.strategy))

    def _texts(self) -> list[str]:
        problems = [f"{name} must be text, got {getattr(self, name)!r}" for name in ("question", "guidelines") if not _is(self, name, str)]
        if not problems and not self.question.strip():
            problems.append("question is empty: say what annotators are asked")
        return problems + [
            f"{name} must be true or false, got {getattr(self, name)!r}"
            for name in ("strengths", "comments", "stratified")
            if not _is(self, name, bool)
        ]

    def _shares(self) -> list[str]:
        problems = []
        for name, below_one in (("overlap", False), ("gold_share", True), ("random_share", False), ("held_out_share", True)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not 0 <= value <= 1 or (below_one and value == 1):
                problems.append(f"{name} must be a share from 0 to 1{' (1 left out)' if below_one else ''}, got {value!r}")
        return problems

    def _numbers(self) -> list[str]:
        least = {"judgements_per_overlap_item": 2, "seed": 0, "reservation_minutes": 1, "break_after_minutes": 1}
        problems = []
        for name, low in least.items():
            value = getattr(self, name)
            if name == "break_after_minutes" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**63:
                problems.append(f"{name} must be a whole number from {low}, got {value!r}")
        return problems

    def as_json(self) -> str:
        """The settings as one JSON object, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What ``as_json`` wrote."""
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """From named values; names that are unknown are refused. Raises ConfigError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            problem = f"unknown settings: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            raise ConfigError(problem, "the settings of the collection")
        return cls(**values)


def _is(settings: Settings, name: str, kind: type) -> bool:
    return isinstance(getattr(settings, name), kind)
