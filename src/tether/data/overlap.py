"""Prompts that stand in the training set and in the held-out set: a score on them measures memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tether.errors import DataError
from tether.records.texts import one_form
from tether.types import Message

__all__ = ["Overlap", "overlap_warnings", "prompt_overlap", "refuse_overlap"]

Text = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Overlap:
    """One held-out prompt that is a training prompt too. Rows are counted from 1; the training row is its
    first one.
    """

    held_out_row: int
    training_row: int
    beginning: str  # of the last message, to recognise it by


def prompt_overlap(training: Sequence[Text], held_out: Sequence[Text]) -> list[Overlap]:
    """Held-out prompts equal to a training prompt, message by message and but for white space; a plain string counts as one message of a
    user.
    """
    first_row: dict[tuple[tuple[str, str], ...], int] = {}
    for row, text in enumerate(training, start=1):
        first_row.setdefault(_key(text), row)
    keys = [_key(text) for text in held_out]
    return [
        Overlap(row, first_row[key], key[-1][1][:60] if key else "")
        for row, key in enumerate(keys, start=1)
        if key in first_row
    ]


def overlap_warnings(training: Sequence[Text], held_out: Sequence[Text], shown: int = 5) -> list[str]:
    """One sentence for the whole overlap and one for each of the first rows; empty when there is none."""
    found = prompt_overlap(training, held_out)
    if not found:
        return []
    share = f"{len(found)} of {len(held_out)} held-out prompts"
    head = f"{share} are training prompts too, so their scores measure memory."
    return [
        head,
        *(
            f"held-out row {o.held_out_row} = training row {o.training_row}: {o.beginning!r}"
            for o in found[:shown]
        ),
    ]


def refuse_overlap(training: Sequence[Text], held_out: Sequence[Text]) -> None:
    """DataError when a held-out prompt is a training prompt."""
    warnings = overlap_warnings(training, held_out)
    if warnings:
        raise DataError("\n  ".join(warnings) + "\nRemove these rows from one of the two sets.")


def _key(text: Text) -> tuple[tuple[str, str], ...]:
    form = one_form(text if isinstance(text, str) else tuple(text), "user")
    turns = (("user", form),) if isinstance(form, str) else ((turn.role, turn.content) for turn in form)
    return tuple((role, " ".join(content.split())) for role, content in turns)
