"""A decoder of its own for Llama-like models: one prompt pass per prompt, a key-value cache written in place.

Axes: R live rows, N packed prompt tokens, H query heads, K key-value heads, G = H / K, D head size, C cache
columns, L layers, V vocabulary. Columns of the cache: first the prompt region, in which every prompt ends
at the same column; then a ring of response columns, in which all rows write the same column of a step.
Attention does not care about the order of columns (positions are inside the rotated keys), so a row may
join at any step: the bias says what is its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from .llama_weights import LlamaLayer, LlamaWeights
from .prepacked import wide_product

__all__ = ["LlamaDecoder"]

PREFILL_TOKENS = 4096  # most prompt tokens of one packed pass
RING_GROWTH = 32  # columns by which the cache grows


class LlamaDecoder:
    """The state of one ``generate`` call: the cache and who sits where. Weights come with each call, so
    that a publish in mid-generation takes effect from the next token on. Rows are 0 ... R-1, dense at all
    times.

    The cache is as wide as is in use, rounded up: a batched product over a slice of columns would copy it
    each time.
    """

    def __init__(
        self, weights: LlamaWeights, *, max_rows: int, max_positions: int, response_columns: int
    ) -> None:
        device = weights.head.device
        positions = torch.arange(max_positions, device=device)
        cos, sin = weights.rotary(torch.empty(0, device=device), positions[None])
        half = weights.head_size // 2
        self._cos_PD = cos[0].float()
        self._sin_PD = torch.cat(
            [-sin[0, :, :half], sin[0, :, half:]], -1
        ).float()  # rotate_half is then a roll
        self._max_rows, self._response_columns = max_rows, response_columns
        self._prompt_columns = self._ring_columns = 0
        blank = torch.empty(
            max_rows, weights.kv_heads, 0, weights.head_size, dtype=weights.head.dtype, device=device
        )
        self._keys = [blank for _ in weights.layers]  # each (rows, K, C, D)
        self._values = [blank for _ in weights.layers]
        self._bias_RC = torch.empty(max_rows, 0, device=device)
        self._lengths: list[int] = []  # tokens in the cache, per live row
        self._steps = 0

    def join(
        self, weights: LlamaWeights, prompts: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> Float[Tensor, "R V"]:
        """Add ``counts[i]`` rows of prompt i after the live rows; the logits of their first tokens. Each
        prompt is computed once, packed with the others and without padding.
        """
        lengths, device = [len(prompt) for prompt in prompts], weights.head.device
        self._make_room(max(lengths))
        rows, first = [], len(self._lengths)
        for count, length in zip(counts, lengths, strict=True):
            rows.append(slice(first, first + count))
            first += count
            self._bias_RC[rows[-1]] = -torch.inf
            self._bias_RC[rows[-1], self._prompt_columns - length : self._prompt_columns] = 0.0
            self._lengths += [length] * count
        hidden_Nh = _embed(weights, torch.tensor([t for prompt in prompts for t in prompt], device=device))
        positions_N = torch.cat([torch.arange(length, device=device) for length in lengths])
        rotation = self._cos_PD[positions_N, None], self._sin_PD[positions_N, None]
        for index, layer in enumerate(weights.layers):
            q_NHD, k_NKD, v_NKD = _heads(weights, layer, hidden_Nh, rotation)
            mixed = []
            for own, q, k, v in zip(rows, *(x.split(lengths) for x in (q_NHD, k_NKD, v_NKD)), strict=True):
                mixed.append(_causal_attention(q, k, v))
                self._write_prompt(index, own, k, v)
            hidden_Nh = _rest_of_layer(weights, layer, hidden_Nh, torch.cat(mixed))
        last_P = torch.tensor(lengths, device=device).cumsum(0) - 1
        logits_PV = _logits(weights, hidden_Nh[last_P])
        return logits_PV.repeat_interleave(torch.tensor(counts, device=device), 0)

    def step(self, weights: LlamaWeights, tokens: Sequence[int]) -> Float[Tensor, "R V"]:
        """Feed one token to each live row; the logits of the next."""
        num_rows, device = len(self._lengths), weights.head.device
        if self._steps % self._response_columns == self._ring_columns:
            self._resize(self._prompt_columns, min(self._ring_columns + RING_GROWTH, self._response_columns))
        column = self._prompt_columns + self._steps % self._response_columns
        self._steps += 1
        self._bias_RC[:num_rows, column] = 0.0
        bias_R11C = self._bias_RC[:num_rows, None, None]
        positions_R = torch.tensor(self._lengths, device=device)
        rotation = self._cos_PD[positions_R, None], self._sin_PD[positions_R, None]
        hidden_Rh = _embed(weights, torch.tensor(tokens, device=device))
        for index, layer in enumerate(weights.layers):
            q_RHD, k_RKD, v_RKD = _heads(weights, layer, hidden_Rh, rotation)
            keys_RKCD, values_RKCD = self._keys[index][:num_rows], self._values[index][:num_rows]
            keys_RKCD[:, :, column] = k_RKD
            values_RKCD[:, :, column] = v_RKD
            mixed_Rh = _cached_attention(q_RHD, keys_RKCD, values_RKCD, bias_R11C)
            hidden_Rh = _rest_of_layer(weights, layer, hidden_Rh, mixed_Rh)
        self._lengths = [length + 1 for length in self._lengths]
        return _logits(weights, hidden_Rh)

    def keep(self, alive: Sequence[bool]) -> list[int]:
        """Drop the other rows; rows from the end fill the holes. Returns the old index of each new row."""
        num_left = sum(alive)
        holes = [row for row in range(num_left) if not alive[row]]
        movers = [row for row in range(num_left, len(alive)) if alive[row]]
        if holes:
            for cache in (*self._keys, *self._values, self._bias_RC):
                cache[holes] = cache[movers]
        origin = dict(zip(holes, movers, strict=True))
        order = [origin.get(row, row) for row in range(num_left)]
        self._lengths = [self._lengths[row] for row in order]
        return order

    def _make_room(self, longest: int) -> None:
        """A prompt region of at least this many columns; a fresh and narrow cache where no row is live."""
        if not self._lengths:
            self._steps = 0
            ring = min(RING_GROWTH, self._response_columns)
            if (longest, ring) != (self._prompt_columns, self._ring_columns):
                self._prompt_columns = self._ring_columns = 0
                self._bias_RC = self._bias_RC[:, :0]
                self._resize(longest, ring)
        elif longest > self._prompt_columns:
            self._resize(longest, self._ring_columns)

    def _resize(self, prompt_columns: int, ring_columns: int) -> None:
        """Move the columns into wider buffers: prompts end at the new border, the ring begins there. New
        columns are zero (a weight of zero times what memory holds may be NaN).
        """
        columns, old = prompt_columns + ring_columns, self._bias_RC.shape[1]
        live, shift = len(self._lengths), prompt_columns - self._prompt_columns
        kept = slice(shift, shift + old)
        for caches in (self._keys, self._values):
            for index, cache in enumerate(caches):
                wide = cache.new_zeros(self._max_rows, cache.shape[1], columns, cache.shape[3])
                if old:
                    wide[:live, :, kept] = cache[:live]
                caches[index] = wide
        bias_RC = self._bias_RC.new_full((self._max_rows, columns), -torch.inf)
        bias_RC[:live, kept] = self._bias_RC[:live]
        self._bias_RC, self._prompt_columns, self._ring_columns = bias_RC, prompt_columns, ring_columns

    def _write_prompt(self, layer: int, rows: slice, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Lay one prompt's keys and values into its rows (what earlier rows left there is finite, and
        masked).
        """
        own = slice(self._prompt_columns - k_NKD.shape[0], self._prompt_columns)
        self._keys[layer][rows, :, own] = k_NKD.transpose(0, 1)
        self._values[layer][rows, :, own] = v_NKD.transpose(0, 1)


def _embed(weights: LlamaWeights, tokens_N: Tensor) -> Tensor:
    return F.embedding(tokens_N, weights.embedding).float()  # the residual stream stays in float32


def _normed(weights: LlamaWeights, hidden_Nh: Tensor, scale_h: Tensor) -> Tensor:
    return F.rms_norm(hidden_Nh, scale_h.shape, scale_h, weights.eps).to(weights.head.dtype)


def _heads(
    weights: LlamaWeights, layer: LlamaLayer, hidden_Nh: Tensor, rotation: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys (rotation in float32), and values, in compute precision."""
    projected = layer.qkv(_normed(weights, hidden_Nh, layer.attention_norm))
    every_NXD = projected.view(hidden_Nh.shape[0], -1, weights.head_size)
    rotated = weights.heads + weights.kv_heads
    cos_N1D, sin_N1D = rotation
    plain_NXD = every_NXD[:, :rotated].float()
    if layer.head_norms is not None:
        plain_NXD = F.rms_norm(plain_NXD, plain_NXD.shape[-1:], None, weights.eps).to(projected.dtype).float()
        for heads, scale_D in zip(plain_NXD.tensor_split((weights.heads,), 1), layer.head_norms, strict=True):
            heads.mul_(scale_D)
    swapped_NXD = plain_NXD.roll(weights.head_size // 2, -1)
    qk_NXD = (plain_NXD * cos_N1D).addcmul_(swapped_NXD, sin_N1D).to(projected.dtype)
    return qk_NXD[:, : weights.heads], qk_NXD[:, weights.heads :], every_NXD[:, rotated:]


def _causal_attention(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    group = q_THD.shape[1] // k_TKD.shape[1]
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TKD, v_TKD))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)
    return mixed[0].transpose(0, 1).flatten(1)


def _cached_attention(q_RHD: Tensor, keys_RKCD: Tensor, values_RKCD: Tensor, bias_R11C: Tensor) -> Tensor:
    """softmax(q k / sqrt(D) + bias) v with the G queries of a key-value head as one small matrix product."""
    rows, kv_heads, columns, size = keys_RKCD.shape
    q_XGD = q_RHD.reshape(rows * kv_heads, -1, size)
    scores_XGC = torch.bmm(q_XGD, keys_RKCD.view(rows * kv_heads, columns, size).transpose(1, 2))
    scores_RKGC = scores_XGC.view(rows, kv_heads, -1, columns)
    weights_RKGC = torch.softmax(torch.add(bias_R11C, scores_RKGC, alpha=size**-0.5), -1).to(q_RHD.dtype)
    mixed_XGD = torch.bmm(weights_RKGC.flatten(0, 1), values_RKCD.view(rows * kv_heads, columns, size))
    return mixed_XGD.view(rows, -1)


def _rest_of_layer(weights: LlamaWeights, layer: LlamaLayer, hidden_Nh: Tensor, mixed_Nh: Tensor) -> Tensor:
    hidden_Nh = hidden_Nh + layer.out(mixed_Nh)
    gate, up = layer.gate_up(_normed(weights, hidden_Nh, layer.mlp_norm)).chunk(2, -1)
    return hidden_Nh + layer.down(F.silu(gate) * up)


def _logits(weights: LlamaWeights, hidden_Nh: Tensor) -> Tensor:
    return wide_product(_normed(weights, hidden_Nh, weights.norm), weights.head)
