"""How many judgements are needed for an interval of a wanted width, before anybody is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from tether.collect.stats.ceiling import MIN_UNITS, expected_ceiling, product_variance
from tether.errors import ConfigError

__all__ = ["Plan", "plan_ceiling", "plan_share"]


@dataclass(frozen=True, slots=True)
class Plan:
    """``num_items`` distinct pairs of answers of ``judgements_per_item`` each; ``half_width`` of the interval that they give."""

    num_items: int
    judgements_per_item: int
    half_width: float
    confidence: float

    @property
    def num_judgements(self) -> int:
        """In all."""
        return self.num_items * self.judgements_per_item


def plan_share(half_width: float, *, share: float = 0.5, confidence: float = 0.95) -> Plan:
    """Judgements for a share (left share, tie rate, accuracy on gold, accuracy of a reward model) within +- ``half_width``.

    n = z^2 share (1 - share) / half_width^2, one judgement an item. ``share`` = 0.5 is the most that can be needed.
    Example: 0.05 -> 385 judgements; 0.02 -> 2401.
    """
    _check(half_width, confidence)
    if not 0 < share < 1:
        raise ConfigError(f"share must be between 0 and 1, got {share}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return Plan(max(1, math.ceil(z * z * share * (1 - share) / half_width**2 - 1e-9)), 1, half_width, confidence)


def plan_ceiling(
    half_width: float, *, agreement: float = 0.75, tie_share: float = 0.0, judgements_per_item: int = 2, confidence: float = 0.95
) -> Plan:
    """Items that so many different people must judge for the ceiling within +- ``half_width``, by the delta method.

    ``agreement``: of two people on pairs that both decide, as expected; with d = 1 - tie_share, E e^2 = d^2 (2 agreement - 1). The
    variance of a unit's mean product is that of normal quality gaps. Items stand for prompts: several items of one prompt count for less.

    Example: 0.02 at an agreement of 0.75, two judgements each -> 1070 items; three each -> 595.
    """
    _check(half_width, confidence)
    if not 0.5 < agreement < 1:
        raise ConfigError(f"agreement of two people must be above 0.5 (coin tosses) and below 1, got {agreement}")
    if not 0 <= tie_share < 1:
        raise ConfigError(f"tie_share must be at least 0 and below 1, got {tie_share}")
    if judgements_per_item < 2:
        raise ConfigError(f"the ceiling needs 2 judgements an item or more, got {judgements_per_item}")
    decided = 1 - tie_share
    moment = decided**2 * (2 * agreement - 1)
    step = 1e-3 * moment
    slope = (expected_ceiling(moment + step, decided) - expected_ceiling(moment - step, decided)) / (2 * step)
    variance = product_variance(moment, decided, judgements_per_item)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return Plan(max(MIN_UNITS, math.ceil((z * slope / half_width) ** 2 * variance)), judgements_per_item, half_width, confidence)


def _check(half_width: float, confidence: float) -> None:
    if not 0 < half_width < 0.5:
        raise ConfigError(f"half_width must be above 0 and below 0.5, got {half_width}")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must be between 0 and 1, got {confidence}")
