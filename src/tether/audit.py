"""What do these answers look like? Texts with rewards of any trainer: lengths, repetition, distinct answers, reward against length.

    tether audit completions.parquet --baseline before.jsonl

Reads JSONL, Parquet and dataset folders with one answer a row: ``prompt``, ``completion``, ``reward`` (or the names in ``NAMES``),
texts or message lists; the completions table of TRL's trainers is one of them: without a ``reward`` column the columns of its reward
functions are summed. A table with a ``step`` column and no baseline is compared with itself: its last quarter of steps with its first.
Imports no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tether.audit_rows import AnswerRow, read_answers
from tether.files import json_ready
from tether.run.checks.texts import correlation, distinctness, pooled_share, repeat_share
from tether.stats import Interval, bootstrap_mean

__all__ = ["Audit", "Flag", "Levels", "Measure", "as_json", "as_text", "audit", "audit_rows"]

_RESAMPLES = 2_000
_MIN_PROMPTS = 5  # below it an interval over prompts says next to nothing

_NOT_COMPARED = "nothing is compared with"


@dataclass(frozen=True)
class Levels:
    """How far is too far. Lengths in words; ``shorter``, ``longer``, ``fewer`` are factors against the baseline.

    ``confidence`` of the two-sided intervals: each flag needs the whole interval beyond its level.
    """

    short_words: float = 3.0
    long_words: float = 1000.0
    shorter: float = 0.5
    longer: float = 2.0
    repeat: float = 0.2
    distinct: float = 0.2
    fewer: float = 0.5
    correlation: float = 0.5
    confidence: float = 0.99


@dataclass(frozen=True)
class Measure:
    """A number of one set of answers, with its interval over prompts."""

    name: str
    unit: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Flag:
    """Something to look at: a name, and the sentence that says why."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Audit:
    """The report. ``status``: 0 no flags, 3 flags (as a paused run). ``unjudged``: why nothing could be judged, else ''."""

    source: str
    baseline: str
    num_answers: int
    num_prompts: int
    reward: str
    measures: tuple[Measure, ...]
    before: tuple[Measure, ...]
    flags: tuple[Flag, ...]
    confidence: float
    notes: tuple[str, ...]
    unjudged: str = ""

    @property
    def status(self) -> int:
        """Exit status of the command."""
        return 3 if self.flags else 0


def audit(path: str | Path, baseline: str | Path | None = None, *, reward: str | None = None, levels: Levels | None = None) -> Audit:
    """Read the file (and the baseline) and report. ``reward`` names the column of rewards.

    Raises DataError for files without rows, rows without an answer, and columns that do not belong together.
    """
    read = read_answers(str(path), reward)
    if baseline is not None:
        other = read_answers(str(baseline), reward, needs_reward=False)
        return audit_rows(read.rows, other.rows, str(path), str(baseline), read.reward, levels, (*read.notes, *other.notes))
    steps = sorted({row.step for row in read.rows if row.step is not None})
    if len(steps) < 2:
        return audit_rows(read.rows, (), str(path), "", read.reward, levels, read.notes)
    quarter = max(1, len(steps) // 4)
    first, last = steps[quarter - 1], steps[-quarter]
    early = [row for row in read.rows if row.step is not None and row.step <= first]
    late = [row for row in read.rows if row.step is not None and row.step >= last]
    told = f"steps {steps[0]:g} to {first:g} of the same file"
    note = f"steps {last:g} to {steps[-1]:g} are compared with {told}; name a --baseline for another comparison"
    return audit_rows(late, early, str(path), told, read.reward, levels, (*read.notes, note))


def audit_rows(
    rows: Sequence[AnswerRow],
    before: Sequence[AnswerRow],
    source: str,
    baseline: str,
    reward: str,
    levels: Levels | None = None,
    notes: Sequence[str] = (),
) -> Audit:
    """The same of rows already read; ``before`` may be empty."""
    levels = levels or Levels()
    now = _Texts.of(rows)
    old = _Texts.of(before) if before else None
    unjudged = _too_few(now)
    if not unjudged and old is not None and _too_few(old):
        notes = (*notes, f"{_NOT_COMPARED} {baseline}: {_too_few(old)}")
    return Audit(
        source=source,
        baseline=baseline,
        num_answers=len(rows),
        num_prompts=len(now.groups),
        reward=reward,
        measures=tuple(_measures(now, levels.confidence)),
        before=() if old is None else tuple(_measures(old, levels.confidence)),
        flags=() if unjudged else tuple(_flags(now, None if old is None or _too_few(old) else old, levels)),
        confidence=levels.confidence,
        notes=tuple(notes),
        unjudged=unjudged,
    )


@dataclass(frozen=True)
class _Texts:
    """Columns by answer, and which answers belong to which prompt."""

    columns: Mapping[str, tuple[float, ...]]
    groups: tuple[tuple[int, ...], ...]
    pooled: float

    @classmethod
    def of(cls, rows: Sequence[AnswerRow]) -> _Texts:
        words = [row.completion.split() for row in rows]
        found: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            found.setdefault(str(number) if row.prompt is None else f"\0{row.prompt}", []).append(number)
        columns = {
            "length": tuple(float(len(answer)) for answer in words),
            "repeat": tuple(repeat_share(answer) for answer in words),
            "distinct": tuple(distinctness(words)),
            "empty": tuple(float(not answer) for answer in words),
            "reward": tuple(row.reward for row in rows),
        }
        return cls(columns, tuple(tuple(group) for group in found.values()), pooled_share(words))

    def by_prompt(self, name: str) -> list[float]:
        """Mean over the answers to each prompt; prompts without a number are left out."""
        column = self.columns[name]
        means = [[column[i] for i in group if math.isfinite(column[i])] for group in self.groups]
        return [sum(values) / len(values) for values in means if values]


def _too_few(texts: _Texts) -> str:
    """Why these answers cannot be judged; '' where they can be."""
    num_answers, num_prompts = len(texts.columns["length"]), len(texts.groups)
    if num_prompts >= _MIN_PROMPTS:
        return ""
    if num_answers < _MIN_PROMPTS:
        return f"too few rows to judge: {num_answers}; at least {_MIN_PROMPTS}"
    return f"too few prompts to judge: {num_prompts} ({num_answers} answers); at least {_MIN_PROMPTS}"


_MEASURES = (
    ("length", "words, mean"),
    ("repeat", "share of repeated word trigrams inside an answer, mean"),
    ("distinct", "distinct answers / answers"),
    ("empty", "share of empty answers"),
    ("reward", "reward, mean"),
)


def _measures(texts: _Texts, confidence: float) -> Iterator[Measure]:
    for name, unit in _MEASURES:
        values = texts.by_prompt(name)
        if values:
            found = bootstrap_mean(values, seed=0, confidence=confidence, num_resamples=_RESAMPLES)
            yield Measure(name, unit, found.estimate, found.low, found.high)
    for share in (0.1, 0.5, 0.9):
        value = float(np.quantile(texts.columns["length"], share))
        yield Measure(f"length_p{100 * share:z.0f}", "words", value, math.nan, math.nan)
    yield Measure("pooled", "share of the commonest word trigram among all", texts.pooled, math.nan, math.nan)
    r = _reward_length(texts, confidence)
    if r is not None:
        yield Measure("reward_length", "correlation of reward and length over answers", r.estimate, r.low, r.high)


def _reward_length(texts: _Texts, confidence: float) -> Interval | None:
    """Pearson's r with the interval of Fisher's z over prompts (answers to one are not independent); None where it does not exist."""
    reward, length = texts.columns["reward"], texts.columns["length"]
    r, n = correlation(reward, length), len(texts.by_prompt("reward"))
    if not math.isfinite(r) or n < _MIN_PROMPTS:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2) / math.sqrt(n - 3)
    middle = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return Interval(r, math.tanh(middle - z), math.tanh(middle + z), confidence, n)


def _flags(now: _Texts, old: _Texts | None, levels: Levels) -> Iterator[Flag]:
    yield from _absolute_flags(now, levels)
    if old is None:
        return
    for name, column, factor, sign in (
        ("longer than the baseline", "length", levels.longer, 1),
        ("shorter than the baseline", "length", levels.shorter, -1),
        ("less distinct than the baseline", "distinct", levels.fewer, -1),
    ):
        low, high = _excess(old.by_prompt(column), now.by_prompt(column), factor, levels.confidence)
        if low > 0 if sign > 0 else high < 0:
            values = f"{_mean(old, column):.4g} -> {_mean(now, column):.4g}"
            yield Flag(name, f"{column} {values}, beyond {factor:g} times the baseline by more than chance ([{low:+z.4g}, {high:+z.4g}])")


def _absolute_flags(now: _Texts, levels: Levels) -> Iterator[Flag]:
    tests = (
        ("too short", "length", levels.short_words, -1, "answers of almost nothing"),
        ("too long", "length", levels.long_words, 1, "answers without an end"),
        ("repetition", "repeat", levels.repeat, 1, "answers repeat themselves"),
        ("mode collapse", "distinct", levels.distinct, -1, "many prompts get the same answer"),
    )
    for name, column, level, sign, words in tests:
        found = bootstrap_mean(now.by_prompt(column), seed=0, confidence=levels.confidence, num_resamples=_RESAMPLES)
        if found.low > level if sign > 0 else found.high < level:
            side = "above" if sign > 0 else "below"
            yield Flag(name, f"{words}: {column} {found.estimate:.4g} [{found.low:.4g}, {found.high:.4g}], all of it {side} {level:g}")
    r = _reward_length(now, levels.confidence)
    if r is not None and (r.low > levels.correlation or r.high < -levels.correlation):
        pays = "longer" if r.estimate > 0 else "shorter"
        yield Flag("reward follows length", f"the reward pays for {pays} answers: r = {r} (level {levels.correlation:g})")


def _excess(before: Sequence[float], after: Sequence[float], factor: float, confidence: float) -> tuple[float, float]:
    """Interval of mean(after) - factor x mean(before), two sets resampled apart: prompts need not be the same."""
    rng = np.random.default_rng(0)
    means = _resampled(after, rng) - factor * _resampled(before, rng)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _resampled(values: Sequence[float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of resamples, in blocks that fit in memory."""
    units = np.asarray(values, dtype=np.float64)
    rows = max(1, min(_RESAMPLES, 2_000_000 // len(units)))
    counts = [min(rows, _RESAMPLES - at) for at in range(0, _RESAMPLES, rows)]
    return np.concatenate([units[rng.integers(0, len(units), (count, len(units)))].mean(1) for count in counts])


def _mean(texts: _Texts, name: str) -> float:
    values = texts.by_prompt(name)
    return sum(values) / len(values)


def as_text(report: Audit) -> str:
    """For a terminal."""
    against = f", against {report.baseline}" if report.baseline else ""
    lines = [
        f"{report.source}: {report.num_answers} answers to {report.num_prompts} prompts{against}; rewards: {report.reward or 'none'}; "
        f"intervals {report.confidence:z.0%} over prompts"
    ]
    before = {measure.name: measure for measure in report.before}
    for measure in report.measures:
        line = f"  {measure.name:<14}{_interval(measure):<34}"
        line += f"before {_interval(before[measure.name]):<34}" if measure.name in before else ""
        lines.append(f"{line}{measure.unit}")
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"FLAG {flag.name}: {flag.sentence}" for flag in report.flags]
    lines.append(_last_line(report))
    return "\n".join(lines)


def _last_line(report: Audit) -> str:
    if report.unjudged:
        return f"Not judged: {report.unjudged}. That is no pass."
    if report.flags:
        return "Flags are for inspection: read the answers before you act."
    if any(note.startswith(_NOT_COMPARED) for note in report.notes):
        return "The answers by themselves give nothing to look at; the comparison was not made, which is no pass of it."
    return "Nothing to look at."


def as_json(report: Audit) -> str:
    """For a machine; numbers that do not exist are null."""
    return json.dumps(json_ready(asdict(report) | {"status": report.status}), indent=2, ensure_ascii=False)


def _interval(measure: Measure) -> str:
    found = f"{measure.value:.4g}"
    return found if not math.isfinite(measure.low) else f"{found} [{measure.low:.4g}, {measure.high:.4g}]"
