"""What a run that stops leaves for inspection: the batch as tensors, and what was found in it. No code runs on reading either."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from tether.data.batches import TextBatch, pad_examples
from tether.files import write_atomic, write_atomic_bytes
from tether.text.chat import TokenizedExample

__all__ = ["example_tensors", "save_evidence", "text_tensors"]


def save_evidence(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
    """``folder`` with batch.safetensors and facts.json (the facts, and the shape of every tensor). Returns ``folder``."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    write_atomic_bytes(folder / "batch.safetensors", [save(plain)])
    shapes = {name: list(tensor.shape) for name, tensor in plain.items()}
    write_atomic(folder / "facts.json", json.dumps({**facts, "tensors": shapes}, indent=2) + "\n")
    return folder


def text_tensors(batch: TextBatch, prefix: str = "") -> dict[str, Tensor]:
    """A padded batch by name."""
    return {
        f"{prefix}token_ids": batch.token_ids_BT,
        f"{prefix}attention_mask": batch.attention_mask_BT,
        f"{prefix}response_mask": batch.response_mask_BT,
    }


def example_tensors(examples: Sequence[TokenizedExample], pad_id: int, prefix: str = "") -> dict[str, Tensor]:
    """Rows, padded, by name."""
    return text_tensors(pad_examples(examples, pad_id), prefix)
