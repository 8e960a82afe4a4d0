"""Exports of annotation tools: Argilla records (2.x, and the layout of 1.x), Label Studio's JSON with a Pairwise control.

Every function returns a parser of rows (``given.Parser``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tether.collect.exchange.given import GivenAnswer, Imported, Parser, Word, without_place
from tether.errors import DataError
from tether.records.fields import check_prompt, kind_of, text_field

__all__ = ["argilla", "label_studio"]

_PROMPTS = ("prompt", "instruction", "input", "question", "query", "context")
_OF_ARGILLA = ("fields", "responses", "id", "_server_id", "external_id", "status", "inserted_at", "updated_at")
_OF_LABEL_STUDIO = (
    "data", "annotations", "id", "inner_id", "project", "file_upload", "created_at", "updated_at", "updated_by", "total_annotations",
    "cancelled_annotations", "total_predictions", "comment_count", "unresolved_comment_count", "last_comment_updated_at", "comment_authors",
)  # fmt: skip
"""What the tools keep their books with: not worth a note."""
_TIES = ("tie", "equal", "both", "same")


def argilla(question: str = "", prompt: str = "", answers: Sequence[str] = ()) -> Parser:
    """Records with `fields` and `responses`. ``question``: the ranking or label question, needed where several of them name fields.

    ``prompt``: the field of the prompt, else the first of prompt, instruction, input, question, query, context. ``answers``: the fields of
    the answers, else those that a ranking names. A ranking lists them (equal ranks are ties); a label names the better of two or is "tie".
    What has no place here is counted, not kept: discarded and draft responses, those to other questions, other columns and fields.
    """

    def parse(row: Mapping[str, Any]) -> Iterator[Imported]:
        fields = row.get("fields")
        if not isinstance(fields, Mapping):
            raise DataError(f"`fields` must be an object, as in an export of Argilla, got {kind_of(fields)}.")
        asked = _prompt_name(fields, prompt)
        names = {name: _alike(name) for name in answers or fields if name != asked and isinstance(fields.get(name), str)}
        if missing := [name for name in answers if name not in names]:
            raise DataError(f"there is no text in {', '.join(missing)}; the record has {', '.join(fields)}.")
        words: list[tuple[str, list[list[str]]]] = []
        notes, used = list[str](), list[str]()
        for user, status, value in _responses(row, question, names, notes):
            if status not in ("submitted", "", None):
                notes.append(f"response with the status {status!r}, not kept")
                continue
            tiers = _tiers(value, names)
            used += [name for tier in tiers for name in tier if name not in used]
            words.append((f"argilla {user}", tiers))
        chosen = used or list(names)
        if len(chosen) < 2 or (not used and len(chosen) > 2 and not answers):
            raise DataError(f"which fields are the answers? Besides the prompt there are {', '.join(chosen) or 'none'}; name them.")
        text = text_field(fields, asked)
        check_prompt(text)
        given = tuple(GivenAnswer(fields[name], name) for name in chosen)
        notes += without_place(row, *_OF_ARGILLA) + without_place(fields, asked, *chosen, of="fields.")
        yield Imported(text, given, tuple(Word(user, _complete(tiers, chosen)) for user, tiers in words), notes=tuple(notes))

    return parse


def _prompt_name(fields: Mapping[str, Any], asked: str) -> str:
    name = asked or next((name for name in _PROMPTS if name in fields), "")
    if name not in fields:
        raise DataError(f"which field is the prompt? The record has {', '.join(fields)}; name it.")
    return name


def _alike(name: str) -> str:
    """response-1, response_1 and Response 1 are the same to us: the tool writes them in several ways."""
    return name.lower().replace("-", "_").replace(" ", "_")


def _responses(
    row: Mapping[str, Any], question: str, names: Mapping[str, str], notes: list[str]
) -> Iterator[tuple[str, str | None, Any]]:
    """(user, status, value) of every response to the question; the others go into ``notes``."""
    found = row.get("responses") or {}
    flat: list[tuple[str, str, str | None, Any]] = []
    if isinstance(found, Mapping):  # 2.x: question -> its responses
        for asked in found:
            flat += [(asked, _user(one), one.get("status"), one.get("value")) for one in _objects(found, asked, of="responses.")]
    else:  # 1.x: one response per user with the values of all questions
        for one in _objects(row, "responses"):
            values = _object(one, "values")
            flat += [(asked, _user(one), one.get("status"), _object(values, asked).get("value")) for asked in values]
    fitting = {asked for asked, _, _, value in flat if (asked == question if question else _names_fields(value, names))}
    if len(fitting) > 1:
        raise DataError(f"several questions name fields: {', '.join(sorted(fitting))}; say which one counts.")
    if question and flat and not fitting:
        raise DataError(f"there is no response to the question {question!r}; the record has {', '.join(sorted({one[0] for one in flat}))}.")
    for asked, user, status, value in flat:
        if asked in fitting:
            yield user, status, value
        else:
            notes.append(f"response to the question {asked!r}, not kept")


def _objects(row: Mapping[str, Any], name: str, of: str = "") -> list[Mapping[str, Any]]:
    """A field that is a list of objects; empty where there is none. ``of``: what stands before its name in a message."""
    found = row.get(name) or []
    if not isinstance(found, list):
        raise DataError(f"`{of}{name}` must be a list of objects, got {kind_of(found)}.")
    if odd := [one for one in found if not isinstance(one, Mapping)]:
        raise DataError(f"`{of}{name}` must be a list of objects, and {kind_of(odd[0])} is in it.")
    return found


def _object(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object; empty where there is none."""
    found = row.get(name) or {}
    if not isinstance(found, Mapping):
        raise DataError(f"`{name}` must be an object, got {kind_of(found)}.")
    return found


def _user(response: Mapping[str, Any]) -> str:
    return str(response.get("user_id") or "unknown")


def _names_fields(value: Any, names: Mapping[str, str]) -> bool:
    """Whether a value looks like an answer to a ranking or label question; what is wrong with it is said later."""
    if isinstance(value, str):
        return _alike(value) in (*names.values(), *_TIES)
    parts = [one.get("value") if isinstance(one, Mapping) else one for one in value] if isinstance(value, list) else []
    return any(isinstance(part, str) and _alike(part) in names.values() for part in parts)


def _tiers(value: Any, names: Mapping[str, str]) -> list[list[str]]:
    """Field names in tiers, the best first; a tie is one tier."""
    known = {alike: name for name, alike in names.items()}
    if isinstance(value, str):
        if len(names) != 2:
            raise DataError(f"the label {value!r:.40} is about which two of the fields {', '.join(names)}? Name the answers.")
        if _alike(value) in _TIES:
            return [list(names)]
        if _alike(value) not in known:
            raise DataError(f"the label {value!r:.40} names no field; the fields are {', '.join(names)}, or it is a tie.")
        better = known[_alike(value)]
        return [[better], [name for name in names if name != better]]
    if not isinstance(value, Sequence) or not value:
        raise DataError(f"expected a ranking or a label, got {kind_of(value)}.")
    ranks: dict[int, list[str]] = {}
    for at, one in enumerate(value):
        name, rank = (one.get("value"), one.get("rank", at)) if isinstance(one, Mapping) else (one, at)
        if not isinstance(name, str) or _alike(name) not in known or not isinstance(rank, int):
            raise DataError(f"the ranking names {name!r:.40} at rank {rank!r}; the fields are {', '.join(names)}.")
        ranks.setdefault(rank, []).append(known[_alike(name)])
    return [ranks[rank] for rank in sorted(ranks)]


def _complete(tiers: Sequence[Sequence[str]], answers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    placed = sorted(name for tier in tiers for name in tier)
    if placed != sorted(answers):
        raise DataError(f"a response ranks {', '.join(placed)}; expected each of {', '.join(answers)} once.")
    return tuple(tuple(answers.index(name) for name in tier) for tier in tiers)


def label_studio(prompt: str = "", answers: Sequence[str] = ()) -> Parser:
    """Tasks with `data` and `annotations`, exported as JSON (not JSON-MIN). ``prompt`` and ``answers`` (left, right): fields of `data`.

    Without them the prompt is the first of prompt, instruction, input, question, query, context, and the answers are the two that the
    Pairwise result names in `to_name`. A cancelled annotation is a skip; results of other controls, other columns
    and fields are counted, not kept.
    """
    if len(answers) not in (0, 2):
        raise DataError(f"a pair has two answers, left and right; got {', '.join(answers)}")

    def parse(row: Mapping[str, Any]) -> Iterator[Imported]:
        data = row.get("data")
        if not isinstance(data, Mapping):
            raise DataError("`data` must be an object, as in Label Studio's export named JSON (JSON-MIN and CSV leave out who judged).")
        asked = _prompt_name(data, prompt)
        annotations = _objects(row, "annotations")
        _refuse_several_controls(annotations)
        sides = tuple(answers) or _sides(annotations, data)
        texts = [data.get(side) for side in sides]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(f"`data` has no texts {' and '.join(sides)}; name the fields of the two answers.")
        text = text_field(data, asked)
        check_prompt(text)
        notes: list[str] = []
        words = [word for one in annotations if (word := _word(one, notes)) is not None]
        given = tuple(GivenAnswer(str(answer), side) for answer, side in zip(texts, sides, strict=True))
        notes += without_place(row, *_OF_LABEL_STUDIO) + without_place(data, asked, *sides, of="data.")
        yield Imported(text, given, tuple(words), notes=tuple(notes))

    return parse


def _refuse_several_controls(annotations: Sequence[Mapping[str, Any]]) -> None:
    results = [result for one in annotations for result in _objects(one, "result") if result.get("type") == "pairwise"]
    if len(controls := sorted({str(result.get("from_name")) for result in results})) > 1:
        raise DataError(f"several Pairwise controls: {', '.join(controls)}; keep the results of one of them in the file.")


def _sides(annotations: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> tuple[str, str]:
    for annotation in annotations:
        for result in _objects(annotation, "result"):
            names = str(result.get("to_name", "")).replace(" ", "").split(",")
            if result.get("type") == "pairwise" and len(names) == 2 and all(name in data for name in names):
                return names[0], names[1]
    raise DataError(f"which fields are the two answers? `data` has {', '.join(data)}; name them.")


def _word(annotation: Mapping[str, Any], notes: list[str]) -> Word | None:
    who = annotation.get("completed_by")
    who = who.get("email") or who.get("id") if isinstance(who, Mapping) else who
    name = f"label studio {'unknown' if who is None else who}"
    seconds = annotation.get("lead_time")
    seconds = float(seconds) if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e9 else None
    made_at = str(annotation.get("created_at") or "")
    if annotation.get("was_cancelled"):
        return Word(name, reason="cancelled in Label Studio", seconds=seconds, made_at=made_at, shown=(0, 1))
    selected = []
    for result in _objects(annotation, "result"):
        if result.get("type") == "pairwise":
            selected.append(_object(result, "value").get("selected"))
        else:
            notes.append(f"result of the control {result.get('type')!r}, not kept")
    if not selected:
        notes.append("annotation without a Pairwise result, not kept")
        return None
    if selected[0] not in ("left", "right"):
        raise DataError(f"a Pairwise result selects left or right, got {selected[0]!r:.40}.")
    tiers = ((0,), (1,)) if selected[0] == "left" else ((1,), (0,))
    return Word(name, tiers, seconds=seconds, made_at=made_at, shown=(0, 1))
