"""A summary as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tether.collect.stats.plan import Plan
from tether.collect.stats.sentences import in_words
from tether.collect.stats.spelled import percent, percent_range, seconds
from tether.collect.stats.summary import AnnotatorRow, CollectSummary, Figure
from tether.report.charts import number
from tether.stats import Interval

__all__ = [
    "ANNOTATOR_COLUMNS", "COLUMN_MEANINGS", "NOBODY_NAMED", "annotator_cells", "as_text", "band_text", "figure_value", "interval_text",
    "people_to_look_at", "plans_text", "seconds_text", "share_text", "table",
]  # fmt: skip

ANNOTATOR_COLUMNS = (
    "judgements", "skips", "median time", "others' time", "hasty", "pauses", "reliability", "agrees with rest", "test questions passed",
    "same again", "left chosen", "longer chosen", "look at",
)  # fmt: skip
"""The columns after the name; `COLUMN_MEANINGS` says what they are."""

COLUMN_MEANINGS = (
    ("median time, others' time", "active seconds of a judgement, and what the other people take for texts of the same lengths"),
    ("hasty", "share of judgements too quick to have read the texts: over 200 characters a second, or under a third of the others' time"),
    ("pauses", "judgements much longer than this person's others; harmless"),
    ("reliability", "how strongly the choices follow the others'; 1 is the typical person, 0 a coin, below 0 the buttons turned round"),
    ("agrees with rest", "share of the others' judgements of the same pairs that are the same"),
    ("test questions passed", "of those judged"),
    ("same again", "share of pairs judged twice that were judged the same"),
    ("left chosen, longer chosen", "of judgements that prefer one answer; 50 % left without a habit; compare longer with the other people"),
)

_MOST_ROWS, _MOST_FLAGS = 40, 10
_VERDICTS = {"good": "", "look": "LOOK", "unclear": "unclear", "": ""}


def as_text(summary: CollectSummary) -> str:
    """People to look at, warnings, figures, people, skip reasons and times; sentences of what needs looking at."""
    parts = [f"WARNING: {warning}" for warning in summary.warnings]
    if named := people_to_look_at(summary):
        parts.append("\n".join(["People to look at", *(f"  {name}: {told}. {advice}" for name, told, advice in named)]))
    elif summary.annotators:
        parts.append(NOBODY_NAMED)
    rows = [[one.name, figure_value(one), one.unit, _VERDICTS[one.verdict]] for one in summary.figures]
    parts.append("\n".join(["In words", *(f"  {sentence}" for sentence in in_words(summary))]))
    parts.append(table(("figure", f"value [{summary.confidence:z.0%} interval]", "unit", ""), rows))
    if look := [one for one in summary.figures if one.verdict in {"look", "unclear"}]:
        parts.append("\n".join(f"{one.name}: {one.meaning} {_outside(one)}" for one in look))
    if unknown := [one for one in summary.figures if one.value is None]:
        parts.append("Not known: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in _by_reason(unknown).items()) + ".")
    if summary.annotators:
        people = [[row.name, *annotator_cells(row)] for row in summary.annotators[:_MOST_ROWS]]
        parts.append(table(("annotator", *ANNOTATOR_COLUMNS), people))
        parts.append("\n".join(f"{column}: {meaning}." for column, meaning in COLUMN_MEANINGS))
    if len(summary.annotators) > _MOST_ROWS:
        parts.append(f"{len(summary.annotators) - _MOST_ROWS} more annotators with fewer judgements: --json has them all.")
    if summary.pairs:
        header = ("two people", "pairs judged by both", "raw agreement", "Cohen's kappa")
        pairs = [[f"{p.first}, {p.second}", str(p.num_units), interval_text(p.raw), interval_text(p.kappa)] for p in summary.pairs[:10]]
        parts.append(table(header, pairs))
    if summary.skip_reasons:
        parts.append("Skipped: " + "; ".join(f"{reason!r} {count} times" for reason, count in summary.skip_reasons[:_MOST_FLAGS]) + ".")
    if summary.hasty:
        shown = ", ".join(f"{one.judgement_id} {number(one.seconds)} s of {number(one.bound)} s" for one in summary.hasty[:_MOST_FLAGS])
        parts.append(f"Hasty ({_counted(len(summary.hasty))}, the most hasty first, seconds of the bound): {shown}.")
    if summary.pauses:
        shown = ", ".join(f"{one.judgement_id} {number(one.seconds)} s" for one in summary.pauses[:_MOST_FLAGS])
        parts.append(f"Pauses ({_counted(len(summary.pauses))}, the longest first; harmless): {shown}.")
    return "\n\n".join(parts)


NOBODY_NAMED = "Nobody is surely hasty, near chance, failing test questions, clicking one side or unlike the others about length."


def people_to_look_at(summary: CollectSummary) -> list[tuple[str, str, str]]:
    """(name, what was found, what to do), the gravest first."""
    rows = [row for row in summary.annotators if row.conduct.reasons]
    rows.sort(key=lambda row: (not row.conduct.has("near chance"), not row.conduct.has("hasty"), -len(row.notes)))
    return [(row.name, "; ".join(reason.told for reason in row.conduct.reasons), row.conduct.advice) for row in rows]


def _counted(count: int) -> str:
    return f"{count} judgement" if count == 1 else f"{count} judgements"


def _outside(figure: Figure) -> str:
    return f"Good is {band_text(figure)}. {figure.advice}"


def band_text(figure: Figure) -> str:
    """Example: "0.65 or more", "0.45 to 0.55", "0"; empty without a band."""
    low, high = figure.good or (None, None)
    if low is None or high is None:
        return f"{low:g} or more" if low is not None else f"{high:g} or less" if high is not None else ""
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _by_reason(figures: Sequence[Figure]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in figures:
        found.setdefault(one.missing, []).append(one.name)
    return found


def figure_value(figure: Figure) -> str:
    """Example: "0.7259 [0.7223, 0.7295]"; "not known" for None."""
    if figure.value is None:
        return "not known"
    if figure.low is None or figure.high is None:
        return number(figure.value)
    if math.isinf(figure.low) or math.isinf(figure.high):
        return f"{number(figure.value)} [too little for an interval]"
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def interval_text(interval: Interval | None) -> str:
    """Two digits; a dash for None and for what is not defined."""
    if interval is None or interval.estimate != interval.estimate:
        return "–"
    if math.isinf(interval.low) or math.isinf(interval.high):
        return f"{interval.estimate:z.2f} [too little]"
    return f"{interval.estimate:z.2f} [{interval.low:z.2f}, {interval.high:z.2f}]"


def annotator_cells(row: AnnotatorRow) -> list[str]:
    """The columns after the name."""
    gold = row.gold_accuracy
    passed = "–" if gold is None else f"{round(gold.estimate * gold.num_units)} of {gold.num_units}"
    return [
        str(row.num_judgements), str(row.num_skips), seconds_text(row.median_seconds), seconds_text(row.others_seconds),
        share_text(row.hasty_share), str(row.num_pauses), interval_text(row.relative), share_text(row.agreement_with_rest), passed,
        share_text(row.repeat_agreement), share_text(row.left_share), share_text(row.longer_share), ", ".join(row.notes) or "–",
    ]  # fmt: skip


def share_text(interval: Interval | None) -> str:
    """Example: "72 % [58, 83]"; a dash for None and for what is not defined."""
    if interval is None or math.isnan(interval.estimate):
        return "–"
    if math.isinf(interval.low) or math.isinf(interval.high):
        return f"{percent(interval.estimate)} [too little]"
    return f"{percent(interval.estimate)} {percent_range(interval.low, interval.high)}"


def seconds_text(value: float | None) -> str:
    """Example: "1.2 s", "14 s"; a dash for None."""
    return "–" if value is None else seconds(value)


def plans_text(plans: Sequence[tuple[str, Plan]]) -> str:
    """Planned collections as a table."""
    rows = [[what, f"± {p.half_width:g}", str(p.num_items), str(p.judgements_per_item), str(p.num_judgements)] for what, p in plans]
    return table(("to know", "within", "items", "judgements each", "judgements in all"), rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to the left, two spaces apart."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
