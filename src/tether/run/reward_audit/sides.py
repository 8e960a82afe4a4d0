"""Single judgements with the side on which the preferred answer stood: those of a database, or what the columns of a file tell of them.

An exported row tells of n judgements, w_c of them for chosen, w_r for rejected, in how many the answer shown first won (W, from
``first_shown_won``) and in how many chosen was shown first (F, from ``chosen_shown_first``). Those that are for chosen and saw it first:

    c = (W + F - w_r) / 2        those for rejected that saw it first: W - c

F counts ties too; of these the share F / n is taken off and c is rounded, which is exact for up to one tie.

Without ``first_shown_won``, W is known only where all judges of a pair saw the same order (F = 0 or F = n). A file without ties lacks the
pairs on which as many judges were for each answer; those are the ones that a lean to a side decides, so there only pairs with an odd number
of decided judgements count: none of these can be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.run.reward_audit.pairs import FIRST_WON, SHOWN_FIRST
from tether.run.reward_audit.votes import Vote

__all__ = ["Sides", "sides_of"]

Array = NDArray[np.float64]
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
        return Sides.of(told, f"single judgements of {len({at for *_, at in told})} pairs")
    column = next((name for name in (FIRST_WON, SHOWN_FIRST) if any(row.get(name) is not None for row in rows)), None)
    if column is None:
        return Sides.none("nothing in these data says which of two answers the judges were shown first")
    known = {at: cells for at, row in enumerate(rows) if (cells := _cells(row, labels[at])) is not None}
    if not known:
        return Sides.none(
            f"`{SHOWN_FIRST}` says how many judges saw the chosen answer first, not which answer they then preferred, and the sides of "
            f"these pairs are balanced; {_EXPORT}, which tells it (`{FIRST_WON}`)"
        )
    if 0.5 not in labels:
        known = {at: cells for at, cells in known.items() if round(sum(weight for *_, weight in cells)) % 2}
        if not known:
            return Sides.none(f"pairs on which as many judges were for each answer are not in this file, and these tell it; {_EXPORT}")
    told = [(won, first, at) for at, cells in known.items() for won, first, weight in cells for _ in range(round(weight))]
    if not told:
        return Sides.none("no judgement in these data prefers an answer")
    left = len(rows) - len(known)
    return Sides.of(told, f"{len({at for *_, at in told})} pairs, column {column}" + (f"; {left} pairs do not tell" if left else ""))


def _cells(row: Mapping[str, Any], label: float) -> list[tuple[float, float, float]] | None:
    """(chosen won, chosen shown first, judgements) of a row; None where it does not tell."""
    share: Any = row.get(SHOWN_FIRST)
    first_won, count = row.get(FIRST_WON), row.get("num_judgements") or 1
    if first_won is None and share not in (0, 1):
        return None
    if count == 1 and share in (0, 1) and row.get("agreement") is None:
        return [(label, float(share), 1.0)]  # a file of somebody else's: the label is all that is known, and may be a probability
    label_of_winner = max(label, 1 - label)
    agreement = row["agreement"] if row.get("agreement") is not None else label_of_winner
    counts = round(count * agreement), max(0, round(count * (1 + agreement - 2 * label_of_winner)))
    for_chosen, for_rejected = counts if label >= 0.5 else counts[::-1]
    decided = for_chosen + for_rejected
    if first_won is None:
        return [(1.0, float(share), for_chosen), (0.0, float(share), for_rejected)]
    won = round(first_won * decided)
    low, high = max(0, won - for_rejected), min(for_chosen, won)
    shown_first = decided * share if share is not None else low + high + for_rejected - won
    chosen_first = min(max(round((won + shown_first - for_rejected) / 2), low), high)
    rejected_first = won - chosen_first
    return [
        (1.0, 1.0, chosen_first), (1.0, 0.0, for_chosen - chosen_first),
        (0.0, 0.0, rejected_first), (0.0, 1.0, for_rejected - rejected_first),
    ]  # fmt: skip
