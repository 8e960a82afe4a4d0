"""Who is named, and for what: decided by the cautious end of an interval that holds for all people at once.

One in twenty intervals at 95 % misses by chance: with twenty people, somebody innocent would be named in most collections. So each end
is taken at 1 - (1 - confidence) / people (Bonferroni): the chance that anybody at all is named without a reason, for one kind of
reason, stays below 1 - confidence.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from tether.collect.stats.bias import LengthLean
from tether.collect.stats.reliability import LOW_RELIABILITY, Competence
from tether.collect.stats.speed import Pace
from tether.collect.stats.spelled import percent, percent_range, seconds
from tether.stats import Interval, clopper_pearson

__all__ = ["GOLD_LEVEL", "HASTY_SHARE", "Conduct", "Evidence", "Reason", "for_all", "judge_conduct"]

HASTY_SHARE = 1 / 3  # of a person's judgements; surely more than this is named
GOLD_LEVEL = 0.7  # of the test questions; surely less than this is named
_LEAN = 0.1  # how far from the others a share must be, beside being surely different

Side = tuple[Interval, float]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one person; None where it is not."""

    pace: Pace | None = None
    competence: Competence | None = None
    gold: Interval | None = None
    side: Side | None = None
    lean: LengthLean | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason to look at a person. ``kind``: hasty, near chance, fails test questions, one side, length; empty for
    what is told beside one of these.
    """

    kind: str
    told: str


@dataclass(frozen=True, slots=True)
class Conduct:
    """``reasons``: empty for nearly everybody; ``advice``: what to do, with the command. ``hasty_surely``, ``reliability_surely``: the
    ends that were decided by.
    """

    reasons: tuple[Reason, ...]
    advice: str
    hasty_surely: float | None
    reliability_surely: float | None

    def has(self, kind: str) -> bool:
        """True where this is one of the reasons."""
        return any(reason.kind == kind for reason in self.reasons)


def for_all(confidence: float, num_people: int, spent: float = 1.0) -> float:
    """The two-sided confidence of an interval whose one end holds for all people at once, with the share ``spent`` of 1 - confidence.
    Example: (0.95, 5) -> 0.98.
    """
    return 1 - 2 * spent * (1 - confidence) / max(num_people, 1)


def judge_conduct(people: Mapping[str, Evidence], *, confidence: float = 0.95) -> dict[str, Conduct]:
    """Everybody at once. Reliability is tested in two groups with half of the allowed chance each, the hasty and the others: haste alone
    makes it likely that a person's choices are coins, so that less proof is needed where few are hasty.
    """
    level = for_all(confidence, len(people))
    least = {name: _hasty_end(evidence.pace, level) for name, evidence in people.items()}
    hasty = {name for name, end in least.items() if end is not None and end > HASTY_SHARE}
    spent = 0.5 if 0 < len(hasty) < len(people) else 1.0
    in_group = {True: len(hasty), False: len(people) - len(hasty)}
    found = {}
    for name, evidence in people.items():
        most = _reliability_end(evidence.competence, for_all(confidence, in_group[name in hasty], spent))
        reasons = tuple(_reasons(evidence, least[name], most, level, 1 - confidence))
        agrees = evidence.competence is not None and evidence.competence.relative.low > LOW_RELIABILITY
        advice = _advice(name, {reason.kind for reason in reasons}, agrees=agrees)
        found[name] = Conduct(reasons, advice, least[name], most)
    return found


def _hasty_end(pace: Pace | None, level: float) -> float | None:
    return None if pace is None else clopper_pearson(pace.num_hasty, pace.hasty.num_units, confidence=level).low


def _reliability_end(person: Competence | None, level: float) -> float | None:
    """The upper end of the normal interval, at another confidence."""
    if person is None:
        return None
    relative = person.relative
    error = (relative.high - relative.estimate) / NormalDist().inv_cdf((1 + relative.confidence) / 2)
    return relative.estimate + NormalDist().inv_cdf((1 + level) / 2) * error


def _reasons(evidence: Evidence, hasty: float | None, reliability: float | None, level: float, alarm: float) -> Iterator[Reason]:
    if (pace := evidence.pace) and hasty is not None and hasty > HASTY_SHARE:
        against = "" if pace.others is None else f", where the others take {seconds(pace.others)} for texts of these lengths"
        share = f"{percent(pace.hasty.estimate)} of {pace.hasty.num_units} judgements are hasty, surely more than {percent(hasty)}"
        yield Reason("hasty", f"answers in {seconds(pace.median)} (median){against}; {share}")
        if (person := evidence.competence) and not (reliability is not None and reliability < LOW_RELIABILITY):
            yield Reason("", f"reliability {person.relative.estimate:z.2f} [{person.relative.low:z.2f}, {person.relative.high:z.2f}]")
    if (person := evidence.competence) and reliability is not None and reliability < LOW_RELIABILITY:
        place = "is against the others'" if reliability < 0 else "is at or near chance"
        scale = f"surely below {reliability:z.2f}, where 1 is the typical person and 0 a coin"
        yield Reason("near chance", f"agreement {place}: reliability {person.relative.estimate:z.2f}, {scale}")
    if gold := evidence.gold:
        passed = round(gold.estimate * gold.num_units)
        fails = clopper_pearson(passed, gold.num_units, confidence=level).high < GOLD_LEVEL
        if fails or (hasty is not None and hasty > HASTY_SHARE):
            yield Reason("fails test questions" if fails else "", f"passed {passed} of {gold.num_units} test questions")
    if evidence.side and evidence.side[1] < alarm:
        yield Reason("one side", f"chose the left answer {_how_often(evidence.side[0])}; 50 % would be no habit")
    if (lean := evidence.lean) and lean.p_value < alarm and abs(lean.longer.estimate - lean.others) > _LEAN:
        yield Reason("length", f"chose the longer answer {_how_often(lean.longer)}, the others {percent(lean.others)}")


def _how_often(share: Interval) -> str:
    return f"{percent(share.estimate)} of the time {percent_range(share.low, share.high)}"


def _advice(name: str, kinds: set[str], *, agrees: bool) -> str:
    """What to do, the gravest first."""
    leave = f"`tether collect export DATABASE pairs.jsonl --without {shlex.quote(name)}`"
    if kinds & {"near chance", "fails test questions"}:
        return f"Read some of these judgements and ask; if they were clicks, leave them out: {leave}."
    if "hasty" in kinds and agrees:
        return f"The choices agree with the others' all the same: ask how they were made before leaving them out, {leave}."
    if "hasty" in kinds:
        return f"It cannot be told yet whether the choices agree with the others': ask, and if nothing was read, leave them out: {leave}."
    if "one side" in kinds:
        return "Ask; the page balances the sides, so these choices are noisier and not biased."
    return "Ask what made them better; say in the guidelines whether length is wanted." if kinds else ""
