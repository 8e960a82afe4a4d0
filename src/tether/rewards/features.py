"""Named numbers of an answer that a reader can check by eye: what a linear reward model weighs and an audit looks at.

Counts are of the text alone, English where words matter. A feature of a user's own is data, never code: a list of words, a regular
expression, or a pair of columns of the judged rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tether.errors import ConfigError, DataError
from tether.rewards.words import count_words, repeated_share, split_words

__all__ = ["BUILT_IN", "MARKUP", "Feature", "answer_text", "feature_from", "measure"]

_BULLET = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")
_HEDGE_TEXT = """
maybe perhaps possibly probably might may could seems seem appears appear somewhat rather likely unlikely generally usually often
sometimes arguably roughly apparently presumably
"""
_HEDGES = frozenset(_HEDGE_TEXT.split())
_MAX_PATTERN = 500


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def _share(words: Sequence[str], wanted: frozenset[str]) -> float:
    return sum(word in wanted for word in words) / len(words) if words else 0.0


BUILT_IN: Mapping[str, Callable[[str], float]] = {
    "length": lambda text: float(count_words(split_words(text))),
    "log_length": lambda text: math.log1p(count_words(split_words(text))),
    "bullet_share": lambda text: len(_BULLET.findall(text)) / max(_lines(text), 1),
    "list_markers": lambda text: float(len(_BULLET.findall(text))),
    "headings": lambda text: float(len(_HEADING.findall(text))),
    "code_fences": lambda text: float(len(_FENCE.findall(text))),
    "bold": lambda text: float(len(_BOLD.findall(text))),
    "exclamation_marks": lambda text: float(text.count("!")),
    "question_marks": lambda text: float(text.count("?")),
    "type_token_ratio": lambda text: len(set(words)) / len(words) if (words := split_words(text)) else 0.0,
    "repeated_trigrams": lambda text: repeated_share(split_words(text)),
    "hedges": lambda text: _share(split_words(text), _HEDGES),
}
"""Features by name: words and their logarithm; lines that are list items (share, number); markdown; marks; variety; hedging words."""
MARKUP = ("list_markers", "headings", "code_fences", "bold", "exclamation_marks")
"""Form rather than content."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: built in, or by ``words`` (their share), ``pattern`` (matches) or ``column`` (chosen_COLUMN and rejected_COLUMN)."""

    name: str
    words: tuple[str, ...] = ()
    pattern: str = ""
    column: str = ""

    @property
    def of_text(self) -> bool:
        """Whether the text of an answer is enough to measure it."""
        return not self.column

    def of(self, text: str) -> float:
        """Its value for an answer. Raises DataError for a feature of columns, which a text does not have."""
        if self.column:
            raise DataError(f"feature {self.name!r} is read from columns of judged rows, chosen_{self.column} and rejected_{self.column}")
        if self.words:
            return _share(split_words(text), frozenset(word.casefold() for word in self.words))
        return float(len(re.findall(self.pattern, text, re.MULTILINE))) if self.pattern else BUILT_IN[self.name](text)

    def as_dict(self) -> dict[str, Any]:
        """What ``feature_from`` reads."""
        own = {"words": list(self.words), "pattern": self.pattern, "column": self.column}
        return {"name": self.name, **{key: value for key, value in own.items() if value}}


def feature_from(told: str | Mapping[str, Any]) -> Feature:
    """A feature by the name of a built-in one, or from {"name": ..., and one of "words", "pattern", "column"}. Raises ConfigError."""
    if isinstance(told, str):
        told = {"name": told}
    own = [key for key in told if key in ("words", "pattern", "column")]
    unknown = sorted(told.keys() - {"name", "words", "pattern", "column"})
    name = told.get("name")
    if unknown or not isinstance(name, str) or not name or len(own) > 1:
        raise ConfigError(f"feature {dict(told)!r:.100}: expected a name and at most one of words, pattern, column")
    if not own:
        if name not in BUILT_IN:
            raise ConfigError(f"feature {name!r}: no such feature; known: {', '.join(BUILT_IN)}; or give words, pattern or column")
        return Feature(name)
    value = told[own[0]]
    if own == ["words"]:
        if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) and word for word in value):
            raise ConfigError(f"feature {name!r}: words must be a list of words, got {value!r:.60}")
        return Feature(name, words=tuple(value))
    if not isinstance(value, str) or not value or len(value) > _MAX_PATTERN:
        raise ConfigError(f"feature {name!r}: {own[0]} must be text of 1 to {_MAX_PATTERN} characters, got {value!r:.60}")
    if own == ["column"]:
        return Feature(name, column=value)
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(f"feature {name!r}: the pattern {value!r:.60} is no regular expression: {error}") from error
    return Feature(name, pattern=value)


def answer_text(answer: Any) -> str:
    """The assistant's words of an answer that is text or turns."""
    return answer if isinstance(answer, str) else "\n".join(turn.content for turn in answer if turn.role == "assistant")


def measure(features: Sequence[Feature], text: str) -> list[float]:
    """Every feature of an answer, in order."""
    return [feature.of(text) for feature in features]
