"""How much of a run a page shows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIMITS", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is shown: held-out prompts, training samples per stage, characters per text, points per
    curve.
    """

    prompts: int
    samples: int
    characters: int
    points: int


# Tried in turn until the page is small enough.
LIMITS = (
    Limits(400, 60, 4000, 240),
    Limits(200, 40, 1500, 160),
    Limits(60, 20, 800, 80),
    Limits(15, 6, 300, 40),
    Limits(3, 2, 100, 16),
)
