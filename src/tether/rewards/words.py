"""Words as the rules of this folder see them: English, lower case, no library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil

__all__ = ["content_words", "count_words", "repeated_share", "split_words", "stem"]

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_LONGEST_WORD = (
    20  # letters; a longer run of letters counts as several words, so that text without spaces is not "short"
)

_STOP_TEXT = """
a about after all also am an and any are as at back be because been before being best both but by can come
could describe did difference do does doing done each else even every explain few for from get give go
good had has have he her here hers him his home how i if in into is it its just know like made make many
may me mean might mine more most much must my myself name need no nor not of off on once one ones only or
other our out over own plain please put said same say sentence she should show so some someone something
such suggest take tell than that the their them then there these they thing things this those three
through tip tips to too two under until up us use used uses using very want was way ways we well were what
when where which while who whom whose why will with word words would you your yours
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())


def split_words(text: str) -> list[str]:
    """Words in order, lower case: runs of letters and digits, joined by an inner apostrophe or hyphen."""
    return _WORD.findall(text.casefold())


def count_words(words: Sequence[str]) -> int:
    """Number of words, where one of more than 20 letters counts once per 20 begun."""
    return sum(ceil(len(word) / _LONGEST_WORD) for word in words)


def stem(word: str) -> str:
    """A crude stem: "boiling", "boils" and "boil" become one word. Good enough to compare a question with its
    answer.
    """
    word = word.split("'")[0].split("’")[0]
    for ending in ("ings", "ing", "ies", "ied", "es", "ed", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def content_words(words: Sequence[str]) -> set[str]:
    """Stems of the words that carry a topic: three letters or more and not on the stop list."""
    return {stem(word) for word in words if len(word) >= 3 and word not in _STOP_WORDS}


def repeated_share(words: Sequence[str], n: int = 3) -> float:
    """1 - unique / total n-grams; 0 when there are fewer than n words. Example: "a b a b a b" has 2 of 4
    trigrams unique: 0.5.
    """
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
