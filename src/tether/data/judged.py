"""What a direct preference loss reads: two rows of tokens per unit, whether the unit is a pair or a single judged answer.

A pair is (chosen, rejected). A judged answer (KTO) is (the answer, a mismatched answer): the second row holds the same prompt with the
answer to another prompt, and serves the reference point alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tether.data.cursor import epoch_order
from tether.data.lengths import LengthReport, TokenizedPair, comparison_pairs, limit_examples, limit_pairs, tokenise
from tether.errors import DataError
from tether.records.texts import prompt_key
from tether.text.chat import ChatFormat, TokenizedExample
from tether.types import Comparison, Feedback

__all__ = ["JudgedUnits", "judged_answers", "judged_pairs", "mismatched", "with_mismatched"]


@dataclass(frozen=True, slots=True)
class JudgedUnits:
    """N units. ``keys`` name the prompts; ``liked`` is None for pairs, else one label per unit. ``second`` may be empty, or has N rows."""

    first: tuple[TokenizedExample, ...]
    second: tuple[TokenizedExample, ...]
    keys: tuple[str, ...]
    liked: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.first)

    def take(self, indices: Sequence[int]) -> JudgedUnits:
        """Those units in that order."""
        liked = None if self.liked is None else tuple(self.liked[i] for i in indices)
        return JudgedUnits(
            tuple(self.first[i] for i in indices),
            tuple(self.second[i] for i in indices) if self.second else (),
            tuple(self.keys[i] for i in indices),
            liked,
        )


def judged_pairs(
    comparisons: Sequence[Comparison], format: ChatFormat, max_length: int, source: str
) -> tuple[JudgedUnits, LengthReport]:
    """Comparisons as pairs within the length limit."""
    limited = limit_pairs(comparison_pairs(comparisons, format, source), max_length, source)
    keys = tuple(prompt_key(comparisons[index].prompt) for index in limited.kept)
    return _units(limited.pairs, keys), limited.report


def _units(pairs: Sequence[TokenizedPair], keys: tuple[str, ...]) -> JudgedUnits:
    return JudgedUnits(tuple(p.chosen for p in pairs), tuple(p.rejected for p in pairs), keys)


def judged_answers(
    feedback: Sequence[Feedback], format: ChatFormat, max_length: int, source: str
) -> tuple[JudgedUnits, LengthReport]:
    """Judged answers within the length limit; their second rows are still missing (``with_mismatched``)."""
    examples = tokenise(feedback, lambda one: format.example(one.prompt, one.completion), source)
    limited = limit_examples(examples, max_length, source)
    kept = [feedback[index] for index in limited.kept]
    keys, liked = tuple(prompt_key(one.prompt) for one in kept), tuple(one.liked for one in kept)
    return JudgedUnits(limited.examples, (), keys, liked), limited.report


def with_mismatched(units: JudgedUnits, max_length: int, source: str, seed: int) -> JudgedUnits:
    """The same answers, each with an answer to another prompt. Raises DataError where all answers are to one prompt."""
    partners = _partners(units.keys, source, seed)
    second = tuple(mismatched(units.first[i], units.first[j], max_length) for i, j in enumerate(partners))
    return replace(units, second=second)


def _partners(keys: Sequence[str], source: str, seed: int) -> list[int]:
    """For every row the next one, in an order drawn from the seed, that answers another prompt. Fixed for the whole training, so that the
    start reads each mismatched row once."""
    if len(set(keys)) < 2:
        raise DataError(
            f"{source}: all answers are to one prompt, and kto takes its reference point from answers to other prompts; "
            "add prompts, or change held_out_share (0 holds none out)"
        )
    order = epoch_order(len(keys), seed, 0).tolist()
    partners = [0] * len(keys)
    following = next(row for row in order if keys[row] != keys[order[-1]])
    for place in range(len(order) - 1, -1, -1):
        row, after = order[place], order[(place + 1) % len(order)]
        following = after if keys[after] != keys[row] else following
        partners[row] = following
    return partners


def mismatched(asked: TokenizedExample, answered: TokenizedExample, max_length: int) -> TokenizedExample:
    """The prompt of one row with the answer of the other, cut on the right.

    Example: prompt (5, 6) answer (7,), prompt (8,) answer (9, 2) -> (5, 6, 9, 2), mask (F, F, T, T).
    """
    prompt = asked.token_ids[: asked.response_mask.index(True)]
    begins = answered.response_mask.index(True)
    ids = (*prompt, *answered.token_ids[begins:])[:max_length]
    mask = (*[False] * len(prompt), *answered.response_mask[begins:])[:max_length]
    return TokenizedExample(ids, mask)
