"""A summary as one self-contained HTML file, in the manner of the run report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from tether.collect.stats.conduct import HASTY_SHARE
from tether.collect.stats.reliability import LOW_RELIABILITY
from tether.collect.stats.sentences import in_words
from tether.collect.stats.summary import CollectSummary
from tether.collect.stats.words import (
    ANNOTATOR_COLUMNS,
    COLUMN_MEANINGS,
    NOBODY_NAMED,
    annotator_cells,
    band_text,
    figure_value,
    interval_text,
    people_to_look_at,
    seconds_text,
    share_text,
)
from tether.errors import ConfigError, RunError
from tether.files import write_atomic
from tether.report.charts import Callout, Chart, chart, number
from tether.report.dots import DotChart, dot_chart
from tether.report.page import asset, content_policy, fill, render_page
from tether.stats import Interval, wilson

__all__ = ["check_target", "page", "write_page"]

_MOST_PEOPLE, _MOST_ROWS, _MOST_ODD = 200, 40, 200


def check_target(target: Path) -> None:
    """Raises ConfigError for a place that is no HTML file in a folder that exists; called before anything is computed."""
    if target.suffix != ".html" or not target.absolute().parent.is_dir():
        raise ConfigError(f"--output {target}: expected a file that ends in .html, in a folder that exists")


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
        "sentences": in_words(summary),
        "named": people_to_look_at(summary),
        "nobody": NOBODY_NAMED,
        "dots": list(_dots(summary)),
        "charts": list(_ceiling_chart(summary)),
        "columns": ANNOTATOR_COLUMNS,
        "meanings": COLUMN_MEANINGS,
        "people": [(row.name, annotator_cells(row)) for row in summary.annotators[:_MOST_PEOPLE]],
        "more_people": max(0, len(summary.annotators) - _MOST_PEOPLE),
        "pairs": [(f"{p.first}, {p.second}", p.num_units, share_text(p.raw), interval_text(p.kappa)) for p in summary.pairs],
        "hasty": [(h.judgement_id, h.annotator, seconds_text(h.seconds), seconds_text(h.bound)) for h in summary.hasty[:_MOST_ODD]],
        "pauses": [(p.judgement_id, p.annotator, seconds_text(p.seconds)) for p in summary.pauses[:_MOST_ODD]],
    }
    css, script = asset("page.css"), asset("page.js")
    return render_page(title, fill("stats.html", values, package="tether.collect.stats"), css, script, content_policy(css, script))


def _dots(summary: CollectSummary) -> Iterator[DotChart]:
    people, half = summary.annotators, (0.5, "no bias")
    hasty = [row.hasty_share for row in people]
    told = "Share of judgements too quick to have read the texts. Named where surely more than a third are."
    yield from _people_chart("Hasty judgements", "share", hasty, summary, told, (HASTY_SHARE, "a third"), (0, 1), ("hasty",))
    told = "How strongly choices follow the others'. 1 is the typical person, 0 coin tosses. Named where surely below one half."
    relative, line = [row.relative for row in people], (LOW_RELIABILITY, "half of the typical person's")
    yield from _people_chart("Reliability", "1 = typical person", relative, summary, told, line, (0, 1), ("near chance",))
    rest = [row.agreement_with_rest for row in people]
    told = "Share of the others' judgements of the same pairs that are the same: first, tie, second or both bad."
    yield from _people_chart("Agreement with the rest", "share", rest, summary, told, None, (0, 1), ("near chance",))
    left = [row.left_share for row in people]
    told = "Of judgements that prefer one answer. Named where that is surely no coin, corrected for many people."
    yield from _people_chart("Left answer chosen", "share", left, summary, told, half, (0, 1), ("one side",))
    longer = [row.longer_share for row in people]
    told = "Of judgements that prefer one answer. Longer answers may be the better ones: compare people with each other."
    yield from _people_chart("Longer answer chosen, by person", "share", longer, summary, told, (0.5, "one half"), (0, 1), ("length",))
    if summary.length_curve:
        rows = [_length_row(*part, summary.confidence) for part in summary.length_curve]
        told = "Of everybody's preferences, by how much longer the longer answer is (bins of equal count)."
        title, line = "Longer answer chosen, by length", (0.5, "one half")
        yield dot_chart(title, "share", told, rows, reference=line, bounds=(0, 1), confidence=summary.confidence)


def _length_row(ratio: float, share: float, count: int, confidence: float) -> tuple[str, float, float, float]:
    found = wilson(round(share * count), count, confidence=confidence)
    return f"{ratio:z.2f} times", found.estimate, found.low, found.high


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


def _people_chart(
    title: str, unit: str, values: list[Interval | None], summary: CollectSummary, meaning: str, reference: tuple[float, str] | None,
    bounds: tuple[float, float], kinds: tuple[str, ...],
) -> Iterator[DotChart]:  # fmt: skip
    """Estimate and interval by person, the highest first; who is named for one of these ``kinds`` stands out."""
    known = [(row.name, v.estimate, v.low, v.high) for v, row in zip(values, summary.annotators, strict=True) if v is not None]
    known = [row for row in known if math.isfinite(row[1])]
    if not known:
        return
    known.sort(key=lambda row: -row[1])
    if len(known) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        meaning += f" The {half} highest and the {half} lowest of {len(known)} people."
        known = known[:half] + known[-half:]
    marked = frozenset(row.name for row in summary.annotators if any(row.conduct.has(kind) for kind in kinds))
    yield dot_chart(title, unit, meaning, known, reference=reference, bounds=bounds, marked=marked, confidence=summary.confidence)
