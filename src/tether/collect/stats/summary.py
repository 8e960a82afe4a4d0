"""Everything that can be said about a set of judgements, as one frozen record that turns into JSON, a text or a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tether.clusters import wilson_clusters
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.stats.agreeing import Agreement, agreement
from tether.collect.stats.bias import ChoiceModel, LengthLean, PositionBias, choice_model, length_curve, length_leans, position_bias
from tether.collect.stats.ceiling import Ceiling, ceiling
from tether.collect.stats.conduct import Conduct, Evidence, judge_conduct
from tether.collect.stats.figures import FIGURES, Band
from tether.collect.stats.reliability import (
    Competence,
    PairAgreement,
    agreement_with_rest,
    attention,
    competence,
    gold_accuracy,
    pair_agreements,
    self_consistency,
)
from tether.collect.stats.speed import Hasty, Pause, Speed, speed
from tether.collect.stats.transitivity import Transitivity, transitivity
from tether.collect.stats.votes import Votes, read_votes
from tether.errors import DataError
from tether.files import json_ready
from tether.stats import Interval, wilson

__all__ = ["AnnotatorRow", "CollectSummary", "Figure", "summarise", "summarise_votes"]

_Value = Interval | float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with what it means (``tether.collect.stats.figures``). ``value`` is None where it cannot be known; ``missing`` says why.

    ``low``, ``high``: its interval, None where it has none. ``num_units``: what the interval counts (prompts where it is a bootstrap).
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    num_units: int | None
    unit: str
    over: str
    meaning: str
    good: Band | None
    advice: str
    missing: str = ""

    @property
    def verdict(self) -> str:
        """"good" in the band, "look" where the whole interval lies outside, "unclear" where only the estimate does; "" without a band."""
        if self.good is None or self.value is None:
            return ""
        least, most = (bound if bound is not None else edge for bound, edge in zip(self.good, (-math.inf, math.inf), strict=True))
        if least <= self.value <= most:
            return "good"
        low, high = (self.value if bound is None else bound for bound in (self.low, self.high))
        return "look" if high < least or low > most else "unclear"


@dataclass(frozen=True, slots=True)
class AnnotatorRow:
    """One person. ``relative``: reliability, 1 is the typical person. ``longer_share``: the longer answer won. ``others_seconds``: what the
    others take for texts of the same lengths. ``conduct``: whether and for what the person is named. None: not known.
    """

    name: str
    num_judgements: int
    num_skips: int
    left_share: Interval | None
    longer_share: Interval | None
    agreement_with_rest: Interval | None
    relative: Interval | None
    relative_shrunk: float | None
    gold_accuracy: Interval | None
    repeat_agreement: Interval | None
    median_seconds: float | None
    others_seconds: float | None
    hasty_share: Interval | None
    num_pauses: int
    conduct: Conduct

    @property
    def notes(self) -> tuple[str, ...]:
        """The kinds of reasons to look at this person."""
        return tuple(reason.kind for reason in self.conduct.reasons if reason.kind)


@dataclass(frozen=True, slots=True)
class CollectSummary:
    """``figures``: in the order of the registry, each once. ``pairs``: of people. ``hasty``: judgements too quick to
    have read the texts, the most hasty first; ``pauses``: judgements with a pause in them, the longest first.

    ``length_curve``: (longer / shorter, share that chose the longer, judgements) in bins. ``warnings``: what the reader has to know first.
    """

    figures: tuple[Figure, ...]
    annotators: tuple[AnnotatorRow, ...]
    pairs: tuple[PairAgreement, ...]
    skip_reasons: tuple[tuple[str, int], ...]
    hasty: tuple[Hasty, ...]
    pauses: tuple[Pause, ...]
    length_curve: tuple[tuple[float, float, int], ...]
    warnings: tuple[str, ...]
    confidence: float
    seed: int

    def figure(self, name: str) -> Figure:
        """By name. Raises KeyError."""
        return next((one for one in self.figures if one.name == name), None) or _unknown(name)

    def as_json(self) -> dict[str, Any]:
        """Plain values; None where a number is not finite."""
        return json_ready(self)


def summarise(
    judgements: Iterable[Judgement],
    items: Iterable[Item],
    answers: Mapping[str, str | int],
    *,
    random_items: Collection[str] | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> CollectSummary:
    """What the judgements are worth. ``answers``: text or length in characters by answer id. ``random_items``: where a strategy chose
    some of the items, the ids of those that were drawn at random; agreement and the ceiling are theirs. ``seed`` is of the bootstrap.

    Raises DataError for judgements that do not fit their items. Statistics that cannot be computed are None and say why.
    """
    return summarise_votes(read_votes(judgements, items, answers, random_items=random_items), seed=seed, confidence=confidence)


def summarise_votes(votes: Votes, *, seed: int = 0, confidence: float = 0.95) -> CollectSummary:
    """The same from votes that were read before."""
    people = competence(votes, confidence=confidence)
    limit, no_ceiling = _ceiling(votes, people, seed, confidence)
    found = _Found(
        agreement=agreement(votes, seed=seed, confidence=confidence), ceiling=limit, no_ceiling=no_ceiling,
        position=position_bias(votes, confidence=confidence), leans=length_leans(votes, confidence=confidence),
        model=choice_model(votes, confidence=confidence), speed=speed(votes, confidence=confidence), people=people,
        cycles=transitivity(votes, limit, seed=seed, confidence=confidence), gold=gold_accuracy(votes, confidence=confidence),
        repeats=self_consistency(votes, confidence=confidence),
    )  # fmt: skip
    rows = tuple(_rows(votes, found, confidence))
    return CollectSummary(
        tuple(_figures(votes, found, rows, confidence)), rows, pair_agreements(votes, seed=seed, confidence=confidence),
        tuple(sorted(votes.skip_reasons.items(), key=lambda pair: (-pair[1], pair[0]))), found.speed.hasty if found.speed else (),
        found.speed.pauses if found.speed else (), length_curve(votes), tuple(_warnings(votes, found)), confidence, seed,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    """The statistics before they are put in order."""

    agreement: Agreement
    ceiling: Ceiling | None
    no_ceiling: str
    position: PositionBias | None
    leans: tuple[LengthLean, ...]
    model: ChoiceModel | None
    speed: Speed | None
    people: tuple[Competence, ...]
    cycles: Transitivity | None
    gold: tuple[Interval | None, dict[str, Interval]]
    repeats: tuple[Interval | None, Interval | None, dict[str, Interval]]


def _ceiling(votes: Votes, people: tuple[Competence, ...], seed: int, confidence: float) -> tuple[Ceiling | None, str]:
    share = attention(people)
    if share.single <= 0 or share.pair <= 0:
        return None, "the typical annotator's choices cannot be told from coin tosses"
    try:
        return ceiling(votes, attention=share, seed=seed, confidence=confidence), ""
    except DataError as error:
        return None, str(error)


def _figures(votes: Votes, found: _Found, rows: tuple[AnnotatorRow, ...], confidence: float) -> Iterator[Figure]:
    """In the order of the registry; every name of it once."""
    values = dict(_counts(votes, found, confidence)) | dict(_people(found, rows)) | dict(_measured(found))
    if set(values) != set(FIGURES):
        raise AssertionError(f"figures and registry differ: {sorted(set(values) ^ set(FIGURES))}")
    for name, kind in FIGURES.items():
        value, missing = values[name]
        if isinstance(value, Interval):
            low, high, units, middle = value.low, value.high, value.num_units, value.estimate
        else:
            low = high = units = None
            middle = value
        told = "" if middle is not None else missing
        yield Figure(name, middle, low, high, units, kind.unit, kind.over, kind.meaning, kind.good, kind.advice, told)


def _counts(votes: Votes, found: _Found, confidence: float) -> Iterator[tuple[str, tuple[_Value, str]]]:
    ordinary = ~votes.on_gold
    skips = votes.choice[ordinary] == list(Choice).index(Choice.SKIP)
    timed = found.speed
    yield "judgements", (float(len(votes.ids)), "")
    yield "annotators", (float(len(votes.annotators)), "")
    yield "units", (float(len(np.unique(votes.unit[~votes.gold]))), "")
    yield "shared_units", (float(found.agreement.num_shared_units), "")
    skipped = wilson_clusters(skips, votes.on_prompt[ordinary], confidence=confidence) if ordinary.any() else None
    yield "skip_share", (skipped, "no ordinary item was judged")
    yield "median_seconds", (timed.median if timed else None, "no judgement has a time")
    hasty = wilson(len(timed.hasty), timed.num_read, confidence=confidence) if timed and timed.num_read else None
    yield "hasty_share", (hasty, "no judgement has a time")
    paused = wilson(len(timed.pauses), timed.num_timed, confidence=confidence) if timed else None
    yield "pause_share", (paused, "no judgement has a time")


def _people(found: _Found, rows: tuple[AnnotatorRow, ...]) -> Iterator[tuple[str, tuple[_Value, str]]]:
    few = "fewer than three people share ten pairs of answers with others, or the typical person cannot be told from a coin"
    yield "unreliable_annotators", (float(sum(row.conduct.has("near chance") for row in rows)) if found.people else None, few)
    yield "hasty_annotators", (float(sum(row.conduct.has("hasty") for row in rows)) if found.speed else None, "no judgement has a time")


def _measured(found: _Found) -> Iterator[tuple[str, tuple[_Value, str]]]:
    a, c, alone = found.agreement, found.ceiling, "no pair of answers was judged by two people"
    undecided, nothing = "no two people decided on the same pair of answers", "no pair of answers was judged"
    yield "ceiling", (c.decided if c else None, found.no_ceiling)
    yield "ceiling_ties_half", (c.ties_half if c else None, found.no_ceiling)
    yield "ceiling_least", (c.bounds[0] if c else None, found.no_ceiling)
    yield "ceiling_most", (c.bounds[1] if c else None, found.no_ceiling)
    yield "ceiling_beta", (c.beta if c else None, found.no_ceiling)
    yield "raw_agreement", (a.raw, alone)
    yield "decided_agreement", (a.decided, undecided)
    yield "alpha_nominal", (a.alpha_nominal, f"{alone}, or nobody preferred an answer")
    yield "alpha_ordinal", (a.alpha_ordinal, f"{alone}, or nobody preferred an answer")
    yield "fleiss_kappa", (a.fleiss, f"{alone}, or nobody preferred an answer")
    yield "tie_share", (a.tie_share, nothing)
    yield "both_bad_share", (a.both_bad_share, nothing)
    yield "much_share", (a.much_share, "nobody was asked how much better")
    yield "agreement_when_much", (a.decided_much, undecided)
    yield "agreement_when_slight", (a.decided_slight, undecided)
    p, m = found.position, found.model
    yield "left_share", (p.left_share if p else None, "nothing was decided")
    yield "left_p_value", (p.p_value if p else None, "nothing was decided")
    no_fit = "fewer than 10 prompts with decided judgements of answers of known and different lengths, or length explains every choice"
    yield "left_log_odds", (m.left if m else None, no_fit)
    yield "length_log_odds", (m.length if m else None, no_fit)
    yield "longer_wins", (m.longer_wins if m else None, no_fit)
    yield "gold_accuracy", (found.gold[0], "no test question was judged")
    yield "repeat_agreement", (found.repeats[0], "nobody judged a pair of answers twice")
    yield "repeat_agreement_swapped", (found.repeats[1], "nobody judged a pair of answers again with the sides swapped")
    t = found.cycles
    yield "cyclic_share", (t.cyclic if t else None, "no prompt has three answers that were all compared with each other")
    yield "cyclic_expected", (t.expected if t else None, "there are no such triples, or no ceiling")


def _rows(votes: Votes, found: _Found, confidence: float) -> Iterator[AnnotatorRow]:
    """The people, those with the most judgements first."""
    rest = agreement_with_rest(votes, confidence=confidence)
    sides = {name: (share, p) for name, share, p in (found.position.by_annotator if found.position else ())}
    people = {p.annotator: p for p in found.people}
    leans = {one.annotator: one for one in found.leans}
    paces = {one.annotator: one for one in (found.speed.people if found.speed else ())}
    pauses = Counter(one.annotator for one in (found.speed.pauses if found.speed else ()))
    evidence = {
        name: Evidence(paces.get(name), people.get(name), found.gold[1].get(name), sides.get(name), leans.get(name))
        for name in votes.annotators
    }
    conduct = judge_conduct(evidence, confidence=confidence)
    total = np.bincount(votes.by, minlength=len(votes.annotators))
    skipped = np.bincount(votes.by[votes.choice == list(Choice).index(Choice.SKIP)], minlength=len(votes.annotators))
    for index in np.argsort(-total, kind="stable").tolist():
        name = votes.annotators[index]
        side, person, gold, lean, pace = sides.get(name), people.get(name), found.gold[1].get(name), leans.get(name), paces.get(name)
        yield AnnotatorRow(
            name, int(total[index]), int(skipped[index]), side[0] if side else None, lean.longer if lean else None, rest.get(name),
            person.relative if person else None, person.shrunk if person else None, gold, found.repeats[2].get(name),
            pace.median if pace else None, pace.others if pace else None, pace.hasty if pace else None, pauses[name], conduct[name],
        )  # fmt: skip


def _warnings(votes: Votes, found: _Found) -> Iterator[str]:
    if found.no_ceiling:
        yield f"No ceiling: {found.no_ceiling}."
    elif found.ceiling and found.ceiling.like_coins:
        yield "The judgements of two people cannot be told from coin tosses: the ceiling may be 0.5."
    if not votes.random.all():
        chosen = len(np.unique(votes.unit[~votes.random]))
        yield f"{chosen} pairs of answers were chosen by a strategy: agreement and the ceiling are of those that were drawn at random."
    if votes.num_withdrawn:
        yield f"{votes.num_withdrawn} withdrawn judgements count nowhere."
    if found.speed and found.speed.num_not_positive:
        yield f"{found.speed.num_not_positive} judgements have a time of 0 s or less; they are in no statistic of speed."


def _unknown(name: str) -> Figure:
    raise KeyError(f"no figure {name!r} in tether.collect.stats.figures.FIGURES")
