"""Length limits on prompts, examples and pairs. Whatever is dropped or cut is counted in a report, which the caller shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from tether.errors import DataError
from tether.records import refuse_bad_rows
from tether.text.chat import ChatFormat, TokenizedExample
from tether.types import Comparison, Demonstration

__all__ = [
    "LengthPolicy",
    "LengthReport",
    "LimitedExamples",
    "LimitedPairs",
    "LimitedPrompts",
    "TokenizedPair",
    "comparison_pairs",
    "demonstration_examples",
    "limit_examples",
    "limit_pairs",
    "limit_prompts",
    "tokenise",
]

T = TypeVar("T")
U = TypeVar("U")


class LengthPolicy(StrEnum):
    """What happens to a prompt above the limit: ERROR stops before training, FILTER drops it, LEFT keeps its
    last tokens.
    """

    ERROR = "error"
    FILTER = "filter"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class TokenizedPair:
    """Both sides of a comparison as token rows."""

    chosen: TokenizedExample
    rejected: TokenizedExample
    margin: float = 0.0
    label: float = 1.0


@dataclass(frozen=True, slots=True)
class LengthReport:
    """What a limit did to `num_rows` rows: kept whole or cut (`num_cut`), or dropped for one of three
    reasons.
    """

    limit: int
    num_rows: int
    num_cut: int = 0
    num_too_long: int = 0
    num_no_answer: int = 0  # the cut left no answer token
    num_identical: int = 0  # both sides of a pair are the same tokens

    @property
    def num_dropped(self) -> int:
        """Rows left out."""
        return self.num_too_long + self.num_no_answer + self.num_identical

    @property
    def num_kept(self) -> int:
        """Rows left."""
        return self.num_rows - self.num_dropped

    def __str__(self) -> str:
        reasons = [
            f"{count} {what}"
            for count, what in (
                (self.num_too_long, "too long"),
                (self.num_no_answer, "without an answer token after the cut"),
                (self.num_identical, "with identical sides"),
            )
            if count
        ]
        dropped = f"{self.num_dropped} dropped" + (f" ({', '.join(reasons)})" if reasons else "")
        kept = f"{self.num_kept} of {self.num_rows} kept, {self.num_cut} cut"
        return f"limit {self.limit} tokens: {kept}, {dropped}"


@dataclass(frozen=True, slots=True)
class LimitedPrompts:
    """Prompts within the limit; `kept[i]` is the index (from 0) of `prompt_ids[i]` in what was given."""

    prompt_ids: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    report: LengthReport


@dataclass(frozen=True, slots=True)
class LimitedExamples:
    """Examples within the limit, each with at least one answer token."""

    examples: tuple[TokenizedExample, ...]
    kept: tuple[int, ...]
    report: LengthReport


@dataclass(frozen=True, slots=True)
class LimitedPairs:
    """Pairs within the limit whose sides differ and both have an answer token."""

    pairs: tuple[TokenizedPair, ...]
    kept: tuple[int, ...]
    report: LengthReport


def limit_prompts(
    prompt_ids: Sequence[Sequence[int]], limit: int, policy: LengthPolicy, source: str = "prompts"
) -> LimitedPrompts:
    """Apply a limit in tokens. Example (case H4): limit 8, lengths 7, 8, 9: FILTER keeps two, LEFT keeps the
    last 8 of the third.
    """
    _check_limit(limit)
    policy = LengthPolicy(policy)
    long = {i for i, ids in enumerate(prompt_ids) if len(ids) > limit}
    if policy is LengthPolicy.ERROR:
        remedy = 'shorten it, raise the limit, or leave long prompts out (long_prompts = "filter").'
        problems = {
            i + 1: f"the prompt has {len(prompt_ids[i])} tokens, the limit is {limit}; {remedy}" for i in long
        }
        refuse_bad_rows(problems, source, len(prompt_ids))
    dropped = long if policy is LengthPolicy.FILTER else set[int]()
    report = LengthReport(
        limit,
        len(prompt_ids),
        num_cut=len(long) if policy is LengthPolicy.LEFT else 0,
        num_too_long=len(dropped),
    )
    kept = tuple(i for i in range(len(prompt_ids)) if i not in dropped)
    _conclude(report, source)
    return LimitedPrompts(tuple(tuple(prompt_ids[i][-limit:]) for i in kept), kept, report)


def limit_examples(
    examples: Sequence[TokenizedExample], limit: int, source: str = "examples"
) -> LimitedExamples:
    """Cut examples on the right and drop those left without an answer token (case H1: they would divide by
    zero).
    """
    _check_limit(limit)
    cut = [_cut(example, limit) for example in examples]
    kept = tuple(i for i, example in enumerate(cut) if example.num_live)
    report = LengthReport(
        limit,
        len(examples),
        num_no_answer=len(cut) - len(kept),
        num_cut=sum(len(examples[i].token_ids) > limit for i in kept),
    )
    _conclude(report, source)
    return LimitedExamples(tuple(cut[i] for i in kept), kept, report)


def limit_pairs(pairs: Sequence[TokenizedPair], limit: int, source: str = "pairs") -> LimitedPairs:
    """Cut both sides on the right; drop pairs that are then identical (case E5: loss ln 2, no gradient) or
    lost an answer.
    """
    _check_limit(limit)
    cut = [TokenizedPair(_cut(p.chosen, limit), _cut(p.rejected, limit), p.margin, p.label) for p in pairs]
    identical = {i for i, p in enumerate(cut) if p.chosen.token_ids == p.rejected.token_ids}
    empty = {i for i, p in enumerate(cut) if not (p.chosen.num_live and p.rejected.num_live)} - identical
    kept = tuple(i for i in range(len(cut)) if i not in identical and i not in empty)
    report = LengthReport(
        limit,
        len(pairs),
        num_no_answer=len(empty),
        num_identical=len(identical),
        num_cut=sum(
            max(len(pairs[i].chosen.token_ids), len(pairs[i].rejected.token_ids)) > limit for i in kept
        ),
    )
    _conclude(report, source)
    return LimitedPairs(tuple(cut[i] for i in kept), kept, report)


def demonstration_examples(
    demonstrations: Sequence[Demonstration], format: ChatFormat, source: str = "demonstrations"
) -> list[TokenizedExample]:
    """Every demonstration as token rows, or one DataError with all bad rows."""
    return tokenise(demonstrations, lambda d: format.example(d.prompt, d.completion), source)


def comparison_pairs(
    comparisons: Sequence[Comparison], format: ChatFormat, source: str = "comparisons"
) -> list[TokenizedPair]:
    """Every comparison as two token rows, or one DataError with all bad rows."""

    def pair(c: Comparison) -> TokenizedPair:
        return TokenizedPair(
            format.example(c.prompt, c.chosen), format.example(c.prompt, c.rejected), c.margin, c.label
        )

    return tokenise(comparisons, pair, source)


def tokenise(records: Iterable[T], one: Callable[[T], U], source: str) -> list[U]:
    """Every record as tokens, or one DataError with all bad rows (counted from 1)."""
    done: list[U] = []
    problems: dict[int, str] = {}
    number = 0
    for number, record in enumerate(records, start=1):
        try:
            done.append(one(record))
        except DataError as error:
            problems[number] = str(error)
    refuse_bad_rows(problems, source, number)
    return done


def _cut(example: TokenizedExample, limit: int) -> TokenizedExample:
    if len(example.token_ids) <= limit:
        return example
    return TokenizedExample(example.token_ids[:limit], example.response_mask[:limit])


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise DataError(f"a length limit must be at least 1 token, got {limit}.")


def _conclude(report: LengthReport, source: str) -> None:
    """Refuse an empty result before training."""
    if report.num_kept == 0:
        raise DataError(f"{source}: no rows left. {report}. Raise the limit or shorten the rows.")
