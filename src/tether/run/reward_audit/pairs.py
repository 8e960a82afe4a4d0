"""The judged pairs that an audit reads, without those of prompts that the model was trained on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tether.collect.exchange.rule import COLUMNS
from tether.collect.exchange.tables import read_table
from tether.collect.recognise import is_database
from tether.config.settings import JudgementsConfig
from tether.errors import DataError
from tether.records import read_judgements, refuse_bad_rows
from tether.rewards.seen import DEMONSTRATED, stored_hashes, was_seen
from tether.run.judged_rows import check_limit, judged_rows
from tether.types import Comparison, Ranking

__all__ = ["SHOWN_FIRST", "VOTES", "AuditPairs", "Ceiling", "Vote", "load_pairs"]

SHOWN_FIRST = "chosen_shown_first"
"""Column of rows: the share of the judgements of the pair in which the chosen answer was shown first (left, or above)."""
VOTES = ("votes_chosen", "votes_rejected")
"""Columns of rows: the judgements for that answer of those who saw it first and of those who saw it second."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One judgement of a pair. ``outcome``: +1 for the answer that the row calls chosen, -1 for the other, 0 a tie or both bad."""

    annotator: str
    outcome: int
    chosen_first: bool


@dataclass(frozen=True)
class Ceiling:
    """Accuracy that a perfect model could reach against a single judgement, as an interval (both ends equal: known), and whence."""

    low: float
    high: float
    source: str
    estimate: float | None = None


@dataclass(frozen=True)
class AuditPairs:
    """``rows[i]`` holds the columns of the row that ``pairs[i]`` came from, and ``votes[i]``, of a database, its single judgements;
    ``num_seen`` pairs were left out. ``no_ceiling``: why a database has none."""

    pairs: tuple[Comparison, ...]
    rows: tuple[Mapping[str, Any], ...]
    source: str = "pairs"
    sha256: str = ""
    num_seen: int = 0
    notes: tuple[str, ...] = field(default=())
    votes: tuple[tuple[Vote, ...], ...] = ()
    ceiling: Ceiling | None = None
    no_ceiling: str = ""


def load_pairs(path: str, split: str | None, limit: int | None, fitted_to: Mapping[str, Any], seed: int = 0) -> AuditPairs:
    """Comparisons of a file or a database, rankings as all their pairs, a tie in both orders as one. Of a database: all pairs of the split
    (held_out unless another is named) that were judged, with their single judgements and the ceiling of all of them; a file of single
    judgements is read as the database it came from. Raises DataError where none is left that is held out.
    """
    rule = JudgementsConfig(ties="both_orders", labels="share")
    more = [name for name in COLUMNS if name not in ("prompt", "chosen", "rejected", "margin")]
    check_limit(path, limit)
    of_database = is_database(path)  # a limit counts its pairs, and a tie is two rows there
    found = judged_rows(path, split, None if of_database else limit, database_split="held_out", judgements=rule, columns=more)
    if not of_database and _names(found.rows.rows) >= _JUDGEMENT:
        return _of_judgements(path, found.rows.sha256, limit, fitted_to, seed)
    rows_read = [_with_label(row) for row in found.rows.rows]
    records = read_judgements(rows_read, found.rows.source)
    _check_sides(rows_read, found.rows.source)
    pairs: list[Comparison] = []
    rows: list[Mapping[str, Any]] = []
    ties = set[tuple[object, ...]]()
    for record, row in zip(records, rows_read, strict=True):
        for pair in [record] if isinstance(record, Comparison) else _pairs_of(record):
            if pair.label == 0.5 and (pair.prompt, pair.rejected, pair.chosen) in ties:
                continue
            ties |= {(pair.prompt, pair.chosen, pair.rejected)} if pair.label == 0.5 else set()
            pairs.append(pair)
            rows.append(row)
    seen = stored_hashes(fitted_to)
    pairs, rows = (pairs[:limit], rows[:limit]) if of_database else (pairs, rows)
    held = [at for at, pair in enumerate(pairs) if not was_seen(pair.prompt, seen)]
    if not held:
        raise DataError(
            f"{path}: the model was trained on the prompts of all {len(pairs)} pairs, so none is held out; give pairs of other prompts"
        )
    notes = () if seen else ("The model does not say which prompts it was trained on: that these pairs are held out is yours to know.",)
    demonstrated = stored_hashes(fitted_to, DEMONSTRATED)
    if known := sum(was_seen(pairs[at].prompt, demonstrated) for at in held):
        notes += (
            f"{known} of the {len(held)} pairs have prompts of the demonstrations that the model under it was fine-tuned on: it has "
            "learned answers to them, so that accuracy on new prompts may be lower.",
        )
    notes += (f"Of the database, a tie in both orders: {found.note}.",) if found.note else ()
    kept_pairs, kept_rows = tuple(pairs[at] for at in held), tuple(rows[at] for at in held)
    common = (found.rows.source, found.rows.sha256, len(pairs) - len(held), notes)
    if not of_database:
        return AuditPairs(kept_pairs, kept_rows, *common)
    from tether.run.reward_audit.votes import read_database

    told = read_database(path, kept_rows, seed)
    ceiling = None
    if told.ceiling.value is not None and told.ceiling.low is not None and told.ceiling.high is not None:
        source = "the database's own judgements, as `tether collect stats` has it"
        ceiling = Ceiling(max(told.ceiling.low, 0.5), min(told.ceiling.high, 1.0), source, told.ceiling.value)
    return AuditPairs(kept_pairs, kept_rows, *common, told.votes, ceiling, told.ceiling.missing)


_JUDGEMENT = {"answers", "choice", "annotator", "shown"}
"""Columns by which a row of `tether collect export --rows judgements` is known."""


def _names(rows: Sequence[Any]) -> set[str]:
    return {str(name) for row in rows[:1] if isinstance(row, Mapping) for name in row}


def _of_judgements(path: str, sha256: str, limit: int | None, fitted_to: Mapping[str, Any], seed: int) -> AuditPairs:
    """By way of a database of their own, read whole. Where a strategy chose hard items there is no ceiling: which ones were drawn at random
    is not in the file."""
    from tether.collect.exchange.imported import import_rows
    from tether.collect.exchange.judgement_rows import judgements
    from tether.collect.settings import CHOOSING, Settings
    from tether.collect.store import Store

    rows = read_table(Path(path).expanduser())
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "judgements.db")
        with Store.create(place, Settings(held_out_share=0.0)) as store:
            import_rows(store, rows, judgements(), path)
        try:
            found = load_pairs(place, "all", limit, fitted_to, seed)
        except DataError as error:
            raise DataError(str(error).replace(place, path)) from error
    found = replace(found, source=f"{path} [single judgements]", sha256=sha256)
    if any(row.get("chosen_by") in CHOOSING for row in rows if isinstance(row, Mapping)):
        return replace(found, ceiling=None, no_ceiling="items were chosen for being hard; ask the database itself (`tether collect stats`)")
    ceiling = found.ceiling and replace(found.ceiling, source="the judgements of the file, as `tether collect stats` has it")
    return replace(found, ceiling=ceiling)


def _with_label(row: Any) -> Any:
    """An exported row says in `soft_label` what a file of comparisons says in `label`."""
    if not isinstance(row, Mapping) or row.get("label") is not None or row.get("soft_label") is None:
        return row
    return {**row, "label": row["soft_label"]}


def _check_sides(rows: Sequence[Mapping[str, Any]], source: str) -> None:
    wrong: dict[int, str] = {}
    for at, row in enumerate(rows, 1):
        share, counts = row.get(SHOWN_FIRST), [row.get(name) for name in VOTES]
        if share is not None and (not isinstance(share, int | float) or not 0 <= share <= 1):
            wrong[at] = f"`{SHOWN_FIRST}` must be a share from 0 to 1, got {share!r:.40}."
        elif counts != [None, None] and not all(_two_counts(one) for one in counts):
            wrong[at] = f"`{VOTES[0]}` and `{VOTES[1]}` must be two counts each, got {counts[0]!r:.40} and {counts[1]!r:.40}."
    refuse_bad_rows(wrong, source, len(rows))


def _two_counts(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int and one >= 0 for one in value)


def _pairs_of(ranking: Ranking) -> Sequence[Comparison]:
    order = sorted(range(len(ranking.answers)), key=lambda k: (ranking.places[k], k))
    return [
        Comparison(ranking.prompt, ranking.answers[i], ranking.answers[j], label=0.5 if ranking.places[i] == ranking.places[j] else 1.0)
        for at, i in enumerate(order)
        for j in order[at + 1 :]
    ]
