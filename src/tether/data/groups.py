"""What a reward model is fitted to: the answers to a prompt, each read once, and the pairs among them that were judged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tether.data.lengths import LengthReport, tokenise
from tether.errors import DataError
from tether.records import refuse_bad_rows
from tether.records.texts import prompt_key
from tether.text.chat import ChatFormat, TokenizedExample
from tether.types import Comparison, Ranking

__all__ = [
    "Cut", "JudgedPair", "LimitedGroups", "TokenizedGroup", "as_pairs", "bootstrap_weight", "by_prompt", "cut_example",
    "limit_groups", "tokenised_groups",
]  # fmt: skip

_HALF = 2.0**-54


class Cut(StrEnum):
    """What happens to a text past the limit: RIGHT keeps its first tokens, LEFT its last, ERROR refuses it."""

    RIGHT = "right"
    LEFT = "left"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """`answers[first]` against `answers[second]` of a group; `label`: probability that the first is better. Margin in score units."""

    first: int
    second: int
    label: float = 1.0
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenizedGroup:
    """Answers to the prompt named by `key`, as token rows that include it."""

    answers: tuple[TokenizedExample, ...]
    pairs: tuple[JudgedPair, ...]
    key: str = ""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(answer.token_ids) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class LimitedGroups:
    """Groups within the limit, each with a pair whose sides differ. `report` counts pairs."""

    groups: tuple[TokenizedGroup, ...]
    report: LengthReport


def tokenised_groups(records: Sequence[Comparison | Ranking], format: ChatFormat, source: str) -> list[TokenizedGroup]:
    """One group a record: a comparison has one pair, a ranking of K answers K (K - 1) / 2; equal places are ties."""

    def group(record: Comparison | Ranking) -> TokenizedGroup:
        if isinstance(record, Comparison):
            answers, pairs = (record.chosen, record.rejected), (JudgedPair(0, 1, record.label, record.margin),)
        else:
            answers, pairs = record.answers, _pairs_of(record.places)
        return TokenizedGroup(tuple(format.example(record.prompt, answer) for answer in answers), pairs, prompt_key(record.prompt))

    return tokenise(records, group, source)


def _pairs_of(places: Sequence[int]) -> tuple[JudgedPair, ...]:
    """Example: places (2, 1, 1) -> (1 over 0), (2 over 0), (1 and 2 level)."""
    order = sorted(range(len(places)), key=lambda k: (places[k], k))
    ranked = [(i, j) for at, i in enumerate(order) for j in order[at + 1 :]]
    return tuple(JudgedPair(i, j, 0.5 if places[i] == places[j] else 1.0) for i, j in ranked)


def limit_groups(groups: Sequence[TokenizedGroup], limit: int, rule: Cut, source: str = "comparisons") -> LimitedGroups:
    """Apply the limit; drop pairs that are then the same tokens (case E5: loss ln 2, no gradient) or lost an answer, and count them.

    A group without a pair goes with it. Raises DataError naming the rows past the limit where the rule is ERROR, and where none is left.
    """
    if limit < 1:
        raise DataError(f"a length limit must be at least 1 token, got {limit}.")
    if rule is Cut.ERROR:
        remedy = f"the limit is {limit}; shorten it, raise max_length, or set truncation to right or left."
        long = {number: group.longest for number, group in enumerate(groups, start=1) if group.longest > limit}
        refuse_bad_rows({n: f"prompt and answer have {length} tokens, {remedy}" for n, length in long.items()}, source, len(groups))
    kept: list[TokenizedGroup] = []
    identical = empty = num_cut = 0
    for group in groups:
        answers = tuple(cut_example(answer, limit, rule) for answer in group.answers)
        same = [answers[p.first].token_ids == answers[p.second].token_ids for p in group.pairs]
        lost = [not s and not (answers[p.first].num_live and answers[p.second].num_live) for p, s in zip(group.pairs, same, strict=True)]
        pairs = tuple(p for p, s, gone in zip(group.pairs, same, lost, strict=True) if not s and not gone)
        identical, empty = identical + sum(same), empty + sum(lost)
        num_cut += sum(max(len(group.answers[p.first].token_ids), len(group.answers[p.second].token_ids)) > limit for p in pairs)
        if pairs:
            kept.append(_only_judged(replace(group, answers=answers, pairs=pairs)))
    num_pairs = sum(len(group.pairs) for group in groups)
    report = LengthReport(limit, num_pairs, num_cut=num_cut, num_no_answer=empty, num_identical=identical)
    if not kept:
        raise DataError(f"{source}: no pairs left. {report}. Raise the limit or shorten the rows.")
    return LimitedGroups(tuple(kept), report)


def cut_example(example: TokenizedExample, limit: int, rule: Cut) -> TokenizedExample:
    """The tokens of a row that a model with this limit reads; the caller refuses long rows where the rule is ERROR."""
    if len(example.token_ids) <= limit:
        return example
    if rule is Cut.LEFT:  # the first token left has none before it that could predict it
        return TokenizedExample(example.token_ids[-limit:], (False, *example.response_mask[len(example.token_ids) - limit + 1 :]))
    return TokenizedExample(example.token_ids[:limit], example.response_mask[:limit])


def _only_judged(group: TokenizedGroup) -> TokenizedGroup:
    """Without answers that no pair names."""
    used = sorted({index for pair in group.pairs for index in (pair.first, pair.second)})
    if len(used) == len(group.answers):
        return group
    place = {old: new for new, old in enumerate(used)}
    pairs = tuple(replace(pair, first=place[pair.first], second=place[pair.second]) for pair in group.pairs)
    return replace(group, answers=tuple(group.answers[old] for old in used), pairs=pairs)


def by_prompt(groups: Sequence[TokenizedGroup]) -> list[TokenizedGroup]:
    """One group a prompt, in order of first appearance, the same answer once. Example: a over b, a over c -> answers a, b, c, two pairs."""
    answers: dict[str, dict[TokenizedExample, int]] = {}
    pairs: dict[str, list[JudgedPair]] = {}
    for group in groups:
        known = answers.setdefault(group.key, {})
        place = [known.setdefault(answer, len(known)) for answer in group.answers]
        told = [replace(pair, first=place[pair.first], second=place[pair.second]) for pair in group.pairs]
        pairs.setdefault(group.key, []).extend(told)
    return [TokenizedGroup(tuple(known), tuple(pairs[key]), key) for key, known in answers.items()]


def as_pairs(groups: Sequence[TokenizedGroup]) -> list[TokenizedGroup]:
    """Every pair a group of its own, the first answer before the second."""
    return [
        TokenizedGroup((group.answers[p.first], group.answers[p.second]), (JudgedPair(0, 1, p.label, p.margin),), group.key)
        for group in groups
        for p in group.pairs
    ]


def bootstrap_weight(seed: int, head: int, key: str) -> float:
    """Weight of a prompt for one head, exponential with mean 1: the Bayesian bootstrap over prompts (Rubin 1981)."""
    digest = hashlib.blake2b(f"{seed}\0{head}\0{key}".encode(), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") >> 11) * 2.0**-53 + _HALF)
