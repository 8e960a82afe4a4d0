"""Comparisons out of the database: as rows in TRL's preference format, as files, as ``tether.types.Comparison``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tether.collect import schema
from tether.collect.adding import answers_of_items, chunks
from tether.collect.codec import gold_of
from tether.collect.engine import Connection, reading
from tether.collect.exchange.forms import Format, form_of
from tether.collect.exchange.items import annotator_ids, item_rows, judgements_on, outside, refuse_none, texts_of, told
from tether.collect.exchange.rule import Decision, Rule, decide, pair_votes
from tether.collect.exchange.tables import write_table
from tether.collect.judgement import Item, Judgement
from tether.collect.store import Store
from tether.records.texts import Text, one_form
from tether.types import Comparison

__all__ = ["ExportReport", "Exported", "as_comparisons", "comparisons", "export_file", "export_rows"]


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
        return told(self.rows, f"{self.pairs} pairs", self.left_out)


def comparisons(store: Store, rule: Rule, report: ExportReport | None = None) -> Iterator[Exported]:
    """The comparisons in the order of their items, one consistent view; ``report`` is filled in on the way."""
    report = ExportReport() if report is None else report
    rule = replace(rule, without=annotator_ids(store, rule.without))
    with reading(store.engine) as connection:
        for items in chunks(item_rows(connection)):
            yield from _of_items(connection, items, rule, report)


def export_rows(store: Store, rule: Rule, report: ExportReport | None = None, format: Format = "auto") -> Iterator[dict[str, Any]]:
    """The comparisons as rows with ``rule.COLUMNS``; ``format``: see ``forms.form_of``."""
    form = form_of(store, format)
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
            "annotators": list(one.decision.annotators),
            "chosen_shown_first": one.decision.chosen_shown_first,
            "votes_chosen": list(one.decision.votes_chosen),
            "votes_rejected": list(one.decision.votes_rejected),
        }


def export_file(store: Store, path: str | Path, rule: Rule, format: Format = "auto") -> ExportReport:
    """Write the rows to a .jsonl, .parquet or .csv file, whole or not at all (CSV: see ``tables``). DataError where none are left."""
    report = ExportReport()
    write_table(path, refuse_none(export_rows(store, rule, report, format), store.place, report))
    return report


def as_comparisons(store: Store, rule: Rule) -> tuple[list[Comparison], ExportReport]:
    """What a reward model or a direct method trains on."""
    report = ExportReport()
    found = [Comparison(one.prompt, one.chosen, one.rejected, one.decision.margin) for one in comparisons(store, rule, report)]
    return found, report


def _of_items(connection: Connection, rows: Sequence[Any], rule: Rule, report: ExportReport) -> Iterator[Exported]:
    used = []
    all_answers = answers_of_items(connection, [row.item_id for row in rows])
    for row in rows:
        item = Item(row.item_id, row.prompt_id, all_answers[row.item_id], gold_of(row))
        num_pairs = len(item.answers) * (len(item.answers) - 1) // 2
        report.pairs += num_pairs
        if reason := outside(row, rule):
            report.left_out[reason] += num_pairs
        else:
            used.append((row, item))
    judged = {
        item_id: [one for one in found if one.withdrawn_at is None and one.annotator not in rule.without]
        for item_id, found in judgements_on(connection, [item.item_id for _, item in used]).items()
    }
    for found in _with_texts(connection, used, judged, rule, report):
        report.rows += 1
        yield found


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
                decided.append((row, a, b, decision.other_way))
    answers = texts_of(connection, schema.answers.c.answer_id, {answer for _, a, b, _ in decided for answer in (a, b)})
    prompts = texts_of(connection, schema.prompts.c.prompt_id, {row.prompt_id for row, *_ in decided})
    for row, a, b, decision in decided:
        chosen, rejected = (a, b) if decision.first_chosen else (b, a)
        if one_form(answers[chosen], "assistant") == one_form(answers[rejected], "assistant"):
            report.left_out["the same text twice"] += decision.first_chosen or decision.soft_label != 0.5  # a tie comes in both orders
            continue
        yield Exported(
            prompts[row.prompt_id], answers[chosen], answers[rejected], decision, row.item_id, row.prompt_id, row.chosen_by
        )
