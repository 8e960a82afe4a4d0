"""The judged pairs that an audit reads, without those of prompts that the model was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tether.data.load import load_rows
from tether.errors import DataError
from tether.records import read_judgements
from tether.types import Comparison, Ranking

__all__ = ["AuditPairs", "hash_of_key", "load_pairs", "prompt_hash"]


@dataclass(frozen=True)
class AuditPairs:
    """``rows[i]`` holds the columns of the row that ``pairs[i]`` came from; ``num_seen`` pairs were left out."""

    pairs: tuple[Comparison, ...]
    rows: tuple[Mapping[str, Any], ...]
    source: str = "pairs"
    sha256: str = ""
    num_seen: int = 0
    notes: tuple[str, ...] = field(default=())


def prompt_hash(prompt: object) -> str:
    """Twelve hex digits that stand for a prompt; a reward model stores those it was trained on."""
    return hash_of_key(repr(prompt))


def hash_of_key(key: str) -> str:
    """The same from the repr of the prompt, which is the key of its group."""
    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def load_pairs(path: str, split: str, limit: int | None, fitted_to: Mapping[str, Any]) -> AuditPairs:
    """Comparisons of a file, rankings as all their pairs. Raises DataError where none is left that is held out."""
    loaded = load_rows(path, split, limit)
    pairs: list[Comparison] = []
    rows: list[Mapping[str, Any]] = []
    for record, row in zip(read_judgements(loaded.rows, loaded.source), loaded.rows, strict=True):
        told = [record] if isinstance(record, Comparison) else _pairs_of(record)
        pairs += told
        rows += [row if isinstance(row, Mapping) else {}] * len(told)
    seen = frozenset(str(fitted_to.get("prompts") or "").split())
    held = [at for at, pair in enumerate(pairs) if prompt_hash(pair.prompt) not in seen]
    if not held:
        raise DataError(
            f"{path}: the model was trained on the prompts of all {len(pairs)} pairs, so none is held out; give pairs of other prompts"
        )
    notes = () if seen else ("The model does not say which prompts it was trained on: that these pairs are held out is yours to know.",)
    chosen = tuple(pairs[at] for at in held)
    return AuditPairs(chosen, tuple(rows[at] for at in held), path, loaded.sha256, len(pairs) - len(held), notes)


def _pairs_of(ranking: Ranking) -> Sequence[Comparison]:
    order = sorted(range(len(ranking.answers)), key=lambda k: (ranking.places[k], k))
    return [
        Comparison(ranking.prompt, ranking.answers[i], ranking.answers[j], label=0.5 if ranking.places[i] == ranking.places[j] else 1.0)
        for at, i in enumerate(order)
        for j in order[at + 1 :]
    ]
