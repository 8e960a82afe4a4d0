"""Sizes of a model from its files alone: config.json and the headers of its safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.errors import ModelError
from tether.models.classes import FAMILIES

__all__ = ["Dims", "dims_of", "parameter_count"]

_LEAN = frozenset(family.lower() for family in FAMILIES)  # model types whose norms and gates keep less (models.elementwise)


@dataclass(frozen=True, slots=True)
class Dims:
    """A decoder. ``parameters``: numbers in its files (a tied head is none of its own); ``tied``: embedding and head are one matrix;
    ``lean``: its layers keep for the backward pass what ``models.elementwise`` says."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    lean: bool

    @property
    def embedding(self) -> int:
        """Weights of the embedding."""
        return self.vocabulary * self.hidden

    @property
    def matrices(self) -> int:
        """Weights of layers: all but embedding and head."""
        return max(0, self.parameters - self.embedding * (1 if self.tied else 2))

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one position in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size

    def adapter_weights(self, rank: int, targets: Sequence[str]) -> int:
        """rank x (inputs + outputs) of every matrix that ``targets`` names (none: all of a layer), over all layers."""
        attention, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        sides = {
            "q_proj": self.hidden + attention, "k_proj": self.hidden + kv, "v_proj": self.hidden + kv, "o_proj": attention + self.hidden,
            "gate_proj": self.hidden + self.intermediate, "up_proj": self.hidden + self.intermediate,
            "down_proj": self.intermediate + self.hidden,
        }  # fmt: skip
        return self.layers * rank * sum(sides.get(name, 0) for name in targets or sides)


def dims_of(folder: Path) -> Dims | None:
    """None where the folder has no safetensors, or its config.json is that of no decoder of known shape. Raises ModelError for damage."""
    count = parameter_count(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if count is None or not isinstance(config, dict):
        return None
    sizes: dict[str, Any] = config.get("text_config") or config
    try:
        hidden, heads = int(sizes["hidden_size"]), int(sizes["num_attention_heads"])
        return Dims(
            parameters=count,
            layers=int(sizes["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(sizes["intermediate_size"]),
            heads=heads,
            kv_heads=int(sizes.get("num_key_value_heads") or heads),
            head_size=int(sizes.get("head_dim") or hidden // heads),
            vocabulary=int(sizes["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", True)),
            lean=str(sizes.get("model_type")) in _LEAN,
        )
    except (KeyError, TypeError, ValueError):
        return None


def parameter_count(folder: Path) -> int | None:
    """Numbers in the safetensors files of a folder, from their headers alone; None without such a file."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return sum(_numbers_in(file) for file in files) if files else None


def _numbers_in(file: Path) -> int:
    """A safetensors file begins with the length of its JSON header as 8 little-endian bytes."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            if length > file.stat().st_size:  # a length that a damaged file makes up is not asked of memory
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
            return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ModelError(f"{file} is not a safetensors file: {error}") from error
