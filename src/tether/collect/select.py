"""Which item comes next: pure functions of scores and a seed.

A share of the items is set apart at import, uniformly at random, and served in random order (``in_random_share``); the scores never touch
it, so what is measured on it is unbiased however the rest is chosen. The rest is put in order here. With the scores s of a reward model the
probability that answer a is preferred to b is p = sigmoid(s_a - s_b) (Bradley-Terry).

* uncertainty: p(1 - p), the variance of the predicted judgement, largest first: p nearest 1/2 (uncertainty sampling).
* disagreement: the variance of p over several reward models, largest first (query by committee; Gleave and Irving, arXiv:2203.07472).

An item of more than two answers has the mean over its pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tether.collect.judgement import Item
from tether.collect.order import share_of, uniform
from tether.collect.settings import Settings, Strategy

__all__ = [
    "Placed", "disagreement", "draw_pairs", "in_random_share", "place_items", "preference_probability", "random_place",
    "uncertainty",
]  # fmt: skip

Scores = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """``place``: the smallest is next. ``way``: how it was found ("uncertainty", "disagreement", "stratified", "unscored")."""

    item_id: str
    place: float
    way: str


def in_random_share(item_id: str, settings: Settings) -> bool:
    """Whether the item belongs to the share that no strategy touches; all of them where the strategy is random order without strata."""
    plain = settings.strategy is Strategy.RANDOM and not settings.stratified
    return plain or share_of(settings.random_share, settings.seed, "random share", item_id)


def random_place(item_id: str, seed: int) -> float:
    """The item's place in random order, in [0, 1)."""
    return uniform(seed, "place", item_id)


def preference_probability(score_a: float, score_b: float) -> float:
    """sigmoid(score_a - score_b). Example: 2.0, 2.0 -> 0.5."""
    gap = score_a - score_b
    return 1 / (1 + math.exp(-gap)) if gap >= 0 else math.exp(gap) / (1 + math.exp(gap))


def uncertainty(answers: Sequence[str], scores: Scores) -> float:
    """Mean over the pairs of p(1 - p), in [0, 1/4]. Example: equal scores -> 0.25."""
    chances = [preference_probability(scores[a], scores[b]) for a, b in combinations(answers, 2)]
    return sum(p * (1 - p) for p in chances) / len(chances)


def disagreement(answers: Sequence[str], ensemble: Sequence[Scores]) -> float:
    """Mean over the pairs of the variance of p over the scorers, in [0, 1/4]. Example: one certain of a, one certain of b -> 0.25."""
    spreads = []
    for a, b in combinations(answers, 2):
        chances = [preference_probability(scores[a], scores[b]) for scores in ensemble]
        mean = sum(chances) / len(chances)
        spreads.append(sum((p - mean) ** 2 for p in chances) / len(chances))
    return sum(spreads) / len(spreads)


def place_items(items: Sequence[Item], scorers: Mapping[str, Scores], settings: Settings) -> list[Placed]:
    """The items in the order of the strategy, with places in [-1, 1).

    ``scorers``: scorer -> answer -> score, the newest scorer last. Items that the strategy cannot weigh (an answer without a score; for
    disagreement, fewer than two scorers that know all answers) come after all others, in random order. With ``stratified`` every prompt
    gives its first item before any gives its second. The order depends on the contents alone, not on the order of ``items``.
    """
    values = {item.item_id: _value(item, scorers, settings.strategy) for item in items}
    drawn = {item.item_id: random_place(item.item_id, settings.seed) for item in items}
    order = sorted(items, key=lambda item: (-math.inf if (v := values[item.item_id]) is None else v, -drawn[item.item_id]), reverse=True)
    rounds = _rounds(order) if settings.stratified else dict.fromkeys(drawn, 0)
    order.sort(key=lambda item: (values[item.item_id] is None and settings.strategy is not Strategy.RANDOM, rounds[item.item_id]))
    unweighed = "stratified" if settings.stratified and settings.strategy is Strategy.RANDOM else "unscored"
    return [
        Placed(item.item_id, 2 * at / len(order) - 1, unweighed if values[item.item_id] is None else settings.strategy.value)
        for at, item in enumerate(order)
    ]


def draw_pairs(prompt_id: str, texts: Mapping[str, str], count: int, seed: int) -> list[tuple[str, str]]:
    """Up to ``count`` pairs of a prompt's answers (id -> text), uniformly at random among those with different texts."""
    pairs = [(a, b) for a, b in combinations(sorted(texts), 2) if texts[a] != texts[b]]
    return sorted(pairs, key=lambda pair: uniform(seed, "pair", prompt_id, *pair))[:count]


def _value(item: Item, scorers: Mapping[str, Scores], strategy: Strategy) -> float | None:
    knowing = [scores for scores in scorers.values() if all(answer in scores for answer in item.answers)]
    if strategy is Strategy.UNCERTAINTY and knowing:
        return uncertainty(item.answers, knowing[-1])
    if strategy is Strategy.DISAGREEMENT and len(knowing) > 1:
        return disagreement(item.answers, knowing)
    return None


def _rounds(order: Sequence[Item]) -> dict[str, int]:
    """For every item how many of its prompt come before it."""
    seen: dict[str, int] = {}
    rounds = {}
    for item in order:
        rounds[item.item_id] = seen.get(item.prompt_id, 0)
        seen[item.prompt_id] = rounds[item.item_id] + 1
    return rounds
