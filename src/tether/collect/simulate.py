"""Simulated annotators with known habits: to plan a collection before anybody is asked, and to test every statistic against the truth.

Answers have a quality q ~ Normal(0, quality_sd) and a length. An attentive annotator who is shown an item compares with noise, as in
Bradley and Terry (1952), with ties as in Rao and Kupper (1967):

    x = (q_first - q_second) / temperature + length_bias log(length_first / length_second) + position_bias s
    P(first) = sigmoid(x - tie_threshold)    P(second) = sigmoid(-x - tie_threshold)    else a tie

with s = +1 where the first answer stands left, else -1. A careless annotator clicks left or right by a coin, and fast. No human is
involved: every file made from these should say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.collect.stats.bias import logistic
from tether.errors import ConfigError

__all__ = ["SimulatedStudy", "Study", "Truth", "simulate"]

Floats = NDArray[np.float64]

_NUM_TRUTH = 100_000  # items behind the true values: their Monte Carlo error is below 0.001


@dataclass(frozen=True, slots=True)
class SimulatedStudy:
    """What is simulated. Shares are between 0 and 1; biases are in log-odds; ``temperature`` is in units of quality.

    Every item is judged by one annotator, and ``overlap`` of the items by ``judgements_per_item`` different ones. ``repeat_share`` of the
    judgements are asked once more of the same person with the sides swapped. ``gold_share`` of the items are test questions, whose
    answers lie four temperatures apart at least.
    """

    num_prompts: int = 200
    answers_per_prompt: int = 2
    num_annotators: int = 10
    judgements_per_item: int = 3
    overlap: float = 1.0
    temperature: float = 1.0
    quality_sd: float = 1.0
    position_bias: float = 0.0
    length_bias: float = 0.0
    tie_threshold: float = 0.0
    both_bad_share: float = 0.0  # of ties
    much_gap: float = 2.0  # |x| above this is said to be much better
    careless_share: float = 0.0
    skip_share: float = 0.0
    repeat_share: float = 0.0
    gold_share: float = 0.0
    seconds: float = 20.0  # median of attentive annotators
    seconds_spread: float = 0.5  # standard deviation of log seconds
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be between 0 and 1, got {getattr(self, name)}"
            for name in ("overlap", "both_bad_share", "careless_share", "skip_share", "repeat_share", "gold_share")
            if not 0 <= getattr(self, name) <= 1
        ]
        problems += [
            f"{name} must be at least {least}, got {getattr(self, name)}"
            for name, least in (("num_prompts", 1), ("answers_per_prompt", 2), ("num_annotators", 1), ("judgements_per_item", 1))
            if getattr(self, name) < least
        ]
        problems += [
            f"{name} must be a positive number, got {getattr(self, name)}"
            for name in ("temperature", "seconds")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0)
        ]
        problems += [
            f"{name} must not be negative, got {getattr(self, name)}"
            for name in ("quality_sd", "tie_threshold", "seconds_spread", "much_gap")
            if not getattr(self, name) >= 0
        ]
        problems += [
            f"{name} must be a finite number, got {getattr(self, name)}"
            for name in ("position_bias", "length_bias")
            if not math.isfinite(getattr(self, name))
        ]
        if self.judgements_per_item > self.num_annotators:
            problems.append(
                f"judgements_per_item is {self.judgements_per_item}, but each of the {self.num_annotators} annotators judges an item once"
            )
        if problems:
            raise ConfigError(problems, "simulated study")


@dataclass(frozen=True, slots=True)
class Truth:
    """What a perfect statistic would say of these annotators. Items are the ordinary ones (no test questions), annotators are drawn alike.

    ``ceiling``: accuracy on decided judgements of the model that knows who prefers what; ``ceiling_ties_half``: on all judgements, a tie
    earns one half. ``left_share``: of decided judgements. ``length_slope``, ``left_slope``: the logistic coefficients over all qualities
    and people, nearer 0 than ``length_bias`` and ``position_bias`` where quality varies or somebody is careless. ``careless``: annotators
    that click by a coin.
    """

    ceiling: float
    ceiling_ties_half: float
    agreement: float  # of two annotators, categories first, second, tie, both bad
    left_share: float
    tie_share: float
    both_bad_share: float
    length_slope: float
    left_slope: float
    careless: frozenset[str]


@dataclass(frozen=True, slots=True)
class Study:
    """A simulated collection. ``lengths``: characters of each answer."""

    items: tuple[Item, ...]
    judgements: tuple[Judgement, ...]
    lengths: dict[str, int]
    truth: Truth


def simulate(study: SimulatedStudy) -> Study:
    """Items, judgements and the truth behind them; the same for the same ``study``."""
    rng = np.random.default_rng([study.seed, 0])
    k = study.answers_per_prompt
    quality_PK = rng.normal(0, study.quality_sd, (study.num_prompts, k))
    length_PK = _lengths(rng, (study.num_prompts, k))
    answer = [[f"p{p}a{a}" for a in range(k)] for p in range(study.num_prompts)]
    pairs = [(p, i, j) for p in range(study.num_prompts) for i in range(k) for j in range(i + 1, k)]
    gold = rng.random(len(pairs)) < study.gold_share
    prompt, first, second = np.asarray(pairs).T
    gap = (quality_PK[prompt, first] - quality_PK[prompt, second]) / study.temperature
    gap = np.where(gold, np.where(gap >= 0, 1, -1) * np.maximum(np.abs(gap), 4), gap)
    log_ratio = np.log(length_PK[prompt, first] / length_PK[prompt, second])
    items = tuple(
        Item(f"i{n}", f"p{p}", (answer[p][i], answer[p][j]), (Choice.FIRST if gap[n] > 0 else Choice.SECOND) if gold[n] else None)
        for n, (p, i, j) in enumerate(pairs)
    )
    careless = np.arange(study.num_annotators) < round(study.careless_share * study.num_annotators)
    rng.shuffle(careless)
    asked = _asked(study, len(items), rng)
    judgements = _judgements(study, items, asked, gap, log_ratio, careless, rng)
    lengths = {answer[p][a]: int(length_PK[p, a]) for p in range(study.num_prompts) for a in range(k)}
    return Study(items, judgements, lengths, _truth(study, careless))


def _lengths(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.maximum(1, np.round(np.exp(rng.normal(5.5, 0.6, shape)))).astype(np.int64)


def _asked(study: SimulatedStudy, num_items: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows (item, annotator, side of the first answer), repeats last and swapped."""
    wanted = np.where(rng.random(num_items) < study.overlap, study.judgements_per_item, 1)
    item = np.repeat(np.arange(num_items), wanted)
    rank = np.arange(len(item)) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    people = np.argsort(rng.random((num_items, study.num_annotators)), axis=1)  # different ones for each item
    side = rng.choice([-1, 1], size=len(item))
    rows = np.column_stack([item, people[item, rank], side])
    again = rows[rng.random(len(rows)) < study.repeat_share].copy()
    again[:, 2] *= -1
    return np.concatenate([rows, again])


def _probabilities(study: SimulatedStudy, gap: Floats, log_ratio: Floats, side: NDArray) -> tuple[Floats, Floats, Floats]:
    """(x, P(first), P(second)) of attentive annotators."""
    x = gap + study.length_bias * log_ratio + study.position_bias * side
    return x, _sigmoid(x - study.tie_threshold), _sigmoid(-x - study.tie_threshold)


def _judgements(
    study: SimulatedStudy, items: tuple[Item, ...], asked: NDArray, gap: Floats, log_ratio: Floats, careless: NDArray,
    rng: np.random.Generator,
) -> tuple[Judgement, ...]:
    item, who, side = asked.T
    x, p_first, p_second = _probabilities(study, gap[item], log_ratio[item], side)
    coin = careless[who]
    p_first, p_second = np.where(coin, 0.5, p_first), np.where(coin, 0.5, p_second)
    draw = rng.random(len(item))
    outcome = np.where(draw < p_first, 0, np.where(draw < p_first + p_second, 1, 2))
    outcome = np.where((outcome == 2) & (rng.random(len(item)) < study.both_bad_share), 3, outcome)
    outcome = np.where(rng.random(len(item)) < study.skip_share, 4, outcome)
    seconds = np.exp(rng.normal(math.log(study.seconds), study.seconds_spread, len(item))) * np.where(coin, 0.25, 1.0)
    choices = (Choice.FIRST, Choice.SECOND, Choice.TIE, Choice.BOTH_BAD, Choice.SKIP)
    found = []
    for n, (i, a, s, o) in enumerate(zip(item.tolist(), who.tolist(), side.tolist(), outcome.tolist(), strict=True)):
        shown = items[i].answers if s > 0 else items[i].answers[::-1]
        strength = (Strength.MUCH if abs(x[n]) > study.much_gap else Strength.SLIGHT) if o < 2 else None
        reason = "cannot tell" if o == 4 else ""
        time = round(float(seconds[n]), 2)
        found.append(Judgement(f"j{n}", f"i{i}", f"annotator-{a}", choices[o], shown, strength, (), reason, "", time))
    return tuple(found)


def _truth(study: SimulatedStudy, careless: NDArray) -> Truth:
    names = frozenset(f"annotator-{a}" for a in np.flatnonzero(careless))
    noise = (study.quality_sd / study.temperature, study.position_bias, study.length_bias, study.tie_threshold, study.both_bad_share)
    people, coins = len(careless), int(careless.sum())
    two = (coins / people) ** 2 if people == 1 else coins * (coins - 1) / (people * (people - 1))
    return replace(_expected(*noise, coins / people, two), careless=names)


@cache
def _expected(
    spread: float, position_bias: float, length_bias: float, tie_threshold: float, bad: float, careless: float, both_careless: float
) -> Truth:
    """The numbers of Truth, by Monte Carlo over items with exact probabilities; they do not depend on the seed of the study.
    ``both_careless``: chance that two different annotators are.
    """
    rng = np.random.default_rng(0)
    gap = rng.normal(0, spread * math.sqrt(2), _NUM_TRUTH)
    lengths = _lengths(rng, (_NUM_TRUTH, 2))
    ratio = np.log(lengths[:, 0] / lengths[:, 1])
    study = SimulatedStudy(position_bias=position_bias, length_bias=length_bias, tie_threshold=tie_threshold)
    sides = []
    for side in (1, -1):
        _, p_first, p_second = _probabilities(study, gap, ratio, np.full(_NUM_TRUTH, side))
        sides.append((p_first, p_second))
    attentive = [(left + right) / 2 for left, right in zip(*sides, strict=True)]
    (first_l, second_l), (first_r, second_r) = [[(1 - careless) * p + careless / 2 for p in pair] for pair in sides]
    first, second = (first_l + first_r) / 2, (second_l + second_r) / 2
    tie = 1 - first - second
    decided = float(np.mean(first + second))
    apart = float(np.mean(np.abs(first - second)))
    same = _same(attentive[0], attentive[1], bad, 1 - 2 * careless + both_careless, 2 * (careless - both_careless), both_careless)
    rows = np.column_stack([np.tile(ratio, 2), np.repeat([1.0, -1.0], _NUM_TRUTH)])
    weight = np.concatenate([first_l + second_l, first_r + second_r])
    slope = logistic(rows, np.concatenate([first_l, first_r]) / np.maximum(weight, 1e-300), weight)
    return Truth(
        ceiling=0.5 + apart / (2 * decided), ceiling_ties_half=0.5 + apart / 2, agreement=same,
        left_share=float(np.mean(first_l + second_r)) / (2 * decided), tie_share=float(np.mean(tie)) * (1 - bad),
        both_bad_share=float(np.mean(tie)) * bad, length_slope=float(slope[0]), left_slope=float(slope[1]), careless=frozenset(),
    )  # fmt: skip


def _same(first: Floats, second: Floats, bad: float, attentive: float, mixed: float, careless: float) -> float:
    """Chance that two different people say the same; the last three: that both are attentive, one is, none is."""
    tie = 1 - first - second
    both = float(np.mean(first**2 + second**2 + tie**2 * (bad**2 + (1 - bad) ** 2)))
    return attentive * both + mixed * float(np.mean(first + second)) / 2 + careless / 2


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))
