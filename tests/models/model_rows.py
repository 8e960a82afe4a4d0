"""Batches for the tests of models."""

from __future__ import annotations

import torch

from tether.data.batches import TextBatch, pad_examples
from tether.text.chat import TokenizedExample


def ragged_batch(
    rows: tuple[tuple[int, int], ...] = ((4, 9), (2, 3), (7, 1), (5, 0)), seed: int = 1
) -> TextBatch:
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for prompt, answer in rows:
        ids = torch.randint(4, 384, (prompt + answer,), generator=generator).tolist()
        examples.append(TokenizedExample(tuple(ids), tuple(n >= prompt for n in range(prompt + answer))))
    return pad_examples(examples, 0)
