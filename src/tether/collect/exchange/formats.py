"""Layouts of preference data sets: TRL's columns, Anthropic's HH transcripts, rated completions as in UltraFeedback.

Every function returns a parser of rows (``given.Parser``). Whose word a row is says its column `annotator` or `rater`, unless the caller
names an ``annotator``; without either it is "import". A column without a place in the database is a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from tether.collect.exchange.given import GivenAnswer, Imported, Parser, Word, without_place
from tether.collect.judgement import Strength
from tether.errors import DataError
from tether.records import comparison_from_row, prompt_from_row
from tether.records.fields import check_answer, check_prompt, field_names, has, kind_of
from tether.records.prompts import implicit_prompt
from tether.types import Message

__all__ = ["Pairs", "hh", "ratings", "trl"]

Pairs = Literal["ranking", "best_worst", "all"]
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLE = {"Human": "user", "Assistant": "assistant"}


def trl(annotator: str = "") -> Parser:
    """`prompt`, `chosen`, `rejected`, plain or conversational; without `prompt` it is what both answers begin with.

    A `label`, the probability that chosen is better, is a vote for chosen (1), for rejected (0) or a tie (.5); a number between sums up
    several people and makes the row a bad one (``summaries.one_vote_each`` takes it). A `strength` of "slight" or "much" is kept (our own
    exports have it); a margin is a number without a place here and is counted.
    """

    def parse(row: Mapping[str, Any]) -> Iterator[Imported]:
        _refuse_transcripts(row)
        pair = comparison_from_row(row)
        strength = _strength(row.get("strength"))
        if pair.label not in _TIERS:
            raise DataError(
                f"`label` is {pair.label:g}, the share of several people who prefer chosen; a row is one person's word (1, 0, or .5 for a "
                "tie). --summaries as_votes takes each row as one vote for the side that has more."
            )
        who, notes = _who(row, annotator)
        if pair.margin and strength is None:
            notes.append("margin that is not kept: the database holds strengths, slight or much")
        if pair.label == 0.5 and (strength or pair.margin):
            notes.append("strength or margin of a tie, not kept")
        notes += without_place(row, *_WHO, "prompt", "chosen", "rejected", "label", "strength", "margin")
        word = Word(who, _TIERS[pair.label], strength)
        yield Imported(pair.prompt, (GivenAnswer(pair.chosen), GivenAnswer(pair.rejected)), (word,), notes=tuple(notes))

    return parse


_TIERS = {1.0: ((0,), (1,)), 0.5: ((0, 1),), 0.0: ((1,), (0,))}
_WHO = ("annotator", "rater")


def _refuse_transcripts(row: Mapping[str, Any]) -> None:
    """A transcript of HH is a plain string, and would be taken as one strange answer."""
    for name in ("chosen", "rejected"):
        if isinstance(text := row.get(name), str) and text.startswith("\n\nHuman:"):
            told = f'`{name}` begins with "\\n\\nHuman:", a transcript as in Anthropic\'s HH data'
            raise DataError(f"{told}; import the file with --format hh.")


def _who(row: Mapping[str, Any], annotator: str) -> tuple[str, list[str]]:
    """(whose word it is, notes on names that are not kept)."""
    given = {name: row[name] for name in _WHO if row.get(name) not in (None, "")}
    if annotator:
        return annotator, [f"column `{name}`, not kept: --annotator says whose word it is" for name in given]
    if not given:
        return "import", []
    (column, name), *others = given.items()
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
        raise DataError(f"`{column}` must be the name of the person who judged, got {kind_of(name)}; --annotator names one for all rows.")
    return str(name).strip(), [f"column `{other}`, not kept: `{column}` says whose word it is" for other, _ in others]


def hh(annotator: str = "") -> Parser:
    """`chosen` and `rejected`, whole transcripts with the marks "\\n\\nHuman:" and "\\n\\nAssistant:"; they become conversations."""

    def parse(row: Mapping[str, Any]) -> Iterator[Imported]:
        chosen, rejected = (_transcript(row, name) for name in ("chosen", "rejected"))
        prompt, *answers = implicit_prompt(chosen, rejected)
        check_prompt(prompt)
        for name, answer in zip(("chosen", "rejected"), answers, strict=True):
            check_answer(answer, name)
        who, notes = _who(row, annotator)
        notes += without_place(row, *_WHO, "chosen", "rejected")
        yield Imported(prompt, tuple(map(GivenAnswer, answers)), (Word(who, _TIERS[1.0]),), notes=tuple(notes))

    return parse


def _transcript(row: Mapping[str, Any], name: str) -> tuple[Message, ...]:
    text = row.get(name)
    if not isinstance(text, str):
        raise DataError(f"`{name}` must be a transcript, a string, got {kind_of(text)}; {field_names(row)}.")
    before, *parts = _TURN.split(text)
    if before.strip() or not parts:
        raise DataError(f'`{name}` must begin with "\\n\\nHuman:" or "\\n\\nAssistant:", got {text[:30]!r}.')
    return tuple(Message(_ROLE[who], said.strip()) for who, said in zip(parts[::2], parts[1::2], strict=True))  # pyright: ignore[reportArgumentType]


def ratings(pairs: Pairs = "ranking", annotator: str = "") -> Parser:
    """`prompt` (or `instruction`) and several rated answers: `completions`, each with `response` (or `text`, `content`), `model` and
    `overall_score` (or `rating`, `score`, or `annotations` whose `Rating` numbers are averaged); or the lists `generations`, `ratings`,
    `generation_models`.

    ``pairs``: "ranking", one item of all answers, ranked by their ratings; "best_worst", the best against the worst; "all", every pair.
    Equal ratings are ties. Without any rating there is no judgement; a rating that some answers lack makes the row a bad one.
    """
    if pairs not in ("ranking", "best_worst", "all"):
        raise DataError(f"pairs must be ranking, best_worst or all, got {pairs!r}")

    def parse(row: Mapping[str, Any]) -> Iterator[Imported]:
        prompt = prompt_from_row(row if has(row, "prompt") or has(row, "messages") else {**row, "prompt": row.get("instruction")}, 0).text
        answers, scores = _rated(row)
        known = [score for score in scores if score is not None]
        if known and len(known) < len(scores):
            raise DataError(f"{len(scores) - len(known)} of {len(scores)} answers have no rating; rate all of them or none.")
        who, notes = _who(row, annotator)
        notes += without_place(row, *_WHO, *_OF_RATINGS)
        if has(row, "completions"):
            notes += without_place({name: value for one in row["completions"] for name, value in one.items()}, *_USED, of="completions.")
        for number, places in enumerate(_groups(scores if known else [0.0] * len(scores), pairs)):
            words = (Word(who, _tiers([scores[at] for at in places])),) if known else ()
            yield Imported(prompt, tuple(answers[at] for at in places), words, notes=() if number else tuple(notes))

    return parse


_OF_RATINGS = ("prompt", "messages", "instruction", "completions", "generations", "ratings", "generation_models")
_USED = ("response", "text", "content", "model", "overall_score", "rating", "score", "annotations")


def _groups(scores: Sequence[float | None], pairs: Pairs) -> list[tuple[int, ...]]:
    places = range(len(scores))
    if pairs == "ranking":
        return [tuple(places)]
    if pairs == "all":
        return list(combinations(places, 2))
    best, worst = max(places, key=lambda at: scores[at] or 0.0), min(places, key=lambda at: scores[at] or 0.0)
    return [(best, worst if worst != best else (best + 1) % len(scores))]


def _tiers(scores: Sequence[float | None]) -> tuple[tuple[int, ...], ...]:
    levels = sorted({score for score in scores if score is not None}, reverse=True)
    return tuple(tuple(at for at, score in enumerate(scores) if score == level) for level in levels)


def _rated(row: Mapping[str, Any]) -> tuple[list[GivenAnswer], list[float | None]]:
    if has(row, "completions"):
        found = row["completions"]
        if not isinstance(found, Sequence) or isinstance(found, str) or not all(isinstance(one, Mapping) for one in found):
            raise DataError(f"`completions` must be a list of objects, got {kind_of(found)}.")
        texts = [_first(one, "response", "text", "content") for one in found]
        models, scores = [one.get("model") for one in found], [_score(one) for one in found]
    elif has(row, "generations"):
        texts = _list(row, "generations")
        scores = [_number(value) for value in _list(row, "ratings") or [None] * len(texts)]
        models = _list(row, "generation_models") or [""] * len(texts)
        if not len(texts) == len(scores) == len(models):
            raise DataError(f"{len(texts)} generations, {len(scores)} ratings and {len(models)} models: expected as many of each.")
    else:
        raise DataError(f"expected `completions`, or `generations` and `ratings`; {field_names(row)}.")
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise DataError(f"expected two or more answers that are strings, got {len(texts)}.")
    return [GivenAnswer(text, str(model or "")) for text, model in zip(texts, models, strict=True)], scores


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    """A field that is a list; empty where there is none."""
    found = [] if row.get(name) is None else row[name]
    if not isinstance(found, list):
        raise DataError(f"`{name}` must be a list, got {kind_of(found)}.")
    return found


def _first(row: Mapping[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if has(row, name)), None)


def _score(completion: Mapping[str, Any]) -> float | None:
    if (value := _first(completion, "overall_score", "rating", "score")) is not None:
        return _number(value)
    annotations = completion.get("annotations")
    if not isinstance(annotations, Mapping):
        return None
    numbers = [_number(aspect.get("Rating")) for aspect in annotations.values() if isinstance(aspect, Mapping)]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _number(value: Any) -> float | None:
    """A rating as a number; "N/A" and an empty text are none."""
    if value is None or (isinstance(value, str) and value.strip().upper() in ("", "N/A", "NONE")):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"a rating must be a number, got {value!r:.40}.") from error
    if not math.isfinite(number):
        raise DataError(f"a rating must be a finite number, got {value!r:.40}.")
    return number


def _strength(value: Any) -> Strength | None:
    if value in (None, ""):
        return None
    if value not in tuple(Strength):
        raise DataError(f"`strength` must be {' or '.join(Strength)}, got {value!r:.40}.")
    return Strength(value)
