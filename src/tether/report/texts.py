"""Prompts and answers as the page shows them: cut to the limit, with what was left out in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tether.report.charts import number
from tether.report.limits import Limits
from tether.report.read import RunRecord, Sample

__all__ = ["Answer", "SampleRow", "cut", "held_out", "num_held_out", "training"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A text as shown: cut to the limit, with what was left out in words."""

    name: str
    text: str
    note: str


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One prompt with its answers side by side."""

    prompt: Answer
    answers: tuple[Answer, ...]


def held_out(run: RunRecord, limits: Limits) -> list[SampleRow]:
    """Held-out prompts with the answers of every policy side by side, the start first."""
    policies = run.evaluation.policies if run.evaluation else ()
    rows = zip_longest(*(policy.samples for policy in policies))
    return [
        _held_out_row([policy.name for policy in policies], row, limits)
        for row in list(rows)[: limits.prompts]
    ]


def _held_out_row(names: Sequence[str], row: Sequence[Sample | None], limits: Limits) -> SampleRow:
    prompt = next(sample.prompt for sample in row if sample is not None)
    answers = [
        _answer(name, sample, "score", limits)
        for name, sample in zip(names, row, strict=True)
        if sample is not None
    ]
    return SampleRow(cut(prompt, limits.characters), tuple(answers))


def num_held_out(run: RunRecord) -> int:
    """Held-out prompts with an answer, shown or not."""
    return max((len(policy.samples) for policy in run.evaluation.policies), default=0) if run.evaluation else 0


def training(run: RunRecord, limits: Limits) -> Iterator[tuple[str, list[SampleRow], int]]:
    """Per stage, samples of evenly spaced steps, the first and the last included, and how many were logged in all."""
    for stage in run.stages:
        steps = sorted({sample.step for sample in stage.samples})
        most = max(limits.samples // 3, 2)
        kept = (
            {steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)}
            if len(steps) > most
            else set(steps)
        )
        chosen = [sample for sample in stage.samples if sample.step in kept][: limits.samples]
        if chosen:
            yield (
                stage.name,
                [
                    SampleRow(
                        cut(s.prompt, limits.characters), (_answer(f"step {s.step}", s, "reward", limits),)
                    )
                    for s in chosen
                ],
                len(stage.samples),
            )


def _answer(name: str, sample: Sample, what: str, limits: Limits) -> Answer:
    shown = cut(sample.completion, limits.characters)
    ending = {"length": "cut by the token budget", "stop": "ended by itself"}.get(
        sample.stop_reason, sample.stop_reason
    )
    return Answer(
        name,
        shown.text,
        "; ".join(part for part in (f"{what} {number(sample.score)}", ending, shown.note) if part),
    )


def cut(text: str, characters: int) -> Answer:
    """The beginning of a text, and in words how much is not shown."""
    left_out = len(text) - characters
    return (
        Answer("", text, "")
        if left_out <= 0
        else Answer("", text[:characters] + " …", f"{left_out} more characters not shown")
    )
