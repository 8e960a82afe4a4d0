"""Accuracy by what is known of the pairs: a column of their rows, the length of their answers, who judged, which answer was shown first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.errors import ConfigError
from tether.rewards.features import BUILT_IN, answer_text
from tether.run.reward_audit.figures import correct, share_interval
from tether.run.reward_audit.judged import Judged, interval_dict, nll
from tether.run.reward_audit.pairs import SHOWN_FIRST, VOTES, AuditPairs
from tether.run.reward_audit.sides import sides_of

__all__ = ["check_slices", "slices"]

Array = NDArray[np.float64]
_LONGEST_NAME = 40  # characters of a value that a table shows
ANNOTATOR, SIDE = "annotator", "side"
"""Slices that are made from single judgements, or, the side, from the column that tells it; a column of that name goes first."""


def check_slices(given: AuditPairs, columns: Sequence[str]) -> None:
    """Raises ConfigError for a slice that no row tells anything about."""
    known = {name for row in given.rows for name in row if row[name] is not None} | _made(given)
    for column in columns:
        if column not in known:
            raise ConfigError(f"--slice {column}: no row has this column; known: {', '.join(sorted(known)) or 'none'}")
    if SIDE in columns and not any(row.get(SIDE) is not None for row in given.rows):
        sides = sides_of(given.rows, [pair.label for pair in given.pairs], given.votes)
        if sides.missing:
            raise ConfigError(f"--slice {SIDE} cannot be told: {sides.missing}")


def _made(given: AuditPairs) -> set[str]:
    if given.votes:
        return {ANNOTATOR, SIDE}
    return {SIDE} if any(row.get(name) is not None for row in given.rows for name in (SHOWN_FIRST, *VOTES)) else set()


def slices(judged: Judged, columns: Sequence[str]) -> list[dict[str, Any]]:
    """One table for every column, and one by quartile of length."""
    return [*(_by(column, judged) for column in columns), _by_length(judged)]


def _by(column: str, judged: Judged) -> dict[str, Any]:
    told = [row.get(column) for row in judged.rows]
    if all(value is None for value in told):
        if column == ANNOTATOR and judged.votes:
            return _by_annotator(judged)
        if column == SIDE:
            return _by_side(judged)
    return _table(column, ["not told" if value is None else str(value) for value in told], judged)


def _by_annotator(judged: Judged) -> dict[str, Any]:
    """Against the word of each, not the majority."""
    told = sorted((vote.annotator, at, vote.outcome) for at, votes in enumerate(judged.votes) for vote in votes if vote.outcome)
    rows = []
    for name in dict.fromkeys(name for name, _, _ in told):
        own = [(at, outcome) for who, at, outcome in told if who == name]
        at, sign = np.array([at for at, _ in own]), np.array([float(outcome) for _, outcome in own])
        gap, ones = judged.gap_B[at] * sign, np.ones(len(at))
        rows.append(_row(name, correct(gap, ones), nll(gap, ones), [judged.cluster[k] for k in at]))
    return {"title": "annotator: against each one's own decided judgements", "rows": rows}


def _by_side(judged: Judged) -> dict[str, Any]:
    """Against each single judgement: one pair has been shown in both orders."""
    sides = sides_of(judged.rows, judged.label_B.tolist(), judged.votes)
    won, at = sides.won > 0.5, sides.at
    gap = judged.gap_B[at] * np.where(won, 1.0, -1.0)
    ones = np.ones(len(gap))
    right, losses = correct(gap, ones), nll(gap, ones)
    shown_first = (sides.first > 0.5) == won
    rows = []
    for value, own in (("preferred answer shown first", shown_first), ("preferred answer shown second", ~shown_first)):
        own &= sides.won != 0.5
        if own.any():
            rows.append(_row(value, right[own], losses[own], [judged.cluster[k] for k in at[own]]))
    return {"title": "side: against single decided judgements, by where the preferred answer stood", "rows": rows}


def _by_length(judged: Judged) -> dict[str, Any]:
    words = np.array([(BUILT_IN["length"](answer_text(p.chosen)) + BUILT_IN["length"](answer_text(p.rejected))) / 2 for p in judged.pairs])
    edges = np.unique(np.quantile(words, [0.25, 0.5, 0.75]))
    place = np.searchsorted(edges, words, side="left")
    names = [f"{words[place == k].min():g} to {words[place == k].max():g}" if (place == k).any() else "" for k in range(len(edges) + 1)]
    return _table("mean words of both answers, by quartile", [names[k] for k in place], judged, order=names)


def _table(title: str, keys: Sequence[str], judged: Judged, order: Sequence[str] | None = None) -> dict[str, Any]:
    rows = []
    losses = nll(judged.gap_B, judged.label_B)
    for key in dict.fromkeys(order or sorted(set(keys))):
        own = np.array([k == key for k in keys])
        if own.any():
            rows.append(_row(key, judged.right_B[own], losses[own], [judged.cluster[k] for k in np.flatnonzero(own)]))
    return {"title": title, "rows": rows}


def _row(value: str, right: Array, losses: Array, cluster: Sequence[int]) -> Mapping[str, Any]:
    accuracy = interval_dict(share_interval(right, cluster))
    if len(value) > _LONGEST_NAME:  # both ends: names of checkpoints differ in the last letters
        value = f"{value[: _LONGEST_NAME // 2 - 1]}…{value[-_LONGEST_NAME // 2 :]}"
    return {"value": value, "pairs": len(right), "prompts": len(set(cluster)), "accuracy": accuracy, "nll": float(losses.mean())}
