"""Does the place of an answer on the judges' page decide what they say, and is that in the labels? A reward model reads one answer at a
time and cannot see a place: what its agreement with the judgements owes to the place, the judgements owe to it.

With x = +1 where the preferred answer was shown first (left, or above) and -1 where it was second:

    judges   log-odds of preferring an answer  = b (+1 shown first, -1 shown second)
    model    log-odds of agreeing with a word  = a + c x

Sides drawn at random and judges who do not lean: b = c = 0. Judges who lean to the first answer: b > 0, and c < 0, for words that the place
decided are words that no reading of the texts predicts. c > 0 cannot come from judges: the texts then tell the place, as they do where
one kind of answer was always shown on one side.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.run.reward_audit.figures import log_odds, share_interval
from tether.run.reward_audit.judged import Judged, interval_dict
from tether.run.reward_audit.sides import Sides, sides_of

__all__ = ["against_single_judgements", "position"]

Array = NDArray[np.float64]


def position(judged: Judged) -> dict[str, Any]:
    """Only ``missing``, the reason, where nothing says which answer was shown first. ``judgements``: single decided ones.

    ``first_won``: how often the answer that was shown first was preferred; ``judges``: b, ``model``: c of the module's docstring.
    """
    sides = sides_of(judged.rows, judged.label_B.tolist(), judged.votes)
    if sides.missing:
        return {"missing": sides.missing}
    won, first = sides.won, sides.first
    x = 2 * first - 1
    cluster = [judged.cluster[k] for k in sides.at]
    (lean,) = log_odds(["shown first"], x[:, None], won, cluster)
    known, agrees, of_known = _agreement(judged, sides)
    shown = np.where(won > 0.5, x, -x)[known]  # of the preferred answer
    design = np.column_stack([np.ones(len(shown)), shown])
    model = log_odds(["agreement", "preferred answer shown first"], design, agrees, of_known)[1]
    first_won = won * first + (1 - won) * (1 - first)
    return {
        "source": sides.source,
        "judgements": len(won),
        "first_won": interval_dict(share_interval(first_won, cluster)),
        "judges": asdict(lean),
        "model": asdict(model),
    }


def against_single_judgements(judged: Judged) -> dict[str, Any] | None:
    """How often it agrees with a single decided judgement, which is what the ceiling is about; None where none is told by itself."""
    _, agrees, cluster = _agreement(judged, sides_of(judged.rows, judged.label_B.tolist(), judged.votes))
    return interval_dict(share_interval(agrees, cluster)) if len(agrees) else None


def _agreement(judged: Judged, sides: Sides) -> tuple[NDArray[np.bool_], Array, list[int]]:
    """Which judgements are decided, and of these: whether the model prefers the answer that was preferred, and the prompt."""
    known = sides.won != 0.5
    at = sides.at[known]
    agrees = np.where(sides.won[known] > 0.5, judged.preferred_B[at], 1 - judged.preferred_B[at])
    return known, agrees, [judged.cluster[k] for k in at]
