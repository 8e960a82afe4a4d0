"""One row per judgement, out of the database and back into the same or another one: nothing of what people said is merged or lost.

A row holds the texts, who said what of them and how they were shown; ``choice`` is in terms of ``answers`` (first, second), as in the
database. A second import adds nothing; ``exchange.dump`` copies a whole database.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tether.collect import schema
from tether.collect.adding import answers_of_items, chunks
from tether.collect.codec import answer_of
from tether.collect.engine import Connection, reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Answer, Text
from tether.collect.exchange.forms import Form, Format, as_stored, form_of
from tether.collect.exchange.given import GivenAnswer, Imported, Parser, Word
from tether.collect.exchange.items import annotator_ids, item_rows, judgements_on, outside, refuse_none, texts_of, told
from tether.collect.exchange.rule import Rule
from tether.collect.exchange.tables import write_table
from tether.collect.judgement import Choice, Judgement, Strength
from tether.collect.settings import CHOOSING
from tether.collect.store import Store
from tether.errors import DataError
from tether.records.fields import check_unicode, field_names, has, kind_of, messages_field, prompt_field

__all__ = ["COLUMNS", "JudgementsReport", "export_judgements", "judgement_rows", "judgements"]

COLUMNS = (
    "prompt", "answers", "choice", "chosen", "rejected", "strength", "ranking", "annotator", "annotator_id", "shown", "chosen_shown_first",
    "reason", "comment", "seconds", "made_at", "models", "gold", "chosen_by", "judgement_id", "item_id", "prompt_id", "answer_ids",
)  # fmt: skip
"""Of every row, in this order. ``shown`` and the tiers of ``ranking``: places in ``answers``, from 0; ``chosen`` and ``rejected``: None but
for a preference between two answers."""


@dataclass(slots=True)
class JudgementsReport:
    """Counts of an export: every judgement is a row or ``left_out`` under a reason."""

    rows: int = 0
    judgements: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return told(self.rows, f"{self.judgements} judgements", self.left_out)


def export_judgements(store: Store, path: str | Path, rule: Rule, format: Format = "auto") -> JudgementsReport:
    """Write the rows to a .jsonl, .parquet or .csv file, whole or not at all. Of the rule only ``split``, ``gold`` and ``without`` matter.

    Raises DataError where none are left, and for a .parquet file of texts as they are stored where some are strings, some conversations.
    """
    report = JudgementsReport()
    write_table(path, refuse_none(judgement_rows(store, rule, report, format), store.place, report))
    return report


def judgement_rows(
    store: Store, rule: Rule, report: JudgementsReport | None = None, format: Format = "auto"
) -> Iterator[dict[str, Any]]:
    """The live judgements as rows with ``COLUMNS``, in the order of their items, one consistent view. "auto": each text as it is stored;
    else see ``forms.form_of``."""
    report = JudgementsReport() if report is None else report
    form = as_stored if format == "auto" else form_of(store, format)
    rule = replace(rule, without=annotator_ids(store, rule.without))
    names = {one.id: one.name for one in store.annotators()}
    with reading(store.engine) as connection:
        for items in chunks(item_rows(connection)):
            for row in _of_items(connection, items, rule, names, report, form):
                report.rows += 1
                yield row


def _of_items(
    connection: Connection, items: Sequence[Any], rule: Rule, names: Mapping[str, str], report: JudgementsReport, form: Form
) -> Iterator[dict[str, Any]]:
    judged = judgements_on(connection, [item.item_id for item in items])
    used: list[tuple[Any, list[Judgement]]] = []
    for item in items:
        kept = []
        for judgement in judged.get(item.item_id, ()):
            report.judgements += 1
            withdrawn = "withdrawn" if judgement.withdrawn_at is not None else ""
            without = "by annotators left out" if judgement.annotator in rule.without else ""
            if reason := outside(item, rule) or withdrawn or without:
                report.left_out[reason] += 1
            else:
                kept.append(judgement)
        if kept:
            used.append((item, kept))
    places = answers_of_items(connection, [item.item_id for item, _ in used])
    answers = _answers(connection, {answer for found in places.values() for answer in found})
    prompts = texts_of(connection, schema.prompts.c.prompt_id, {item.prompt_id for item, _ in used})
    for item, kept in used:
        found = [answers[name] for name in places[item.item_id]]
        for judgement in kept:
            yield _row(item, prompts[item.prompt_id], found, judgement, names[judgement.annotator], form)


def _answers(connection: Connection, ids: set[str]) -> dict[str, Answer]:
    table = schema.answers
    rows = (row for chunk in chunks(sorted(ids)) for row in connection.execute(sa.select(table).where(table.c.answer_id.in_(chunk))))
    return {row.answer_id: answer_of(row) for row in rows}


def _row(item: Any, prompt: Text, answers: Sequence[Answer], judgement: Judgement, name: str, form: Form) -> dict[str, Any]:
    place = {answer.answer_id: at for at, answer in enumerate(answers)}
    shown = [place[answer] for answer in judgement.shown]
    chosen = {Choice.FIRST: 0, Choice.SECOND: 1}.get(judgement.choice)
    texts = [form(answer.text, "assistant") for answer in answers]
    return {
        "prompt": form(prompt, "user"),
        "answers": texts,
        "choice": judgement.choice.value,
        "chosen": None if chosen is None else texts[chosen],
        "rejected": None if chosen is None else texts[1 - chosen],
        "strength": None if judgement.strength is None else judgement.strength.value,
        "ranking": [[place[answer] for answer in tier] for tier in judgement.ranking] or None,
        "annotator": name,
        "annotator_id": judgement.annotator,
        "shown": shown,
        "chosen_shown_first": None if chosen is None else shown[0] == chosen,
        "reason": judgement.reason,
        "comment": judgement.comment,
        "seconds": judgement.seconds,
        "made_at": judgement.made_at,
        "models": [answer.provenance.model for answer in answers],
        "gold": item.gold,
        "chosen_by": item.chosen_by,
        "judgement_id": judgement.judgement_id,
        "item_id": item.item_id,
        "prompt_id": item.prompt_id,
        "answer_ids": [answer.answer_id for answer in answers],
    }


_CHOSEN = (
    "item that a strategy had chosen for being hard (`chosen_by`): not kept of an item that is new here, whose statistics take it for one "
    "drawn at random; `tether collect dump` and `load` keep it"
)


def judgements() -> Parser:
    """Rows of ``export_judgements``, back to what they were. Where ids of prompt, item and answers are missing, the contents decide."""
    return _parse


def _parse(row: Mapping[str, Any]) -> Iterator[Imported]:
    if lacks := [name for name in ("prompt", "answers", "choice", "annotator") if not has(row, name)]:
        raise DataError(f"expected a row of `tether collect export --rows judgements`; {', '.join(lacks)} is missing; {field_names(row)}.")
    texts = _texts(row["answers"])
    size = len(texts)
    models, ids = (_strings(row, name, size) for name in ("models", "answer_ids"))
    answers = tuple(GivenAnswer(text, models[at] if models else "", ids[at] if ids else "") for at, text in enumerate(texts))
    choice = _one_of(row, "choice", Choice)
    _check_texts(row, choice, texts)
    gold = _one_of(row, "gold", Choice)
    if gold is not None and (size != 2 or gold in (Choice.SKIP, Choice.RANKED)):
        raise DataError("`gold` must be first, second, tie or both_bad, of two answers.")
    word = Word(
        annotator=_text(row, "annotator"),
        tiers=_tiers(row, choice, size),
        strength=_strength(row, choice),
        reason=_text(row, "reason"),
        comment=_text(row, "comment"),
        seconds=_seconds(row.get("seconds")),
        made_at=_text(row, "made_at"),
        shown=_shown(row, size),
        both_bad=choice is Choice.BOTH_BAD,
        judgement_id=_text(row, "judgement_id"),
    )
    if choice is Choice.SKIP and not word.reason.strip():
        raise DataError("a skip needs its `reason`.")
    notes = () if _text(row, "chosen_by") not in CHOOSING else (_CHOSEN,)
    prompt = prompt_field(row, "prompt")
    yield Imported(prompt, answers, (word,), notes=notes, prompt_id=_text(row, "prompt_id"), item_id=_text(row, "item_id"), gold=gold)


def _texts(found: Any) -> list[Text]:
    if not isinstance(found, list) or len(found) < 2:
        raise DataError(f"`answers` must be a list of two or more texts, got {kind_of(found)}.")
    texts: list[Text] = []
    for text in found:
        if isinstance(text, str):
            check_unicode(text, "`answers`")
        texts.append(text if isinstance(text, str) else messages_field(text, "answers"))
    return texts


def _check_texts(row: Mapping[str, Any], choice: Choice, texts: Sequence[Text]) -> None:
    """`chosen` and `rejected` say again what `choice` says; a row in which they disagree was changed by hand."""
    at = {Choice.FIRST: 0, Choice.SECOND: 1}.get(choice) if len(texts) == 2 else None
    for name, wanted in (("chosen", at), ("rejected", None if at is None else 1 - at)):
        given = row.get(name)
        if given is None or (given == "" and wanted is None):  # an empty cell of a CSV file
            continue
        if wanted is None or (given if isinstance(given, str) else messages_field(given, name)) != texts[wanted]:
            raise DataError(f"`{name}` is not the answer that `choice` and `answers` name; change all three, or leave `{name}` out.")


def _tiers(row: Mapping[str, Any], choice: Choice, size: int) -> tuple[tuple[int, ...], ...]:
    ranked = row.get("ranking")
    if (size > 2) != (choice is Choice.RANKED) and choice is not Choice.SKIP:
        raise DataError(f"{size} answers and the choice {choice}: two answers are compared, more are ranked.")
    if choice is not Choice.RANKED:
        if ranked:
            raise DataError("a `ranking` belongs to the choice ranked.")
        known = {Choice.FIRST: ((0,), (1,)), Choice.SECOND: ((1,), (0,)), Choice.SKIP: ()}
        return known.get(choice, ((0, 1),))
    tiers = ranked if isinstance(ranked, list) and all(isinstance(tier, list) and tier for tier in ranked) else []
    if sorted((at for tier in tiers for at in tier), key=repr) != sorted(range(size), key=repr):
        raise DataError(f"`ranking` must place each of 0 to {size - 1} once, got {ranked!r:.60}.")
    return tuple(tuple(tier) for tier in tiers)


def _strength(row: Mapping[str, Any], choice: Choice) -> Strength | None:
    strength = _one_of(row, "strength", Strength)
    if strength is not None and choice not in (Choice.FIRST, Choice.SECOND):
        raise DataError("a `strength` belongs to the choice first or second.")
    return strength


def _shown(row: Mapping[str, Any], size: int) -> tuple[int, ...]:
    shown = row.get("shown")
    if shown is None:
        return ()
    if not isinstance(shown, list) or sorted(shown, key=repr) != sorted(range(size), key=repr):
        raise DataError(f"`shown` must hold each of 0 to {size - 1} once, got {shown!r:.60}.")
    return tuple(shown)


def _seconds(found: Any) -> float | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise DataError(f"`seconds` must be a number from 0, got {found!r:.40}.")
    return float(found)


def _text(row: Mapping[str, Any], name: str) -> str:
    found = row.get(name)
    if found is None:
        return ""
    if not isinstance(found, str) or "\x00" in found:
        raise DataError(f"`{name}` must be a string (without U+0000), got {kind_of(found)}.")
    check_unicode(found, f"`{name}`")
    return found


def _one_of(row: Mapping[str, Any], name: str, words: Any) -> Any:
    found = row.get(name)
    if found is None:
        return None
    if found not in tuple(words):
        raise DataError(f"`{name}` must be one of {', '.join(words)}, got {found!r:.40}.")
    return words(found)


def _strings(row: Mapping[str, Any], name: str, size: int) -> list[str]:
    found = row.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or len(found) != size or not all(isinstance(one, str) for one in found):
        raise DataError(f"`{name}` must be a list of {size} strings, as many as there are answers.")
    return found
