"""Which prompts a reward model was fitted to: hashes that are stored with it, so that an audit can leave them out. Texts are not stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tether.records.texts import Text, prompt_key

__all__ = ["DEMONSTRATED", "hash_of_key", "prompt_hash", "prompt_hashes", "stored_hashes", "was_seen"]

DEMONSTRATED = "demonstrated_prompts"


def prompt_hash(prompt: Text) -> str:
    """Twelve hex digits that stand for a prompt, as plain text or as one turn of a user."""
    return hash_of_key(prompt_key(prompt))


def hash_of_key(key: str) -> str:
    """The same from the key of the prompt's group (``records.texts.prompt_key``)."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def prompt_hashes(prompts: Iterable[Text]) -> str:
    """Those of all prompts, as they are stored: sorted, each once, with spaces between."""
    return " ".join(sorted({prompt_hash(prompt) for prompt in prompts}))


def stored_hashes(fitted_to: Mapping[str, Any], key: str = "prompts") -> frozenset[str]:
    """Those in what a model says it was fitted to; none where it does not say. ``key`` DEMONSTRATED: of the demonstrations that the model
    it was built on was fine-tuned on in the same run."""
    return frozenset(str(fitted_to.get(key) or "").split())


def was_seen(prompt: Text, seen: frozenset[str]) -> bool:
    """Whether the prompt is among those that were stored."""
    return prompt_hash(prompt) in seen
