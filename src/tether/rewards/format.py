"""Form of an answer: a pattern, a required ending, little repetition. 1 when every stated requirement holds,
else 0.

An empty answer fails always. ``pattern`` must match the whole answer (dot matches newlines), so that a right
beginning does not excuse rambling on. ``ending = "sentence"`` asks for . ! or ? (closing quotes allowed), any
other ``ending`` for those very characters; an answer cut by the token budget has no ending.
``max_repeat_share`` bounds the share of repeated word trigrams.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tether.rewards.words import repeated_share, split_words
from tether.types import Rollout, Score

__all__ = ["FormatPart"]

_MAX_CHARS = 20_000
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]*]*$")


@dataclass(frozen=True, slots=True)
class FormatPart:
    """1 if all requirements that are set hold, else 0; every requirement is also reported alone."""

    pattern: str | None = None
    ending: str | None = None
    max_repeat_share: float | None = None
    name: str = "format"

    def __post_init__(self) -> None:
        if self.pattern is None and self.ending is None and self.max_repeat_share is None:
            raise ValueError("set at least one of pattern, ending, max_repeat_share")
        if self.ending is not None and not self.ending.strip():
            raise ValueError("ending must not be blank")
        if self.max_repeat_share is not None and not 0 <= self.max_repeat_share < 1:
            raise ValueError(f"max_repeat_share must be in [0, 1), got {self.max_repeat_share}")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern is not a regular expression: {error}") from error

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        return [self._score_one(rollout) for rollout in rollouts]

    def _score_one(self, rollout: Rollout) -> Score:
        text = rollout.text.strip()
        readable = 0 < len(text) <= _MAX_CHARS
        parts: dict[str, float] = {}
        if self.pattern is not None:
            parts["pattern"] = float(readable and re.fullmatch(self.pattern, text, re.DOTALL) is not None)
        if self.ending is not None:
            parts["ending"] = float(readable and not rollout.truncated and self._ends(text))
        if self.max_repeat_share is not None:
            parts["fresh"] = float(readable and repeated_share(split_words(text)) <= self.max_repeat_share)
        return Score(float(all(parts.values())), parts)

    def _ends(self, text: str) -> bool:
        if self.ending == "sentence":
            return _SENTENCE_END.search(text[-40:]) is not None
        return self.ending is not None and text.endswith(self.ending.strip())
