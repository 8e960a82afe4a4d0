"""Single judgements of a database beside the pairs that they were made into: who said what, and which answer was shown first. Needs the
extra `collect`, as everything that reads a database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tether.collect.stats.command import collect_stats
from tether.collect.stats.summary import Figure
from tether.collect.stats.votes import read_votes
from tether.collect.store import Store
from tether.run.reward_audit.pairs import Vote
from tether.types import Message

__all__ = ["DatabaseWords", "read_database"]


@dataclass(frozen=True, slots=True)
class DatabaseWords:
    """``votes[i]``: of row i. ``ceiling``: of all judgements of the database, with why it is missing where it is."""

    votes: tuple[tuple[Vote, ...], ...]
    ceiling: Figure


def read_database(path: str, rows: Sequence[Mapping[str, Any]], seed: int) -> DatabaseWords:
    """``rows``: exported ones, with ``item_id`` and ``prompt_id``. Test questions and withdrawn judgements are left out."""
    with Store.open(path) as store:
        items = {item.item_id: item for item in store.items()}
        turns = {answer.answer_id: _turns(answer.text) for answer in store.answers()}
        names = {annotator.id: annotator.name for annotator in store.annotators()}
        votes = read_votes(store.judgements(), items.values(), {})
        ceiling = collect_stats(store, seed=seed).figure("ceiling")
    prompts = [votes.prompts[number] for number in votes.unit_prompt.tolist()]
    units = {(prompt, *pair): number for number, (prompt, pair) in enumerate(zip(prompts, votes.unit_answers, strict=True))}
    said = defaultdict[int, list[tuple[str, int, int]]](list)
    columns = (votes.unit, votes.annotator, votes.outcome, votes.side, votes.gold)
    for unit, who, outcome, side, gold in zip(*(column.tolist() for column in columns), strict=True):
        if not gold:
            said[unit].append((names[votes.annotators[who]], outcome, side))
    told = []
    for row in rows:
        chosen, rejected = (_answer(items[row["item_id"]].answers, turns, row[side]) for side in ("chosen", "rejected"))
        first, second = sorted((chosen, rejected))
        sign = 1 if chosen == first else -1  # a unit has its answers in the order of their ids
        unit = units.get((row["prompt_id"], first, second), -1)
        told.append(tuple(Vote(who, sign * outcome, sign * side > 0) for who, outcome, side in said.get(unit, ())))
    return DatabaseWords(tuple(told), ceiling)


def _answer(answers: Sequence[str], turns: Mapping[str, tuple[tuple[str, str], ...]], text: Any) -> str:
    wanted = _turns(text)
    return next(answer for answer in answers if turns[answer] == wanted)


def _turns(text: Any) -> tuple[tuple[str, str], ...]:
    """A text as turns, whether it is plain, messages, or messages as an export writes them."""
    if isinstance(text, str):
        return (("assistant", text),)
    return tuple((turn.role, turn.content) if isinstance(turn, Message) else (turn["role"], turn["content"]) for turn in text)
