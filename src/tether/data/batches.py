"""Batches of token rows. Axes: B sequences, T tokens; rows are right-padded and only attention_mask says
what is a pad.

Column t of every `_BT` tensor speaks of token t; see the token alignment in the architecture notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tether.errors import DataError
from tether.text.chat import TokenizedExample

__all__ = [
    "PairBatch",
    "PolicyBatch",
    "TextBatch",
    "last_live_index",
    "length_mask",
    "pad_examples",
    "pad_values",
]

Device = torch.device | str


@final
@dataclass(frozen=True, slots=True)
class TextBatch:
    """Token rows with their masks. `response_mask_BT` is True exactly where the policy produced the token."""

    token_ids_BT: Int[Tensor, "B T"]
    attention_mask_BT: Bool[Tensor, "B T"]
    response_mask_BT: Bool[Tensor, "B T"]

    def __post_init__(self) -> None:
        shape = self.token_ids_BT.shape
        assert len(shape) == 2, f"token_ids_BT must be [B, T], got {tuple(shape)}"
        for mask_BT in (self.attention_mask_BT, self.response_mask_BT):
            assert mask_BT.dtype == torch.bool, f"masks are boolean, got {mask_BT.dtype}"
            assert mask_BT.shape == shape, f"mask {tuple(mask_BT.shape)} against token ids {tuple(shape)}"

    @property
    def num_rows(self) -> int:
        """B."""
        return self.token_ids_BT.shape[0]

    def lengths(self) -> list[int]:
        """Columns each row needs: one past its last attended token. What `packing.microbatches` wants."""
        return _extents_B(self.attention_mask_BT).tolist()

    def rows(self, indices: Sequence[int]) -> TextBatch:
        """Those rows in that order, cut to the longest of them."""
        return self._take(*_selection(self, indices))

    def to(self, device: Device) -> TextBatch:
        """The same batch on a device."""
        return TextBatch(
            self.token_ids_BT.to(device), self.attention_mask_BT.to(device), self.response_mask_BT.to(device)
        )

    def _take(self, index_B: Tensor, width: int) -> TextBatch:
        return TextBatch(
            *(
                _take(x_BT, index_B, width)
                for x_BT in (self.token_ids_BT, self.attention_mask_BT, self.response_mask_BT)
            )
        )


@final
@dataclass(frozen=True, slots=True)
class PairBatch:
    """Comparisons: row b of `chosen` is preferred to row b of `rejected` by `margins_B` (score units, 0 when
    unknown).
    """

    chosen: TextBatch
    rejected: TextBatch
    margins_B: Float[Tensor, " B"]

    def __post_init__(self) -> None:
        counts = (self.chosen.num_rows, self.rejected.num_rows, self.margins_B.shape[0])
        assert len(set(counts)) == 1, f"chosen, rejected and margins have {counts} rows"

    @property
    def num_rows(self) -> int:
        """B, the number of pairs."""
        return self.chosen.num_rows

    def lengths(self) -> list[int]:
        """Columns of the longer side of each pair."""
        return [max(pair) for pair in zip(self.chosen.lengths(), self.rejected.lengths(), strict=True)]

    def rows(self, indices: Sequence[int]) -> PairBatch:
        """Those pairs in that order; each side is cut to its own longest row."""
        index_B = torch.tensor(list(indices), dtype=torch.long, device=self.margins_B.device)
        return PairBatch(self.chosen.rows(indices), self.rejected.rows(indices), self.margins_B[index_B])

    def to(self, device: Device) -> PairBatch:
        """The same batch on a device."""
        return PairBatch(self.chosen.to(device), self.rejected.to(device), self.margins_B.to(device))


@final
@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """What one policy update reads: the sampled ids and, per token, the numbers fixed before the first step
    (nats).
    """

    text: TextBatch
    old_logprobs_BT: Float[Tensor, "B T"]
    ref_logprobs_BT: Float[Tensor, "B T"] | None
    sampler_logprobs_BT: Float[Tensor, "B T"]
    advantages_BT: Float[Tensor, "B T"]
    returns_BT: Float[Tensor, "B T"] | None
    old_values_BT: Float[Tensor, "B T"] | None

    def __post_init__(self) -> None:
        shape = self.text.token_ids_BT.shape
        for x_BT in self._values():
            assert x_BT is None or x_BT.shape == shape, (
                f"{tuple(x_BT.shape)} against token ids {tuple(shape)}"
            )

    @property
    def num_rows(self) -> int:
        """B."""
        return self.text.num_rows

    def lengths(self) -> list[int]:
        """Columns each row needs."""
        return self.text.lengths()

    def rows(self, indices: Sequence[int]) -> PolicyBatch:
        """Those rows in that order, cut to the longest of them."""
        index_B, width = _selection(self.text, indices)
        return self._map(self.text._take(index_B, width), lambda x_BT: _take(x_BT, index_B, width))

    def to(self, device: Device) -> PolicyBatch:
        """The same batch on a device."""
        return self._map(self.text.to(device), lambda x_BT: x_BT.to(device))

    def _map(self, text: TextBatch, move: Callable[[Tensor], Tensor]) -> PolicyBatch:
        def optional(x_BT: Tensor | None) -> Tensor | None:
            return None if x_BT is None else move(x_BT)

        return PolicyBatch(
            text=text,
            old_logprobs_BT=move(self.old_logprobs_BT),
            ref_logprobs_BT=optional(self.ref_logprobs_BT),
            sampler_logprobs_BT=move(self.sampler_logprobs_BT),
            advantages_BT=move(self.advantages_BT),
            returns_BT=optional(self.returns_BT),
            old_values_BT=optional(self.old_values_BT),
        )

    def _values(self) -> tuple[Tensor | None, ...]:
        return (
            self.old_logprobs_BT,
            self.ref_logprobs_BT,
            self.sampler_logprobs_BT,
            self.advantages_BT,
            self.returns_BT,
            self.old_values_BT,
        )


def pad_examples(examples: Sequence[TokenizedExample], pad_id: int) -> TextBatch:
    """Rows padded on the right with `pad_id`, which is filler only: it may equal an end token.

    Example: ids (5, 6, 2) and (7, 2), pad 2 -> ids [[5, 6, 2], [7, 2, 2]], attention [[1, 1, 1], [1, 1, 0]].
    """
    if not examples:
        raise DataError("no examples to make a batch of: expected at least one row.")
    lengths = [len(example.token_ids) for example in examples]
    width = max(lengths)
    ids = [[*e.token_ids, *[pad_id] * (width - n)] for e, n in zip(examples, lengths, strict=True)]
    live = [[*e.response_mask, *[False] * (width - n)] for e, n in zip(examples, lengths, strict=True)]
    shape = (len(examples), width)
    return TextBatch(
        token_ids_BT=torch.tensor(ids, dtype=torch.long).reshape(shape),
        attention_mask_BT=length_mask(lengths, width),
        response_mask_BT=torch.tensor(live, dtype=torch.bool).reshape(shape),
    )


def pad_values(values: Sequence[Sequence[float]], batch: TextBatch) -> Float[Tensor, "B T"]:
    """One number per response token of each row, put in the columns of those tokens; 0 elsewhere.

    Example: response mask [[0, 0, 1, 1]], values [[-0.5, -0.1]] -> [[0, 0, -0.5, -0.1]].
    """
    mask_BT = batch.response_mask_BT
    counts = mask_BT.sum(dim=1).tolist()
    given = [len(row) for row in values]
    if given != counts:
        bad = next(
            (b for b, (g, c) in enumerate(zip(given, counts, strict=False)) if g != c),
            min(len(given), len(counts)),
        )
        raise DataError(
            f"expected one value per response token; row {bad + 1} of {len(counts)} is the first that "
            f"differs (values {given[bad : bad + 1]}, response tokens {counts[bad : bad + 1]})."
        )
    out_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
    flat = [value for row in values for value in row]
    out_BT[mask_BT] = torch.tensor(flat, dtype=torch.float32, device=mask_BT.device)
    return out_BT


def length_mask(lengths: Sequence[int], width: int) -> Bool[Tensor, "B T"]:
    """True in the first `lengths[b]` columns of row b. Example: [3, 0], width 4 -> [[1, 1, 1, 0], [0, 0, 0,
    0]].
    """
    if any(not 0 <= length <= width for length in lengths):
        raise DataError(f"lengths must lie between 0 and the width {width}, got {list(lengths)}.")
    lengths_B = torch.tensor(list(lengths), dtype=torch.long)
    return torch.arange(width)[None, :] < lengths_B[:, None]


def last_live_index(attention_mask_BT: Bool[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """Column of the last attended token of each row, whichever side is padded and whatever the ids.

    Example: [[0, 0, 1, 1], [1, 1, 0, 0]] -> [3, 1].
    """
    index_B = _extents_B(attention_mask_BT) - 1
    if bool((index_B < 0).any()):
        bad = [int(row) + 1 for row in (index_B < 0).nonzero().flatten()]
        raise DataError(
            f"rows {bad} have no attended token, so they have no last one: leave them out of the batch."
        )
    return index_B


def _extents_B(attention_mask_BT: Tensor) -> Tensor:
    """One past the last True of each row; 0 for a row without one."""
    columns_T = torch.arange(1, attention_mask_BT.shape[1] + 1, device=attention_mask_BT.device)
    if columns_T.numel() == 0:
        return torch.zeros(attention_mask_BT.shape[0], dtype=torch.long, device=attention_mask_BT.device)
    return torch.where(attention_mask_BT, columns_T, 0).amax(dim=1)


def _selection(batch: TextBatch, indices: Sequence[int]) -> tuple[Tensor, int]:
    """Row indices as a tensor, and the width that holds the longest of those rows."""
    index_B = torch.tensor(list(indices), dtype=torch.long, device=batch.token_ids_BT.device)
    extents_B = _extents_B(batch.attention_mask_BT[index_B])
    return index_B, int(extents_B.max()) if extents_B.numel() else 0


def _take(x_BT: Tensor, index_B: Tensor, width: int) -> Tensor:
    return x_BT[index_B, :width]
