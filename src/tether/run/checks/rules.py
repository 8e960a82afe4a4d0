"""The rules: frozen values with one pure function each, from what was seen to a finding or nothing. No torch here.

Two families, by what makes them wrong by chance:

* **panel rules** compare two looks prompt by prompt. Both looks are samples, so an interval decides: the outer one of the paired
  percentile bootstrap and Student's t, one-sided. K looks (and, where the best look so far is chosen among them, every pair of looks)
  share the rule's false-alarm rate evenly (Bonferroni), which holds however much the looks depend on each other.
* **step rules** read a number that every training step logs. They ask for a run of W steps without a break beyond the level.
  W is the smallest with steps x q^W <= rate, where q = 0.1 is how often a healthy step may be beyond the level by itself.

``negative_kl`` needs no interval: under the contract E[exp(-k1)] = 1 for every answer, so by Markov's inequality the mean of n independent
answers lies below -a with probability at most exp(-n a), whatever the policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Protocol

import numpy as np

from tether.run.checks.look import UNITS, Look
from tether.stats import Interval, paired_bootstrap

__all__ = [
    "HEALTHY_STEP",
    "Direction",
    "Divergence",
    "Drift",
    "Finding",
    "NegativeKL",
    "Plan",
    "Rule",
    "Seen",
    "StepRule",
    "outer_interval",
]

HEALTHY_STEP = 0.1
"""How often a step of a healthy stage may be beyond the level of a step rule, by assumption."""
_RISE = 0.05  # one-sided: the training reward must have risen beyond this before a fall of the score counts as divergence
_FEWEST = 8  # prompts that both looks could score; fewer say too little


class Direction(StrEnum):
    """Which side of its level a number must not be on."""

    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True)
class Plan:
    """What the false-alarm rate is shared over. ``rate``: of one rule over the whole stage."""

    rate: float
    num_looks: int
    num_steps: int
    seed: int = 0


@dataclass(frozen=True)
class Seen:
    """What a rule may look at: the look before step 1, the best by the independent score before this one, this one (None: no look at
    this step), and the last values of every watched metric of the training steps, oldest first."""

    baseline: Look
    best: Look
    now: Look | None
    training: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Finding:
    """A rule that tripped: the sentence, the numbers behind it, and the look it compared with."""

    rule: str
    sentence: str
    numbers: Mapping[str, float]
    before: Look


class Rule(Protocol):
    """``rate(plan)``: chance at most that a healthy stage trips it at any of its looks."""

    @property
    def name(self) -> str: ...
    def rate(self, plan: Plan) -> float: ...
    def judge(self, seen: Seen, plan: Plan) -> Finding | None: ...


@dataclass(frozen=True)
class Divergence:
    """The training reward rose while the independent score fell by more than ``level``: against the start, or against the best look."""

    level: float = 0.0
    name: str = "divergence"

    def rate(self, plan: Plan) -> float:
        """Half for the start (K comparisons), half for the best look (K (K - 1) / 2 pairs that it may come from)."""
        return plan.rate

    def judge(self, seen: Seen, plan: Plan) -> Finding | None:
        """The first of the two comparisons that holds."""
        if seen.now is None:
            return None
        looks = plan.num_looks
        pairs = [(seen.baseline, looks)] + ([(seen.best, looks * (looks - 1) / 2)] if seen.best is not seen.baseline else [])
        for before, comparisons in pairs:
            found = self._against(before, seen.now, plan.rate / 2 / comparisons, plan.seed)
            if found is not None:
                return found
        return None

    def _against(self, before: Look, now: Look, tail: float, seed: int) -> Finding | None:
        score = _change(before, now, "score", 1.0, self.level, tail, seed)
        proxy = _change(before, now, "proxy", 1.0, 0.0, _RISE, seed)
        if score is None or proxy is None or not (score.high < 0 < proxy.low):
            return None
        sentence = (
            f"the training reward rose from {before.values['proxy']:.4g} to {now.values['proxy']:.4g} on the held-out prompts while the "
            f"independent score fell from {before.values['score']:.4g} (step {before.step}) to {now.values['score']:.4g}: change "
            f"{score.estimate - self.level:+z.4g}, at most {score.high - self.level:+z.4g} with {score.confidence:z.4%} confidence, paired "
            f"over {score.num_units} prompts"
        )
        numbers = {"score_change": score.estimate - self.level, "score_change_high": score.high - self.level}
        return Finding(self.name, sentence, {**numbers, "proxy_change": proxy.estimate, "proxy_change_low": proxy.low}, before)


@dataclass(frozen=True)
class Drift:
    """Mean over prompts of after - scale x before - shift lies beyond 0: e.g. twice as long (scale 2), or .2 more repetition (shift .2)."""

    name: str
    value: str
    direction: Direction
    scale: float = 1.0
    shift: float = 0.0

    def rate(self, plan: Plan) -> float:
        """At the edge, where the policy truly is at the level; an unchanged policy trips far less often."""
        return plan.rate

    def judge(self, seen: Seen, plan: Plan) -> Finding | None:
        """Against the look before step 1."""
        if seen.now is None:
            return None
        sign = 1.0 if self.direction is Direction.ABOVE else -1.0
        found = _change(seen.baseline, seen.now, self.value, self.scale, -self.shift, plan.rate / plan.num_looks, plan.seed)
        if found is None or not (found.low > 0 if sign > 0 else found.high < 0):
            return None
        before, after = seen.baseline.values[self.value], seen.now.values[self.value]
        level = self.scale * before + self.shift
        sentence = (
            f"{_WORDS[self.value]} went from {before:.4g} to {after:.4g} ({UNITS[self.value]}), {self.direction} {level:.4g} "
            f"by more than chance allows ({found.confidence:z.4%} interval of the excess, paired over {found.num_units} prompts: "
            f"[{found.low:+z.4g}, {found.high:+z.4g}])"
        )
        return Finding(self.name, sentence, {"before": before, "after": after, "level": level}, seen.baseline)


@dataclass(frozen=True)
class NegativeKL:
    """Mean k1 over the answers of the panel below -``level`` nats per sequence."""

    level: float = 1.0
    name: str = "negative_kl"

    def rate(self, plan: Plan) -> float:
        """The level moves down where a small panel could not hold the rate: K exp(-n level) <= rate."""
        return plan.rate

    def judge(self, seen: Seen, plan: Plan) -> Finding | None:
        """This look alone."""
        if seen.now is None:
            return None
        count = len(seen.now.answers)
        level = max(self.level, math.log(plan.num_looks / plan.rate) / count)
        kl = seen.now.values["kl_sequence"]
        if not kl < -level:
            return None
        sentence = (
            f"KL(policy || reference) is estimated at {kl:.4g} nats per sequence over {count} answers. A KL is never negative, and if "
            f"these answers came from the policy that is read, its estimate lies below {-level:.3g} with probability at most "
            f"{_small(count * level)}"
        )
        return Finding(self.name, sentence, {"kl_sequence": kl, "level": -level}, seen.baseline)


@dataclass(frozen=True)
class StepRule:
    """A metric of the training steps on the wrong side of ``level`` (or at it) for ``window(plan)`` steps without a break."""

    name: str
    metric: str
    direction: Direction
    level: float

    def window(self, plan: Plan) -> int:
        """Smallest W with steps x q^W <= rate, at least 3. Example: 100 steps, rate .005 -> 5."""
        return max(3, math.ceil(math.log(plan.num_steps / plan.rate) / -math.log(HEALTHY_STEP) - 1e-9))

    def rate(self, plan: Plan) -> float:
        """For steps that are beyond the level one time in ten, independently."""
        return min(plan.rate, plan.num_steps * HEALTHY_STEP ** self.window(plan))

    def judge(self, seen: Seen, plan: Plan) -> Finding | None:
        """The last steps, look or no look."""
        window = self.window(plan)
        values = list(seen.training.get(self.metric, ()))[-window:]
        beyond = [v >= self.level if self.direction is Direction.ABOVE else v <= self.level for v in values]
        if len(values) < window or not all(beyond):
            return None
        sentence = (
            f"{self.metric} was {self.direction} {self.level:g} (or at it) in each of the last {window} steps: "
            f"{', '.join(f'{v:.3g}' for v in values)}"
        )
        return Finding(self.name, sentence, {"last": values[-1], "level": self.level, "steps": window}, seen.baseline)


_WORDS = {
    "length": "the mean length of the answers",
    "entropy": "the entropy of the policy",
    "distinct": "the share of distinct answers",
    "repeat": "repetition inside an answer",
}


def outer_interval(before: Sequence[float], after: Sequence[float], tail: float, seed: int) -> Interval:
    """Of mean(after - before) over pairs: the outer one of paired percentile bootstrap and Student's t, ``tail`` on each side.

    The bootstrap alone is too narrow for few units and far tails (Hesterberg 2015, 1411.5279); t alone does not see skewness.
    """
    t = _student_interval(before, after, tail)
    resamples = min(100_000, max(4_000, math.ceil(20 / tail)))
    found = paired_bootstrap(before, after, seed=seed, confidence=t.confidence, num_resamples=resamples)
    return Interval(t.estimate, min(found.low, t.low), max(found.high, t.high), t.confidence, t.num_units)


def _student_interval(before: Sequence[float], after: Sequence[float], tail: float) -> Interval:
    differences = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    n, mean = len(differences), float(differences.mean())
    half = _student(tail, n - 1) * float(differences.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, 1 - 2 * tail, n)


def _change(before: Look, now: Look, name: str, scale: float, offset: float, tail: float, seed: int) -> Interval | None:
    """Interval of the mean of after - scale x before + offset over the prompts that both looks have.

    None with too few of them, or where Student's t alone holds 0: the outer interval would hold it too, and the bootstrap is the dear part.
    """
    columns = zip(before.per_prompt[name], now.per_prompt[name], strict=True)
    pairs = [(scale * b - offset, a) for b, a in columns if math.isfinite(b) and math.isfinite(a)]
    old, new = [b for b, _ in pairs], [a for _, a in pairs]
    if len(pairs) < _FEWEST or not _student_interval(old, new, tail).excludes_zero:
        return None
    return outer_interval(old, new, tail, seed)


def _student(tail: float, freedom: int) -> float:
    """Upper quantile of Student's t by its expansion in 1 / freedom (Abramowitz and Stegun 26.7.5). Example: .025, 31 -> 2.040."""
    z, n = NormalDist().inv_cdf(1 - tail), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _small(exponent: float) -> str:
    """exp(-exponent) in print; far below the floats it is a bound in words."""
    return f"{math.exp(-exponent):.2g}" if exponent < 600 else "1e-260"
