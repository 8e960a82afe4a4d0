"""Comparisons out of the database: as rows in TRL's preference format, as files, as ``tether.types.Comparison``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from tether.collect import schema
from tether.collect.adding import answers_of_items, chunks
from tether.collect.codec import judgement_of, text_from_json
from tether.collect.engine import Connection, reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Text
from tether.collect.exchange.rule import Decision, Rule, decide, pair_votes
from tether.collect.exchange.tables import write_table
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.store import Store
from tether.errors import ConfigError, DataError
from tether.types import Comparison, Message

__all__ = ["COLUMNS", "ExportReport", "Exported", "Format", "as_comparisons", "comparisons", "export_file", "export_rows"]

Format = Literal["auto", "plain", "conversational"]

COLUMNS = (
    "prompt", "chosen", "rejected", "margin", "strength", "num_judgements", "agreement", "soft_label", "item_id", "prompt_id", "chosen_by",
)  # fmt: skip
"""Of every exported row, in this order."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One comparison with what is known of it."""

    prompt: Text
    chosen: Text
    rejected: Text
    decision: Decision
    item_id: str
    prompt_id: str
    chosen_by: str | None


@dataclass(slots=True)
class ExportReport:
    """Counts of an export: every pair of answers of an item is a row (two for a tie under "both_orders") or ``left_out`` under a reason."""

    rows: int = 0
    pairs: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        return f"{self.rows} rows of {self.pairs} pairs" + (f"; left out: {reasons}" if reasons else "")


def comparisons(store: Store, rule: Rule, report: ExportReport | None = None) -> Iterator[Exported]:
    """The comparisons in the order of their items, one consistent view; ``report`` is filled in on the way."""
    report = ExportReport() if report is None else report
    rule = replace(rule, without=_ids(store, rule.without))
    with reading(store.engine) as connection:
        for items in chunks(_items(connection)):
            yield from _of_items(connection, items, rule, report)


def export_rows(store: Store, rule: Rule, report: ExportReport | None = None, format: Format = "auto") -> Iterator[dict[str, Any]]:
    """The comparisons as rows with ``COLUMNS``. "auto": plain strings if all stored texts are, else conversational. Raises DataError where
    "plain" is asked and a text is a conversation."""
    form = _plain if _all_plain(store, format) else _turns
    for one in comparisons(store, rule, report):
        yield {
            "prompt": form(one.prompt, "user"),
            "chosen": form(one.chosen, "assistant"),
            "rejected": form(one.rejected, "assistant"),
            "margin": one.decision.margin,
            "strength": one.decision.strength and one.decision.strength.value,
            "num_judgements": one.decision.num_judgements,
            "agreement": one.decision.agreement,
            "soft_label": one.decision.soft_label,
            "item_id": one.item_id,
            "prompt_id": one.prompt_id,
            "chosen_by": one.chosen_by,
        }


def export_file(store: Store, path: str | Path, rule: Rule, format: Format = "auto") -> ExportReport:
    """Write the rows to a .jsonl, .parquet or .csv file, whole or not at all (CSV: see ``tables``). DataError where none are left."""
    report = ExportReport()
    write_table(path, _refuse_none(export_rows(store, rule, report, format), store.place, report))
    return report


def as_comparisons(store: Store, rule: Rule) -> tuple[list[Comparison], ExportReport]:
    """What a reward model or a direct method trains on."""
    report = ExportReport()
    found = [Comparison(one.prompt, one.chosen, one.rejected, one.decision.margin) for one in comparisons(store, rule, report)]
    return found, report


def _ids(store: Store, wanted: Sequence[str]) -> tuple[str, ...]:
    """Annotators by id or name. Raises ConfigError for one that nobody has: a misspelt name would leave its votes in."""
    known = store.annotators()
    by_word = {one.name: one.id for one in known} | {one.id: one.id for one in known}
    if unknown := [word for word in wanted if word not in by_word]:
        there = ", ".join(f"{one.id} ({one.name})" for one in known) or "none"
        raise ConfigError(f"without: there is no annotator {', '.join(map(repr, unknown))}; known: {there}", store.place)
    return tuple(by_word[word] for word in wanted)


def _refuse_none(rows: Iterator[dict[str, Any]], place: str, report: ExportReport) -> Iterator[dict[str, Any]]:
    none = True
    for row in rows:
        none = False
        yield row
    if none:
        raise DataError(f"{place}: the rule of the export leaves no rows ({report}); nothing was written")


def _items(connection: Connection) -> Iterator[Any]:
    items, prompts = schema.items, schema.prompts
    query = sa.select(items, prompts.c.held_out).join(prompts).order_by(items.c.number)
    yield from connection.execution_options(yield_per=500).execute(query)


def _of_items(connection: Connection, rows: Sequence[Any], rule: Rule, report: ExportReport) -> Iterator[Exported]:
    used = []
    all_answers = answers_of_items(connection, [row.item_id for row in rows])
    for row in rows:
        item = Item(row.item_id, row.prompt_id, all_answers[row.item_id], None if row.gold is None else Choice(row.gold))
        num_pairs = len(item.answers) * (len(item.answers) - 1) // 2
        report.pairs += num_pairs
        if reason := _outside(row, rule):
            report.left_out[reason] += num_pairs
        else:
            used.append((row, item))
    judged = _judgements(connection, [item.item_id for _, item in used], rule)
    for found in _with_texts(connection, used, judged, rule, report):
        report.rows += 1
        yield found


def _outside(row: Any, rule: Rule) -> str:
    if row.gold is not None and not rule.gold:
        return "gold"
    if rule.split == "all" or (rule.split == "held_out") == bool(row.held_out):
        return ""
    return "held out" if row.held_out else "not held out"


def _judgements(connection: Connection, item_ids: Sequence[str], rule: Rule) -> dict[str, list[Judgement]]:
    table = schema.judgements
    query = sa.select(table).where(table.c.item_id.in_(item_ids), table.c.withdrawn_at.is_(None)).order_by(table.c.item_id, table.c.number)
    found = (judgement_of(row) for row in connection.execute(query))
    return {
        item_id: [one for one in group if one.annotator not in rule.without] for item_id, group in groupby(found, lambda one: one.item_id)
    }


def _with_texts(
    connection: Connection, used: Sequence[tuple[Any, Item]], judged: dict[str, list[Judgement]], rule: Rule, report: ExportReport
) -> Iterator[Exported]:
    decided: list[tuple[Any, str, str, Decision]] = []
    for row, item in used:
        for (a, b), votes in pair_votes(item, judged.get(item.item_id, ())).items():
            decision = decide(votes, rule)
            if isinstance(decision, str):
                report.left_out[decision] += 1
                continue
            decided.append((row, a, b, decision))
            if decision.soft_label == 0.5:  # only a tie: a majority is above one half
                decided.append((row, a, b, replace(decision, first_chosen=False)))
    answers = _texts(connection, schema.answers.c.answer_id, {answer for _, a, b, _ in decided for answer in (a, b)})
    prompts = _texts(connection, schema.prompts.c.prompt_id, {row.prompt_id for row, *_ in decided})
    for row, a, b, decision in decided:
        chosen, rejected = (a, b) if decision.first_chosen else (b, a)
        yield Exported(
            prompts[row.prompt_id], answers[chosen], answers[rejected], decision, row.item_id, row.prompt_id, row.chosen_by
        )


def _texts(connection: Connection, column: Any, ids: set[str]) -> dict[str, Text]:
    found: dict[str, Text] = {}
    for chunk in chunks(sorted(ids)):
        for row in connection.execute(sa.select(column, column.table.c.text).where(column.in_(chunk))):
            found[row[0]] = text_from_json(row.text)
    return found


def _all_plain(store: Store, format: Format) -> bool:
    """Whether rows are written as plain strings."""
    if format not in ("auto", "plain", "conversational"):
        raise DataError(f"format must be auto, plain or conversational, got {format!r}")
    if format == "conversational":
        return False
    with reading(store.engine) as connection:
        for table in (schema.prompts, schema.answers):
            turns = connection.scalar(sa.select(next(iter(table.primary_key))).where(table.c.text.like("[%")).limit(1))
            if turns is not None and format == "plain":
                raise DataError(f"{store.place}: {turns!r} is a conversation and has no plain form; export it as conversational")
            if turns is not None:
                return False
    return True


def _plain(text: Text, _role: str) -> str:
    assert isinstance(text, str)
    return text


def _turns(text: Text, role: Any) -> list[dict[str, str]]:
    turns = (Message(role, text),) if isinstance(text, str) else text
    return [{"role": turn.role, "content": turn.content} for turn in turns]
