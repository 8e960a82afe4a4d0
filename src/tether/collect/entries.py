"""What goes into the database and comes out of it, besides items and judgements (``tether.collect.judgement``). Frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tether.collect.judgement import Item
from tether.records.texts import Text

__all__ = ["Annotator", "Answer", "ItemState", "Progress", "Provenance", "Shown", "StoredPrompt", "Text", "plain_text"]


def plain_text(text: Text) -> str:
    """An answer as one text to show: a single turn is its content, several are headed by their roles.

    Example: (Message("assistant", "Hm?"), Message("user", "Well?")) -> "assistant: Hm?\\n\\nuser: Well?".
    """
    if isinstance(text, str):
        return text
    if len(text) == 1:
        return text[0].content
    return "\n\n".join(f"{turn.role}: {turn.content}" for turn in text)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where an answer comes from; empty where it is not known.

    ``source``: a person, a file, "tether collect generate". ``model``: its name; ``checkpoint_sha256``: of its weights. ``sampling``: the
    contract it was drawn under (``tether.types.Sampling`` as a mapping), with ``stop_reason`` where it is known. ``seed``: of the draw.
    """

    source: str = ""
    model: str = ""
    checkpoint_sha256: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a prompt. ``answer_id`` is the caller's, or ``Answer.of`` derives one."""

    answer_id: str
    prompt_id: str
    text: Text
    provenance: Provenance = field(default_factory=Provenance)

    @classmethod
    def of(cls, prompt_id: str, text: Text, provenance: Provenance | None = None, *, number: int = 0) -> Answer:
        """An answer whose id is a hash of all of it: importing the same row twice adds nothing. ``number`` tells equal draws apart."""
        provenance = provenance or Provenance()
        turns = text if isinstance(text, str) else [[turn.role, turn.content] for turn in text]
        whole = json.dumps([prompt_id, turns, asdict(provenance), number], sort_keys=True, default=str)
        return cls(hashlib.sha256(whole.encode()).hexdigest()[:24], prompt_id, text, provenance)

    @property
    def plain(self) -> str:
        """The answer as one text to show."""
        return plain_text(self.text)


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """A prompt as it is stored. ``held_out``: its items are for evaluation, not for training; fixed at import."""

    prompt_id: str
    text: Text
    columns: Mapping[str, Any] = field(default_factory=dict)
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Annotator:
    """Someone who judges."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Shown:
    """An item as one annotator sees it. ``answers``: the texts as displayed, left to right; ``shown``: their ids in that order."""

    item: Item
    prompt: Text
    answers: tuple[str, ...]
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of one annotator. ``judged``: with gold items, without skips. ``open``: ordinary items still wanting this one's judgement."""

    judged: int
    skipped: int
    open: int


@dataclass(frozen=True, slots=True)
class ItemState:
    """How an item is served. ``wanted``: judgements it should get; ``judged``: it has, skips not counted; None and 0 for gold items.

    ``random``: it belongs to the share set apart uniformly at random, so that estimates over these items are unbiased. ``chosen_by``: the
    way it was chosen when it was first shown ("random", a strategy, "unscored", "gold"); None before.
    """

    item: Item
    wanted: int | None
    judged: int
    random: bool
    chosen_by: str | None
