"""What the figures say, in whole sentences: what a reader should know before any table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tether.collect.stats.spelled import percent, percent_range, seconds
from tether.collect.stats.summary import CollectSummary, Figure

__all__ = ["in_words"]


def in_words(summary: CollectSummary) -> tuple[str, ...]:
    """The main figures with their intervals and what they mean; those that are not known are left out."""
    return tuple(_sentences(summary))


def _sentences(summary: CollectSummary) -> Iterator[str]:
    count = {name: _whole(summary.figure(name)) for name in ("judgements", "annotators", "units", "shared_units")}
    yield (
        f"{_counted(count['judgements'], 'judgement')} by {_people(count['annotators'])}, skips and test questions among them; "
        f"{_counted(count['units'], 'pair')} of answers to ordinary items were judged, {count['shared_units']} by two or more "
        "people, and all that is said of agreement comes from these."
    )
    if told := _share(summary.figure("decided_agreement")):
        yield f"Two people who both prefer one of the answers prefer the same one in {told} of cases; two coins would in 50 %."
    if told := _share(summary.figure("ceiling")):
        yield (
            f"So a reward model that knew exactly what most people prefer would agree with a single judgement in {told} of cases: compare "
            "the held-out accuracy of a reward model with this, not with 100 %."
        )
    yield from _habits(summary)
    if told := _share(summary.figure("gold_accuracy")):
        yield f"Test questions were answered as known in {told} of cases."
    if told := _share(summary.figure("hasty_share")):
        median = seconds(summary.figure("median_seconds").value or 0.0)
        yield f"The median judgement took {median}; {told} were too quick to have read the texts."


def _habits(summary: CollectSummary) -> Iterator[str]:
    left, longer = summary.figure("left_share"), summary.figure("longer_wins")
    if told := _share(left):
        words = _against_half(left, "people favour a side", "no bias to a side is shown")
        yield f"The answer on the left was chosen in {told} of preferences: {words}."
    if told := _share(longer):
        words = _against_half(longer, "length and choice go together, whatever the reason", "no preference for length is shown")
        yield f"An answer twice as long as the other would be chosen in {told} of cases: {words}."


def _against_half(figure: Figure, yes: str, no: str) -> str:
    low, high = figure.low or 0.0, 1.0 if figure.high is None else figure.high
    return yes if low > 0.5 or high < 0.5 else no


def _share(figure: Figure) -> str:
    """Example: "70 % [62, 78]"; empty where it is not known or has no interval."""
    if figure.value is None or figure.low is None or figure.high is None or not math.isfinite(figure.low + figure.high):
        return ""
    return f"{percent(figure.value)} {percent_range(figure.low, figure.high)}"


def _whole(figure: Figure) -> int:
    return round(figure.value or 0)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _people(count: int) -> str:
    return "1 person" if count == 1 else f"{count} people"
