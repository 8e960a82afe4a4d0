"""Rows of a batch laid out as one sequence without pads, in which a prompt that several rows share stands once.

    pack_rows         a right-padded batch -> PackedRows: where every token lies, and what it looks at
    enable_packing    teach a transformers model to attend inside such a sequence (asked of the model itself by a probe)

Exact, not an approximation: a token sees the keys that it sees in its own row, at the same positions. Every other layer of a decoder
treats tokens one by one, so what is saved is saved in all of them. Axes: B rows, T columns, N packed tokens, A sequences of a block, L its
columns, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .attention import attend

__all__ = ["PackedRows", "enable_packing", "pack_rows", "packs", "run_packed"]

NAME = "tether_packed"
_MULTIPLE = 16
"""Packed tokens are filled up to a multiple: products of other numbers of rows take up to twice as long on some CPUs (dev/LOG.md)."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Block:
    """Sequences that lie one after the other from ``start``, and attend together as a padded square."""

    start: int
    lengths: tuple[int, ...]
    index_AL: Tensor | None  # packed index of every place (pads: any token); None where all are equally long
    live_M: Tensor | None  # flat places of the square that are tokens; None likewise

    @property
    def width(self) -> int:
        """L."""
        return max(self.lengths)

    def take(self, x_XND: Tensor) -> Tensor:
        """[X, N, D] -> [A, X, L, D]; X is H or K."""
        if self.index_AL is not None:
            return x_XND[:, self.index_AL].transpose(0, 1)
        own = x_XND[:, self.start : self.start + sum(self.lengths)]
        return own.unflatten(1, (len(self.lengths), self.width)).transpose(0, 1)

    def give(self, x_AHLD: Tensor) -> Tensor:
        """[A, H, L, D] -> its tokens in packed order, [n, H, D]."""
        flat = x_AHLD.transpose(1, 2).flatten(0, 1)
        return flat if self.live_M is None else flat[self.live_M]


@dataclass(frozen=True, slots=True)
class Branches:
    """Answers (the block) that all follow one prompt, which lies in packed places ``prompt``. ``seen_LC``: True where a token of an answer
    sees a column of (prompt, own answer)."""

    prompt: slice
    answers: Block
    seen_LC: Tensor


@dataclass(frozen=True, slots=True)
class PackedRows:
    """``place_BT``: packed index of every token (pads: 0). Packed order: whole rows and shared prompts (``alone``), then the answers, then
    ``filling`` tokens that nothing reads."""

    ids_N: Tensor
    positions_N: Tensor
    place_BT: Tensor
    alone: Block
    branches: tuple[Branches, ...]
    filling: int


def pack_rows(ids_BT: Tensor, attention_mask_BT: Tensor, response_mask_BT: Tensor) -> PackedRows | None:
    """The layout of a batch, on the device of its ids; None where its pads are not all on the right or a row is empty.

    What rows share is what lies before the first live token, where it is equal token by token.
    """
    lengths = attention_mask_BT.sum(-1).tolist()
    if bool((attention_mask_BT[:, 1:] > attention_mask_BT[:, :-1]).any()) or min(lengths, default=0) < 1:
        return None
    rows = [ids[:length] for ids, length in zip(ids_BT.tolist(), lengths, strict=True)]
    first_live = torch.where(response_mask_BT.any(-1), response_mask_BT.int().argmax(-1), 0).tolist()
    families: dict[tuple[int, ...], list[int]] = {}
    for number, (row, first) in enumerate(zip(rows, first_live, strict=True)):
        families.setdefault(tuple(row[:first]) if 0 < first < len(row) else (number, -1), []).append(number)
    shared = [(prompt, members) for prompt, members in families.items() if len(members) > 1]
    single = [members[0] for members in families.values() if len(members) == 1]
    return _lay_out(rows, single, shared, ids_BT)


def _lay_out(
    rows: Sequence[Sequence[int]], single: Sequence[int], shared: Sequence[tuple[tuple[int, ...], list[int]]], ids_BT: Tensor
) -> PackedRows:
    device = ids_BT.device
    place_BT = torch.zeros(ids_BT.shape, dtype=torch.long)
    ids: list[int] = []
    positions: list[int] = []

    def lay(tokens: Sequence[int], first_position: int = 0) -> range:
        start = len(ids)
        ids.extend(tokens)
        positions.extend(range(first_position, first_position + len(tokens)))
        return range(start, len(ids))

    for number in single:
        own = lay(rows[number])
        place_BT[number, : len(own)] = torch.arange(own.start, own.stop)
    prompts = [lay(prompt) for prompt, _ in shared]
    alone = _block(0, [len(rows[number]) for number in single] + [len(prompt) for prompt in prompts], device)
    branches = []
    for prompt, (_, members) in zip(prompts, shared, strict=True):
        start, size = len(ids), len(prompt)
        for number in members:
            own = lay(rows[number][size:], size)
            place_BT[number, :size] = torch.arange(prompt.start, prompt.stop)
            place_BT[number, size : size + len(own)] = torch.arange(own.start, own.stop)
        answers = _block(start, [len(rows[number]) - size for number in members], device)
        own_LL = torch.ones(answers.width, answers.width, dtype=torch.bool, device=device).tril()
        seen_LC = torch.cat([own_LL.new_ones(answers.width, size), own_LL], 1)
        branches.append(Branches(slice(prompt.start, prompt.stop), answers, seen_LC))
    filling = len(lay([0] * (-len(ids) % _MULTIPLE)))
    return PackedRows(
        torch.tensor(ids, device=device), torch.tensor(positions, device=device), place_BT.to(device), alone, tuple(branches), filling
    )


def _block(start: int, lengths: Sequence[int], device: torch.device) -> Block:
    width = max(lengths)
    if min(lengths) == width:
        return Block(start, tuple(lengths), None, None)
    lengths_A = torch.tensor(lengths)
    starts_A = start + lengths_A.cumsum(0) - lengths_A
    inside_AL = torch.arange(width) < lengths_A[:, None]
    index_AL = torch.where(inside_AL, starts_A[:, None] + torch.arange(width), start)
    return Block(start, tuple(lengths), index_AL.to(device), inside_AL.flatten().nonzero()[:, 0].to(device))


# -- the attention -----------------------------------------------------------------------------------------------------------


def packed_attention(q_HND: Tensor, k_KND: Tensor, v_KND: Tensor, rows: PackedRows, scale: float | None) -> Tensor:
    """softmax(scale q k) v of every token over its own row: [N, H, D]."""
    q, k, v = (rows.alone.take(x) for x in (q_HND, k_KND, v_KND))
    mixed = [rows.alone.give(attend(q, k, v, None, scale))]
    for branch in rows.branches:
        answers = branch.answers
        q = answers.take(q_HND)
        k, v = (_after_prompt(x, branch) for x in (k_KND, v_KND))
        mixed.append(answers.give(attend(q, k, v, branch.seen_LC, scale)))
    if rows.filling:
        mixed.append(mixed[0].new_zeros(rows.filling, *mixed[0].shape[1:]))
    return torch.cat(mixed)


def _after_prompt(x_KND: Tensor, branch: Branches) -> Tensor:
    """The prompt's keys (or values) before those of each answer: [A, K, C, D]."""
    own = branch.answers.take(x_KND)
    return torch.cat([x_KND[:, branch.prompt].expand(own.shape[0], -1, -1, -1), own], 2)


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple[Tensor, None]:
    """What transformers calls in every layer. Without a layout it is plain attention."""
    rows: PackedRows | None = kwargs.pop("packed_rows", None)
    if rows is None:
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    return packed_attention(query[0], key[0], value[0], rows, kwargs.get("scaling"))[None], None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


# -- models ------------------------------------------------------------------------------------------------------------------


def packs(trunk: nn.Module) -> bool:
    """Whether this decoder attends inside packed rows."""
    return getattr(getattr(trunk, "config", None), "_attn_implementation", None) == NAME


def run_packed(trunk: nn.Module, rows: PackedRows) -> Tensor:
    """Hidden states after the final norm, [N, hidden]."""
    unused_mask = rows.ids_N.new_zeros(1, 1, 1, 1, dtype=torch.bool)  # four dimensions: transformers makes none of its own
    out = trunk(
        input_ids=rows.ids_N[None],
        position_ids=rows.positions_N[None],
        attention_mask=unused_mask,
        use_cache=False,
        packed_rows=rows,
    )
    return out.last_hidden_state[0]


def enable_packing(model: Any) -> bool:
    """Switch ``model`` to the attention above where it gives the same hidden states in a short probe; else leave it as it is.

    Windows, soft caps, biases of positions and layers that are no attention show up in the probe, or as an error in it.
    """
    before = getattr(model.config, "_attn_implementation", None)
    if before != "sdpa":
        return packs(model)
    try:
        model.set_attn_implementation(NAME)
        same = _probe(model.base_model)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        _log.debug("%s takes no packed rows: %s", type(model).__name__, error)
        same = False
    if not same:
        model.set_attn_implementation(before)
        _log.info("%s: rows are padded instead of packed (slower)", type(model).__name__)
    return same


@torch.no_grad()
def _probe(trunk: Any) -> bool:
    """Two answers of different lengths to one prompt and a row of its own, packed and padded. No for windows: they are longer."""
    config = trunk.config.get_text_config()
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if windowed or any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return False
    width, prompt = 12, 5
    ids_BT = torch.arange(3 * width, device=trunk.device).remainder(config.vocab_size).view(3, width).clone()
    ids_BT[1, :prompt] = ids_BT[0, :prompt]
    mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    mask_BT[1, width - 3 :] = False
    live_BT = mask_BT.clone()
    live_BT[:, :prompt] = False
    rows = pack_rows(ids_BT, mask_BT, live_BT)
    assert rows is not None
    packed_NH = run_packed(trunk, rows)
    padded_BTH = trunk(input_ids=ids_BT, attention_mask=mask_BT.long(), use_cache=False).last_hidden_state
    expected_MH, got_MH = padded_BTH[mask_BT], packed_NH[rows.place_BT[mask_BT]]
    tolerance = (1e-5 if expected_MH.dtype == torch.float32 else 0.05) * float(expected_MH.abs().max().clamp(min=1))
    return torch.allclose(got_MH, expected_MH, atol=tolerance, rtol=0)
