"""How a collection goes, for its owner: who has done how much, how fast, and whether sides or haste show. Numbers only, no markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from tether.collect.judgement import Choice, Judgement
from tether.collect.stats.command import collect_stats, names
from tether.collect.stats.sentences import in_words
from tether.collect.stats.summary import AnnotatorRow, CollectSummary, Figure
from tether.collect.stats.words import NOBODY_NAMED, band_text, figure_value, interval_text, people_to_look_at, seconds_text, share_text
from tether.collect.store import Store
from tether.report.charts import Chart, chart

__all__ = ["Measured", "Overview", "Person", "overview"]

_MOST_LINES = 8  # as many colours as a chart has
_WINDOW, _LEAST = 15, 5  # judgements in a running median, and in the first of them
_FIGURES = (
    "raw_agreement", "decided_agreement", "alpha_nominal", "ceiling", "left_share", "longer_wins", "gold_accuracy", "repeat_agreement",
    "hasty_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Person:
    """One annotator's row, in words with their intervals; a dash where nothing was counted yet."""

    name: str
    judged: int
    skipped: int
    open: int
    ties: float | None
    latest: str
    seconds: str
    others: str
    hasty: str
    reliability: str
    passed: str
    left: str
    notes: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of ``tether.collect.stats`` in words. ``unit``: empty for "1", and where the value is not known. ``advice`` where it lies
    outside what is good, or why it is not known.
    """

    name: str
    value: str
    unit: str
    good: str
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page shows. ``wanted`` and ``got``: judgements of ordinary items; ``named``: people to look at, with
    what was found and what to do; ``warnings``: what to know before reading the figures.
    """

    question: str
    num_items: int
    wanted: int
    got: int
    people: tuple[Person, ...]
    charts: tuple[Chart, ...]
    named: tuple[tuple[str, str, str], ...] = ()
    nobody: str = ""
    sentences: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    warnings: tuple[str, ...] = ()


def overview(store: Store) -> Overview:
    """Read everything anew: this page is asked for seldom."""
    by_person: dict[str, list[Judgement]] = {annotator.id: [] for annotator in store.annotators()}
    for judgement in store.judgements():
        by_person.setdefault(judgement.annotator, []).append(judgement)
    states = list(store.item_states())
    shown = names(store)
    worth = collect_stats(store) if any(by_person.values()) else None
    rows = {row.name: row for row in worth.annotators} if worth else {}
    people = tuple(_person(store, who, shown.get(who, who), said, rows.get(shown.get(who, who))) for who, said in by_person.items())
    named = {shown.get(who, who): said for who, said in by_person.items() if said}
    return Overview(
        question=store.settings.question,
        num_items=len(states),
        wanted=sum(state.wanted or 0 for state in states),
        got=sum(min(state.judged, state.wanted or 0) for state in states),
        people=people,
        charts=tuple(_charts(named)) if named else (),
        named=tuple(people_to_look_at(worth)) if worth else (),
        nobody=NOBODY_NAMED,
        sentences=in_words(worth) if worth else (),
        measured=tuple(_measured(worth)) if worth else (),
        warnings=worth.warnings if worth else (),
    )


def _measured(worth: CollectSummary) -> list[Measured]:
    """The figures an owner looks at while people work; `tether collect stats` has all of them."""

    def words(figure: Figure) -> Measured:
        advice = figure.advice if figure.verdict in ("look", "unclear") else ""
        missing = f"Not known yet: {figure.missing}." if figure.value is None else ""
        unit = "" if figure.value is None or figure.unit == "1" else figure.unit
        return Measured(figure.name.replace("_", " "), figure_value(figure), unit, band_text(figure), figure.meaning, advice or missing)

    return [words(worth.figure(name)) for name in _FIGURES]


def _person(store: Store, who: str, name: str, said: Sequence[Judgement], row: AnnotatorRow | None) -> Person:
    progress = store.progress(who)
    judged = [judgement for judgement in said if judgement.choice is not Choice.SKIP]
    equal = sum(judgement.choice in (Choice.TIE, Choice.BOTH_BAD) for judgement in judged)
    gold = row.gold_accuracy if row else None
    return Person(
        name=name,
        judged=progress.judged,
        skipped=progress.skipped,
        open=progress.open,
        ties=equal / len(judged) if judged else None,
        latest=max((judgement.made_at for judgement in said), default="")[:16].replace("T", " ") or "–",
        seconds=seconds_text(row.median_seconds if row else None),
        others=seconds_text(row.others_seconds if row else None),
        hasty=share_text(row.hasty_share if row else None),
        reliability=interval_text(row.relative if row else None),
        passed="–" if gold is None else f"{round(gold.estimate * gold.num_units)} of {gold.num_units}",
        left=share_text(row.left_share if row else None),
        notes=", ".join(row.notes) if row and row.notes else "–",
    )


def _charts(named: Mapping[str, Sequence[Judgement]]) -> list[Chart]:
    shown = dict(sorted(named.items(), key=lambda pair: -len(pair[1]))[:_MOST_LINES])
    hidden = len(named) - len(shown)
    who = f" The {_MOST_LINES} who did most of {len(named)}." if hidden else ""
    times = {name: sorted(at for one in said if (at := _time(one)) is not None) for name, said in named.items()}
    start = min((at for found in times.values() for at in found), default=0.0)
    done = {name: [((at - start) / 3600, k + 1.0) for k, at in enumerate(times[name])] for name in shown}
    pace = {name: _running_median([j.seconds for j in said if j.seconds is not None]) for name, said in shown.items()}
    return [
        chart("Judgements", "count", f"Judgements and skips that stand, over time.{who}", done, x_label="hours since the first"),
        chart("Speed", "s", f"Active seconds on an item, median of the last {_WINDOW}.{who}", pace, x_label="judgement"),
    ]


def _running_median(seconds: Sequence[float]) -> list[tuple[float, float]]:
    return [(float(k), float(median(seconds[max(0, k - _WINDOW) : k]))) for k in range(min(_LEAST, len(seconds)), len(seconds) + 1) if k]


def _time(judgement: Judgement) -> float | None:
    """Seconds since 1970; None where a dump, or an import before times were checked, left no time there."""
    try:
        made_at = datetime.fromisoformat(judgement.made_at)
    except ValueError:
        return None
    return made_at.replace(tzinfo=made_at.tzinfo or UTC).timestamp()
