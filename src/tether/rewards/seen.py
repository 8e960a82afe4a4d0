"""Which prompts a reward model was fitted to: hashes that are stored with it, so that an audit can leave them out. Texts are not stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tether.types import Message

__all__ = ["hash_of_key", "prompt_hash", "prompt_hashes", "was_seen"]


def prompt_hash(prompt: object) -> str:
    """Twelve hex digits that stand for a prompt."""
    return hash_of_key(repr(prompt))


def hash_of_key(key: str) -> str:
    """The same from the repr of the prompt, which is the key of its group."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def prompt_hashes(prompts: Iterable[object]) -> str:
    """Those of all prompts, as they are stored: sorted, each once, with spaces between."""
    return " ".join(sorted({prompt_hash(prompt) for prompt in prompts}))


def was_seen(prompt: str | tuple[Message, ...], seen: frozenset[str]) -> bool:
    """Whether the prompt is among those that were stored, as plain text or as one turn of a user: a database writes the one, a file the
    other."""
    other: object = None
    if isinstance(prompt, str):
        other = (Message("user", prompt),)
    elif len(prompt) == 1 and prompt[0].role == "user":
        other = prompt[0].content
    return prompt_hash(prompt) in seen or (other is not None and prompt_hash(other) in seen)
