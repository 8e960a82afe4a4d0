"""A summary as one self-contained HTML file, in the manner of the run report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from tether.collect.stats.summary import AnnotatorRow, CollectSummary
from tether.collect.stats.words import ANNOTATOR_COLUMNS, annotator_cells, band_text, figure_value, interval_text
from tether.errors import RunError
from tether.files import write_atomic
from tether.report.charts import Callout, Chart, chart, number
from tether.report.page import asset, content_policy, fill, render_page
from tether.stats import Interval

__all__ = ["page", "write_page"]

_MOST_PEOPLE, _MOST_ODD = 200, 200


def write_page(summary: CollectSummary, target: str | Path, *, title: str = "Judgements") -> Path:
    """Write the page, whole or not at all. Raises RunError where it cannot be written."""
    target = Path(target)
    try:
        write_atomic(target, page(summary, title=title))
    except OSError as error:
        raise RunError(f"{target} cannot be written ({error.strerror or error}); choose another place with --output") from error
    return target


def page(summary: CollectSummary, *, title: str = "Judgements") -> str:
    """The whole document. Everything that a person wrote (names, reasons) is escaped."""
    values = {
        "title": title,
        "summary": summary,
        "confidence": f"{summary.confidence:z.0%}",
        "figures": [(one, figure_value(one), band_text(one)) for one in summary.figures],
        "charts": list(_charts(summary)),
        "columns": ANNOTATOR_COLUMNS,
        "people": [(row.name, annotator_cells(row)) for row in summary.annotators[:_MOST_PEOPLE]],
        "more_people": max(0, len(summary.annotators) - _MOST_PEOPLE),
        "pairs": [(f"{p.first}, {p.second}", p.num_units, interval_text(p.raw), interval_text(p.kappa)) for p in summary.pairs],
        "odd": [(flag.name, number(flag.seconds), number(flag.z)) for flag in summary.odd_times[:_MOST_ODD]],
    }
    css, script = asset("page.css"), asset("page.js")
    return render_page(title, fill("stats.html", values, package="tether.collect.stats"), css, script, content_policy(css, script))


def _charts(summary: CollectSummary) -> Iterator[Chart]:
    yield from _ceiling_chart(summary)
    people = summary.annotators[:_MOST_PEOPLE]
    yield from _people_chart("Reliability", "relative", [row.relative for row in people], people, "1 is the typical person, 0 coin tosses.")
    rest = [row.agreement_with_rest for row in people]
    yield from _people_chart("Agreement with the rest", "share", rest, people, "Share of others' judgements that are the same.")
    left = [row.left_share for row in people]
    yield from _people_chart("Left answer chosen", "share", left, people, "0.5 without a position bias.")
    if summary.length_curve:
        points = [(ratio, share) for ratio, share, _ in summary.length_curve]
        names = [f"{share:z.0%} of {count} judgements at {number(ratio)} times the length" for ratio, share, count in summary.length_curve]
        meaning = "By how much longer it is, in bins of equal count; flat at 0.5 without a preference for length."
        series = {"longer chosen": points}
        yield chart("Longer answer chosen", "share", meaning, series, x_label="longer / shorter", names={"longer chosen": names})


def _ceiling_chart(summary: CollectSummary) -> Iterator[Chart]:
    least, most, middle = (summary.figure(name) for name in ("ceiling_least", "ceiling_most", "ceiling"))
    agreed = summary.figure("decided_agreement")
    if middle.value is None or agreed.value is None or least.value is None or most.value is None:
        return
    grid = [0.5 + step / 100 for step in range(51)]
    series = {
        "at most": [(a, 0.5 + math.sqrt(2 * a - 1) / 2) for a in grid],
        "at least": [(a, a) for a in grid],
    }
    here = Callout(agreed.value, middle.value, f"measured {number(middle.value)}", ring=True, colour=2)
    meaning = (
        "The accuracy that a perfect reward model reaches, by how often two people who decide agree: between the lines, whatever the shape "
        "of the disagreement (drawn for no ties)."
    )
    yield chart("Ceiling against agreement", "share", meaning, series, x_label="agreement of two people", callouts=[here])


def _people_chart(title: str, unit: str, values: list[Interval | None], rows: tuple[AnnotatorRow, ...], meaning: str) -> Iterator[Chart]:
    """Estimate and interval by person, sorted by the estimate."""
    known = sorted((v.estimate, v.low, v.high, row.name) for v, row in zip(values, rows, strict=True) if v is not None)
    if not known:
        return
    names = [f"{name}: {number(middle)} [{number(low)}, {number(high)}]" for middle, low, high, name in known]
    series = {
        "estimate": [(float(i + 1), middle) for i, (middle, _, _, _) in enumerate(known)],
        "low": [(float(i + 1), low) for i, (_, low, _, _) in enumerate(known)],
        "high": [(float(i + 1), high) for i, (_, _, high, _) in enumerate(known)],
    }
    yield chart(title, unit, f"{meaning} People in the order of the estimate.", series, x_label="person", names={"estimate": names})
