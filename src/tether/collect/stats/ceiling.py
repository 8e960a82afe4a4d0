"""The ceiling: how often the best possible reward model can agree with a single judgement, measured from how often people disagree.

Let d_u be the chance that a judgement of unit u is decided (no tie) and e_u = P(first) - P(second), over annotators and sides. The model
that knows who is preferred by most is right on a decided judgement with probability

    ceiling = 1/2 + E|e_u| / (2 E d_u)          (on all judgements, a tie earning one half: 1/2 + E|e_u| / 2)

What can be measured without any assumption about units is the second moment: with outcomes y = +1, 0, -1 of two different people,
E[y y'] = E[e_u^2]. The plug-in E|mean of y| is biased upwards by 10 points and more at two or three judgements a unit (two people agree by
accident half of the time), so it is not used. Two or three judgements a unit carry no information beyond the second moment, hence:

* bounds that assume nothing: E e^2 <= E|e| <= min(sqrt(E e^2), E d);
* an estimate that assumes a shape: the quality gap of the two answers is Normal(0, tau^2) in units of the noise, with ties as in Rao and
  Kupper (1967): P(first) = sigmoid(gap - t), P(second) = sigmoid(-gap - t). tau and t are those that give the measured E e^2 and E d;
  Where some people are known to click by coin (``attention``), e_u = r e'_u with r < 1, and the shape is that of the others' e'_u;
* the same with another shape, P(first | decided) ~ Beta(a, a) and ties unrelated to the gap, as a check of that assumption.

Assumed by all: annotators and sides are assigned at random, people judge without seeing each other, and the units that several people
judged are like those that one person judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tether.collect.stats.reliability import Attention
from tether.collect.stats.votes import Votes
from tether.errors import DataError
from tether.stats import Interval, bootstrap_sums, wilson

__all__ = ["MIN_PROMPTS", "MIN_UNITS", "Ceiling", "ceiling", "ceiling_bounds", "expected_ceiling", "overlap_sums", "product_variance"]

Floats = NDArray[np.float64]

MIN_UNITS, MIN_PROMPTS = 30, 20  # judged by two people; below, a bootstrap over prompts says too little

_NOBODY_CARELESS = Attention()
_Z = np.linspace(0, 6, 161)
_HALF_NORMAL = np.exp(-(_Z**2) / 2) * np.where((_Z == 0) | (_Z == 6), 0.5, 1.0)
_HALF_NORMAL /= _HALF_NORMAL.sum()
_TAUS = np.geomspace(0.02, 40, 80)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """``decided``: ceiling on decided judgements; ``ties_half``: on all, a tie earning one half. ``bounds``: of ``decided``, without a
    shape.

    ``beta``: ``decided`` under the other shape. ``squared_margin``: E e_u^2. ``tau``, ``tie_threshold``: of the fitted noise.
    """

    decided: Interval
    ties_half: Interval
    bounds: tuple[float, float]
    beta: float
    squared_margin: Interval
    decided_share: float
    tau: float
    tie_threshold: float
    num_units: int
    num_prompts: int

    @property
    def like_coins(self) -> bool:
        """True where the judgements cannot be told from coin tosses."""
        return not self.squared_margin.low > 0


def ceiling(
    votes: Votes, *, attention: Attention = _NOBODY_CARELESS, seed: int, confidence: float = 0.95, num_resamples: int = 1000
) -> Ceiling:
    """The ceiling of ``votes``, with bootstrap intervals over prompts. Test questions, repeats of one person and items that
    a strategy chose (they are harder than most) are left out.

    ``attention``: as estimated by :func:`tether.collect.stats.reliability.attention`; the interval takes it as known.

    Raises DataError where fewer than 30 units over 20 prompts were judged by two people: there is no honest number then.
    """
    sums_PD = overlap_sums(votes)
    num_units, num_prompts = int(sums_PD[:, 1].sum()), len(sums_PD)
    if num_units < MIN_UNITS or num_prompts < MIN_PROMPTS:
        raise DataError(
            f"the ceiling needs at least {MIN_UNITS} pairs of answers over {MIN_PROMPTS} prompts that two different people judged, and "
            f"there are {num_units} over {num_prompts}: let a second person judge some of the items, drawn at random"
        )
    if not (0 < attention.single <= 1 and 0 < attention.pair <= 1):
        raise ValueError(f"attention must be above 0 and at most 1, got {attention}")
    if not sums_PD[:, 2].any():
        raise DataError(f"the ceiling needs preferences: all judgements of the {num_units} pairs that two people judged are ties")

    def statistic(sums: Floats) -> Floats:
        moment, decided = sums[:, 0] / sums[:, 1], sums[:, 2] / sums[:, 1]
        apart = attention.single * _mean_margin(moment / attention.pair, decided)
        return np.stack([0.5 + apart / (2 * decided), 0.5 + apart / 2, moment], axis=1)

    found = bootstrap_sums(sums_PD, statistic, seed=seed, confidence=confidence, num_resamples=num_resamples)
    moment, decided = (float(sums_PD[:, c].sum()) / num_units for c in (0, 2))
    if moment >= decided - 1e-12:  # no disagreement was seen: resamples cannot show one
        least = decided * (2 * wilson(num_units, num_units, confidence=confidence).low - 1)
        apart = float(_mean_margin(np.array([least]), np.array([decided]))[0])
        lows = (0.5 + apart / (2 * decided), 0.5 + apart / 2, least)
        found = tuple(Interval(f.estimate, min(f.low, low), f.high, confidence, f.num_units) for f, low in zip(found, lows, strict=True))
    low, high = ceiling_bounds(moment, decided)
    tau, threshold = _fit(moment / attention.pair, decided)
    beta = 0.5 + attention.single * _beta_mean_margin(moment / attention.pair / decided**2) / 2
    return Ceiling(found[0], found[1], (low, high), beta, found[2], decided, tau, threshold, num_units, num_prompts)


def overlap_sums(votes: Votes) -> Floats:
    """Per prompt with a unit that two people judged: sums over such units of (mean product of two people's outcomes, 1, decided share)."""
    keep = votes.first_votes() & votes.random
    unit, outcome = votes.unit[keep], votes.outcome[keep].astype(np.float64)
    n = np.bincount(unit, minlength=votes.num_units)
    total = np.bincount(unit, weights=outcome, minlength=votes.num_units)
    decided = np.bincount(unit, weights=outcome**2, minlength=votes.num_units)
    two = n >= 2
    products = (total[two] ** 2 - decided[two]) / (n[two] * (n[two] - 1))
    prompts, row = np.unique(votes.unit_prompt[two], return_inverse=True)
    columns = (products, np.ones(len(row)), decided[two] / n[two])
    return np.stack([np.bincount(row, weights=column, minlength=len(prompts)) for column in columns], axis=1).astype(np.float64)


def ceiling_bounds(squared_margin: float, decided_share: float) -> tuple[float, float]:
    """What E e^2 and E d alone say about the ceiling on decided judgements. Example: (0.25, 1) -> (0.625, 0.75)."""
    low = min(max(squared_margin, 0.0), decided_share)
    high = min(math.sqrt(low), decided_share)
    return 0.5 + low / (2 * decided_share), 0.5 + high / (2 * decided_share)


def expected_ceiling(squared_margin: float, decided_share: float = 1.0) -> float:
    """The ceiling on decided judgements, for planning: normal quality gaps with this E e^2 and E d."""
    if not 0 < decided_share <= 1:
        raise ValueError(f"decided_share must be above 0 and at most 1, got {decided_share}")
    return 0.5 + float(_mean_margin(np.array([squared_margin]), np.array([decided_share]))[0]) / (2 * decided_share)


def product_variance(squared_margin: float, decided_share: float, num_judgements: int) -> float:
    """Variance over units of the mean product y_i y_j over pairs i < j of ``num_judgements`` people, under normal quality gaps.

    With P pairs: (E d^2 + 2 (m - 2) E d e^2 + (m - 2)(m - 3) / 2 E e^4) / P - (E e^2)^2, from pairs of pairs that share two, one, no
    person.
    """
    tau, threshold = _fit(squared_margin, decided_share)
    gap = tau * _Z
    first, second = _sigmoid(gap - threshold), _sigmoid(-gap - threshold)
    decided, squared, m = first + second, (first - second) ** 2, num_judgements
    two, one, none = (float(values @ _HALF_NORMAL) for values in (decided**2, decided * squared, squared**2))
    return (two + 2 * (m - 2) * one + (m - 2) * (m - 3) / 2 * none) / (m * (m - 1) / 2) - squared_margin**2


# -- normal gaps ---------------------------------------------------------------------------------------------------------------


def _mean_margin(moment_R: Floats, decided_R: Floats) -> Floats:
    """E|e| from E e^2 and E d, by interpolation in a table of (tau, t): root of the moment along tau, then decided share."""
    decided_R = np.maximum(decided_R, 1e-6)  # a resample may have no preference; its ceiling is NaN
    low, high = float(decided_R.min()), float(decided_R.max())
    grid = np.linspace(low, high, 3) if high - low > 1e-9 else np.array([low])
    rows = [_curve(decided) for decided in grid]
    root_R = np.sqrt(np.clip(moment_R, 0, decided_R))
    found_GR = np.stack([np.interp(root_R, roots, margins) for roots, margins, _ in rows])
    if len(grid) == 1:
        return found_GR[0]
    place = np.clip((decided_R - low) / (high - low) * (len(grid) - 1), 0, len(grid) - 1)
    left = np.minimum(place.astype(np.int64), len(grid) - 2)
    share, column = place - left, np.arange(len(root_R))
    return (1 - share) * found_GR[left, column] + share * found_GR[left + 1, column]


def _curve(decided: float) -> tuple[Floats, Floats, Floats]:
    """(sqrt E e^2, E|e|, t) along tau = 0, _TAUS, infinity, with t such that E d is ``decided``."""
    low, high = np.zeros(len(_TAUS)), 6 * _TAUS + 12
    for _ in range(30 if decided < 1 else 0):
        middle = (low + high) / 2
        above = _moments(_TAUS, middle)[2] > decided
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    moment, margin, _ = _moments(_TAUS, low)
    at_zero = math.log(2 / decided - 1)  # 2 sigmoid(-t) = decided
    roots = np.concatenate([[0], np.sqrt(moment), [math.sqrt(decided)]])
    return np.maximum.accumulate(roots), np.concatenate([[0], margin, [decided]]), np.concatenate([[at_zero], low, [low[-1]]])


def _moments(tau: Floats, threshold: Floats) -> tuple[Floats, Floats, Floats]:
    """(E e^2, E|e|, E d) for each pair of tau and t."""
    gap = tau[:, None] * _Z
    first, second = _sigmoid(gap - threshold[:, None]), _sigmoid(-gap - threshold[:, None])
    margin = first - second
    return margin**2 @ _HALF_NORMAL, margin @ _HALF_NORMAL, (first + second) @ _HALF_NORMAL


def _fit(moment: float, decided: float) -> tuple[float, float]:
    """(tau, t); tau is at most the largest of the table."""
    roots, _, thresholds = _curve(decided)
    taus = np.concatenate([[0], _TAUS, [_TAUS[-1]]])
    root = math.sqrt(min(max(moment, 0.0), decided))
    return float(np.interp(root, roots, taus)), float(np.interp(root, roots, thresholds))


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


# -- beta ----------------------------------------------------------------------------------------------------------------------


def _beta_mean_margin(moment: float) -> float:
    """E|2p - 1| of p ~ Beta(a, a) with E(2p - 1)^2 = 1 / (2a + 1) = ``moment``: 2 * 4^-a / (a B(a, a)). Example: 1/3 (uniform) -> 1/2."""
    if moment <= 0:
        return 0.0
    if moment >= 1:
        return 1.0
    a = (1 / moment - 1) / 2
    log_beta = 2 * math.lgamma(a) - math.lgamma(2 * a)
    return math.exp(math.log(2) - a * math.log(4) - math.log(a) - log_beta)
