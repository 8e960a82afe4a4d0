"""Single judgements with the side on which the preferred answer stood: those of a database, or what the columns of a file tell of them.

An exported row counts them (``votes_chosen``, ``votes_rejected``). A file of somebody else's may say of each pair's one judge which answer
stood first (``chosen_shown_first``, 0 or 1).

A file without ties lacks the pairs on which as many judges were for each answer; those are the ones that a lean to a side decides, so there
only pairs with an odd number of decided judgements count: none of these can be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.run.reward_audit.pairs import SHOWN_FIRST, VOTES, Vote

__all__ = ["Sides", "sides_of"]

Array = NDArray[np.float64]
_UNDECIDED = "no judgement in these data prefers an answer"
_EXPORT = "export the pairs anew with `tether collect export --ties both_orders`, or audit the database itself"


@dataclass(frozen=True, slots=True)
class Sides:
    """One entry a decided judgement: ``won``, the chance that the pair's chosen answer was preferred; ``first``, whether it was shown
    first; ``at``, the pair. ``missing``: why there are none, as the end of a sentence."""

    won: Array
    first: Array
    at: NDArray[np.intp]
    source: str = ""
    missing: str = ""

    @classmethod
    def of(cls, told: list[tuple[float, float, int]], source: str) -> Sides:
        won, first, at = (np.array([row[k] for row in told], dtype=float) for k in range(3))
        return cls(won, first, at.astype(np.intp), source)

    @classmethod
    def none(cls, missing: str) -> Sides:
        return cls(np.empty(0), np.empty(0), np.empty(0, dtype=np.intp), missing=missing)


def sides_of(rows: Sequence[Mapping[str, Any]], labels: Sequence[float], votes: Sequence[Sequence[Vote]]) -> Sides:
    """What is known of the sides of pairs: from ``votes``, empty where these are not known, or from ``rows``."""
    if votes:
        told = [(float(vote.outcome > 0), float(vote.chosen_first), at) for at, own in enumerate(votes) for vote in own if vote.outcome]
        return Sides.of(told, f"single judgements of {len({at for *_, at in told})} pairs") if told else Sides.none(_UNDECIDED)
    column = next((name for name in (VOTES[0], SHOWN_FIRST) if any(row.get(name) is not None for row in rows)), None)
    if column is None:
        return Sides.none("nothing in these data says which of two answers the judges were shown first")
    known = {at: cells for at, row in enumerate(rows) if (cells := _cells(row, labels[at])) is not None}
    if not known:
        return Sides.none(
            f"`{SHOWN_FIRST}` says how many judges saw the chosen answer first, not which answer they then preferred; {_EXPORT}, which "
            f"tells it (`{VOTES[0]}`, `{VOTES[1]}`)"
        )
    if 0.5 not in labels:
        known = {at: cells for at, cells in known.items() if sum(count for *_, count in cells) % 2}
        if not known:
            return Sides.none(f"pairs on which as many judges were for each answer are not in this file, and these tell it; {_EXPORT}")
    told = [(won, first, at) for at, cells in known.items() for won, first, count in cells for _ in range(count)]
    if not told:
        return Sides.none(_UNDECIDED)
    left = len(rows) - len(known)
    return Sides.of(told, f"{len({at for *_, at in told})} pairs, column {column}" + (f"; {left} pairs do not tell" if left else ""))


def _cells(row: Mapping[str, Any], label: float) -> list[tuple[float, float, int]] | None:
    """(chosen won, chosen shown first, judgements) of a row; None where it does not tell."""
    if row.get(VOTES[0]) is not None:
        (chosen_first, chosen_second), (rejected_first, rejected_second) = (row[name] for name in VOTES)
        return [(1.0, 1.0, chosen_first), (1.0, 0.0, chosen_second), (0.0, 0.0, rejected_first), (0.0, 1.0, rejected_second)]
    share = row.get(SHOWN_FIRST)
    if share is None or share not in (0, 1) or (row.get("num_judgements") or 1) != 1:
        return None
    return [(label, float(share), 1)]  # the label is all that is known, and may be a probability
