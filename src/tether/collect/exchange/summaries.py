"""Rows of our own pairs export at an import, and rows with a share of votes as `label`: one row sums up the judgements of a pair, and
nothing in it says who said what.

Taken as it is, a majority of three would become one certain vote, and a tie written in both orders two opposite ones. Such a file is
refused; who has nothing else may take each pair as one vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tether.collect.exchange.given import Imported, Parser
from tether.collect.exchange.rule import COLUMNS
from tether.errors import DataError

__all__ = ["one_vote_each", "refuse_summaries"]

_MARKS = ("soft_label", "num_judgements", "agreement")
_OWN = {*COLUMNS} - {"prompt", "chosen", "rejected", "margin", "strength"}
_SHARE = "`label` between 0 and 1, a share of votes, taken as one vote"
_VOTE = "summary of a pair's judgements (pairs export), taken as one vote"
_TIE = "tie of a pairs export, its two rows taken as one vote for neither"


def refuse_summaries(rows: Sequence[Mapping[str, Any] | DataError], source: str) -> None:
    """Raises DataError where a row is one."""
    if found := sum(map(_is_summary, rows)):
        raise DataError(
            f"{source}: {found} of {len(rows)} rows are pairs that `tether collect export` wrote ({', '.join(_MARKS)}): each sums up what "
            "several people said. Export the judgements instead (tether collect export DATABASE FILE --rows judgements, then import "
            "--format judgements), or copy the database (tether collect dump, load). If this file is all there is, --summaries as_votes "
            "takes each pair as one vote of one annotator"
        )


def one_vote_each(parse: Parser) -> Parser:
    """The parser, with every summary one vote: for the chosen answer, or for neither where the soft label is 0.5. The second row of a tie
    in both orders gives nothing more. A `label` between 0 and 1 is a vote for the side that has more. For one file: it remembers the ties
    it has met.
    """
    waiting: Counter[tuple[str, ...]] = Counter()

    def parse_summary(row: Mapping[str, Any]) -> Iterator[Imported]:
        if not _is_summary(row):
            yield from _one_vote(parse, row)
            return
        if not isinstance(row["soft_label"], int | float) or not 0.5 <= row["soft_label"] <= 1:
            raise DataError(f"`soft_label` of an exported pair must be a number from 0.5 to 1, got {row['soft_label']!r:.40}.")
        if row["soft_label"] > 0.5:
            yield from (replace(one, notes=(*one.notes, _VOTE)) for one in parse(_without_own(row)))
            return
        pair = tuple(repr(row.get(name)) for name in ("item_id", "prompt", "chosen", "rejected"))
        twin = (*pair[:2], pair[3], pair[2])
        if waiting[twin]:
            waiting[twin] -= 1
            return
        waiting[pair] += 1
        for one in parse(_without_own(row)):
            words = tuple(replace(word, tiers=((0, 1),), strength=None) for word in one.words)
            yield replace(one, words=words, notes=(*one.notes, _TIE))

    return parse_summary


def _one_vote(parse: Parser, row: Mapping[str, Any]) -> Iterator[Imported]:
    """A row that is no summary of ours."""
    share = row.get("label")
    if "chosen" not in row or isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1 or share == 0.5:
        yield from parse(row)
        return
    for one in parse({**row, "label": float(share > 0.5)}):
        yield replace(one, notes=(*one.notes, _SHARE))


def _without_own(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without the columns that say of how many votes it is the summary."""
    return {name: value for name, value in row.items() if name not in _OWN}


def _is_summary(row: Any) -> bool:
    return isinstance(row, Mapping) and all(name in row for name in _MARKS)
