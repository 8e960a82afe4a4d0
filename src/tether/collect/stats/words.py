"""A summary as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tether.collect.stats.plan import Plan
from tether.collect.stats.summary import AnnotatorRow, CollectSummary, Figure
from tether.report.charts import number
from tether.stats import Interval

__all__ = ["ANNOTATOR_COLUMNS", "annotator_cells", "as_text", "band_text", "figure_value", "interval_text", "plans_text", "table"]

ANNOTATOR_COLUMNS = ("judgements", "skips", "agrees with rest", "reliability", "gold", "repeats", "left", "seconds", "notes")

_MOST_ROWS, _MOST_FLAGS = 40, 10
_VERDICTS = {"good": "", "look": "LOOK", "unclear": "unclear", "": ""}


def as_text(summary: CollectSummary) -> str:
    """Warnings, figures, people, skip reasons and odd times; sentences of what needs looking at."""
    parts = [f"WARNING: {warning}" for warning in summary.warnings]
    rows = [[one.name, figure_value(one), one.unit, _VERDICTS[one.verdict]] for one in summary.figures]
    parts.append(table(("figure", f"value [{summary.confidence:z.0%} interval]", "unit", ""), rows))
    if look := [one for one in summary.figures if one.verdict in {"look", "unclear"}]:
        parts.append("\n".join(f"{one.name}: {one.meaning} {_outside(one)}" for one in look))
    if unknown := [one for one in summary.figures if one.value is None]:
        parts.append("Not known: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in _by_reason(unknown).items()) + ".")
    if summary.annotators:
        people = [[row.name, *annotator_cells(row)] for row in summary.annotators[:_MOST_ROWS]]
        parts.append(table(("annotator", *ANNOTATOR_COLUMNS), people))
    if len(summary.annotators) > _MOST_ROWS:
        parts.append(f"{len(summary.annotators) - _MOST_ROWS} more annotators with fewer judgements: --json has them all.")
    if summary.pairs:
        header = ("two people", "pairs judged by both", "raw agreement", "Cohen's kappa")
        pairs = [[f"{p.first}, {p.second}", str(p.num_units), interval_text(p.raw), interval_text(p.kappa)] for p in summary.pairs[:10]]
        parts.append(table(header, pairs))
    if summary.skip_reasons:
        parts.append("Skipped: " + "; ".join(f"{reason!r} {count} times" for reason, count in summary.skip_reasons[:_MOST_FLAGS]) + ".")
    if summary.odd_times:
        flagged = ", ".join(f"{flag.name} {number(flag.seconds)} s" for flag in summary.odd_times[:_MOST_FLAGS])
        parts.append(f"Odd times ({len(summary.odd_times)} judgements, the fastest first): {flagged}.")
    return "\n\n".join(parts)


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
    shares = (row.agreement_with_rest, row.relative, row.gold_accuracy, row.repeat_agreement, row.left_share)
    seconds = "–" if row.median_seconds is None else number(row.median_seconds)
    return [str(row.num_judgements), str(row.num_skips), *(interval_text(share) for share in shares), seconds, "; ".join(row.notes)]


def plans_text(plans: Sequence[tuple[str, Plan]]) -> str:
    """Planned collections as a table."""
    rows = [[what, f"± {p.half_width:g}", str(p.num_items), str(p.judgements_per_item), str(p.num_judgements)] for what, p in plans]
    return table(("to know", "within", "items", "judgements each", "judgements in all"), rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to the left, two spaces apart."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
