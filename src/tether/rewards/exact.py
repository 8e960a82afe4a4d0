r"""Equality of the stated answer with a column of the prompt: 1 or 0.

**Extraction rule.** The answer is what follows the marker (default ``Answer:``) up to the end of its line,
without surrounding blanks, ``*``, ``$``, backquotes and a final full stop. With marker ``\boxed`` it is what
the balanced braces hold. Then

* every marker in the text must state the same value: ``Answer: 12 Answer: 13`` is unreadable (0);
* with ``place = "last"`` (default) nothing but the answer may stand on its line and no text may follow:
  rambling on gives 0; with ``place = "anywhere"`` later lines are ignored unless they hold a marker;
* an answer that the token budget cut is unfinished: ``Answer: 12`` may have been on its way to 123 (0).

**Comparison.** ``compare = "number"``: ASCII digits with optional sign, grouped thousands, decimals, ``a/b``
or ``\frac{a}{b}``, at most 30 digits, as exact fractions; lists, units, NaN, powers and other scripts' digits
are unreadable (0). ``compare = "text"``: equality after Unicode NFKC, case folding and single blanks. A
prompt without a readable ``column`` is a fault of the data: a Failure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tether.types import Failure, Prompt, Rollout, Score

__all__ = ["ExactPart", "extract_answer", "parse_number", "same_text"]

_MAX_CHARS = 20_000  # the end of a longer answer is not read: it is unreadable as a whole
_DIGITS = r"(?:[0-9]{1,30}|[0-9]{1,3}(?:,[0-9]{3}){1,9})"
_NUMBER = re.compile(rf"(?P<sign>[+-]?)(?P<whole>{_DIGITS})?(?:\.(?P<decimals>[0-9]{{1,30}}))?")
_QUOTIENT = re.compile(rf"(?P<top>[+-]?{_DIGITS})\s*/\s*(?P<bottom>{_DIGITS})")
_FRAC = re.compile(rf"(?P<sign>[+-]?)\\d?frac\{{(?P<top>[+-]?{_DIGITS})\}}\{{(?P<bottom>{_DIGITS})\}}")
_WRAPPING = " \t\r*$`_"


@dataclass(frozen=True, slots=True)
class ExactPart:
    """1 if the answer stated after ``marker`` equals ``column`` of the prompt, else 0. See the module for the
    rule.
    """

    column: str = "answer"
    marker: str = "Answer:"
    compare: Literal["number", "text"] = "number"
    place: Literal["last", "anywhere"] = "last"
    name: str = "exact"

    def __post_init__(self) -> None:
        if not self.marker.strip():
            raise ValueError("marker must not be blank")
        if self.compare not in ("number", "text"):
            raise ValueError(f"compare must be 'number' or 'text', got {self.compare!r}")
        if self.place not in ("last", "anywhere"):
            raise ValueError(f"place must be 'last' or 'anywhere', got {self.place!r}")

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        return [self._score_one(rollout) for rollout in rollouts]

    def _score_one(self, rollout: Rollout) -> Score | Failure:
        gold = self.gold(rollout.prompt)
        if isinstance(gold, Failure):
            return gold
        stated = extract_answer(rollout.text, self.marker, self.place, cut=rollout.truncated)
        readable = stated is not None and (self.compare == "text" or parse_number(stated) is not None)
        right = stated is not None and self._equal(stated, gold)
        return Score(1.0 if right else 0.0, {"readable": float(readable)})

    def stated(self, rollout: Rollout) -> Fraction | str | None:
        """What the rollout states, in a form in which equal answers are equal; None where it states nothing readable."""
        stated = extract_answer(rollout.text, self.marker, self.place, cut=rollout.truncated)
        if stated is None:
            return None
        return _plain(stated) if self.compare == "text" else parse_number(stated)

    def gold(self, prompt: Prompt) -> str | Failure:
        """The right answer of a prompt, or why its row holds none."""
        if prompt.columns.get(self.column) is None:
            return Failure(self.name, f"`{self.column}` is {'null' if self.column in prompt.columns else 'missing'}")
        value = prompt.columns[self.column]
        known = isinstance(value, str | int | float) and not isinstance(value, bool)
        gold = str(value).strip() if known else ""
        if not gold or (self.compare == "number" and parse_number(gold) is None):
            return Failure(self.name, f"`{self.column}` holds no readable {self.compare}: {value!r:.80}")
        return gold

    def _equal(self, stated: str, gold: str) -> bool:
        if self.compare == "text":
            return same_text(stated, gold)
        number = parse_number(stated)
        return number is not None and number == parse_number(gold)


def extract_answer(
    text: str, marker: str, place: Literal["last", "anywhere"] = "last", *, cut: bool = False
) -> str | None:
    """The one answer that ``text`` states, or None if it states none, several, or (``place = "last"``) goes
    on afterwards.

    >>> extract_answer("7 + 5 = 12. Answer: 12.", "Answer:")
    '12'
    >>> extract_answer("Answer: 12 Answer: 13", "Answer:") is None
    True
    """
    text = text.rstrip()
    if len(text) > _MAX_CHARS:
        return None
    pieces = _boxed_pieces(text) if marker.strip() in ("\\boxed", "boxed") else _marked_pieces(text, marker)
    if cut:
        pieces = [(answer, after) for answer, after in pieces if after]  # the last line is unfinished
    if not pieces or (place == "last" and (cut or pieces[-1][1].strip(_WRAPPING + ".\n"))):
        return None
    answers = {answer for answer, _ in pieces}
    return answers.pop() or None if len(answers) == 1 else None


def parse_number(text: str) -> Fraction | None:
    r"""An exact value, or None when the text is not one plain number. "1,234.50", "-3/4" and "\frac{1}{3}"
    are; "1e9", "nan", "１２" are not.
    """
    text = text.strip()
    if match := _FRAC.fullmatch(text) or _QUOTIENT.fullmatch(text):
        bottom = _whole(match["bottom"])
        sign = -1 if match.groupdict().get("sign") == "-" else 1
        return Fraction(sign * _whole(match["top"]), bottom) if bottom else None
    match = _NUMBER.fullmatch(text)
    if not match or (match["whole"] is None and match["decimals"] is None):
        return None
    decimals = match["decimals"] or ""
    size = Fraction(_whole(match["whole"] or "0")) + Fraction(int(decimals or "0"), 10 ** len(decimals))
    return -size if match["sign"] == "-" else size


def same_text(one: str, other: str) -> bool:
    """Equal after NFKC, case folding, single blanks, and without a final full stop."""
    return _plain(one) == _plain(other)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".").rstrip()


def _whole(digits: str) -> int:
    return int(digits.replace(",", ""))


def _marked_pieces(text: str, marker: str) -> list[tuple[str, str]]:
    """(answer, all text after its line) for every marker; a marker inside another's line ends the first one's
    answer.
    """
    spans = [match.span() for match in re.finditer(re.escape(marker.strip()), text, re.IGNORECASE)]
    pieces = []
    for index, (_, start) in enumerate(spans):
        stop = spans[index + 1][0] if index + 1 < len(spans) else len(text)
        answer, newline, after = text[start:stop].partition("\n")
        pieces.append((_bare(answer), newline + after if newline else ""))
    return pieces


def _boxed_pieces(text: str) -> list[tuple[str, str]]:
    """(content, all text after) for every balanced \\boxed{...}; one that never closes counts as an
    unreadable answer.
    """
    pieces = []
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth, stop = 1, match.end()
        while stop < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[stop], 0)
            stop += 1
        pieces.append((_bare(text[match.end() : stop - 1]) if depth == 0 else "", text[stop:]))
    return pieces


def _bare(answer: str) -> str:
    return answer.strip(_WRAPPING).removesuffix(".").strip(_WRAPPING)
