"""A decoder of its own for Llama models: packed weights, one prompt pass per prompt, a key-value cache written in place.

Axes: R live rows, N packed prompt tokens, H query heads, K key-value heads, G = H / K, D head size, C cache columns,
L layers, V vocabulary. Columns of the cache: first the prompt region, in which every prompt ends at the same column;
then a ring of response columns, in which all rows write the same column of a step. Attention does not care about the
order of columns (positions are inside the rotated keys), so a row may join at any step: the bias says what is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel, LlamaRMSNorm

__all__ = ["LlamaDecoder", "LlamaWeights", "pack_llama", "why_not_llama"]

STATIC_ROPE = ("default", "linear", "llama3", "yarn")  # frequencies that do not depend on the longest row of a batch
PREFILL_TOKENS = 4096  # most prompt tokens of one packed pass


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Matrices in compute precision (several stand for their rows stacked), norms in float32."""

    attention_norm: Tensor
    qkv: tuple[Tensor, ...]
    out: Tensor
    mlp_norm: Tensor
    gate_up: tuple[Tensor, ...]
    down: Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """What a decode step reads. Own copies, or the model's parameters themselves where the precision is the same."""

    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Tensor
    rotary: nn.Module
    heads: int
    kv_heads: int
    head_size: int
    eps: float


def why_not_llama(model: nn.Module) -> str | None:
    """The reason why this decoder does not serve the model (a plain path does), or None where it does. Strict."""
    if type(model) is not LlamaForCausalLM or type(model.model) is not LlamaModel:
        return f"{type(model).__name__} is not exactly LlamaForCausalLM"
    config = model.config
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act!r} is not silu"
    rope = config.rope_parameters["rope_type"]
    if rope not in STATIC_ROPE:
        return f"rope type {rope!r} changes with the length of the batch"
    linears = [module for layer in model.model.layers for module in _linears(layer)] + [model.lm_head]
    strange = next((type(m).__name__ for m in linears if type(m) is not nn.Linear), None)
    if strange or any(type(layer) is not LlamaDecoderLayer for layer in model.model.layers):
        return f"a layer was replaced ({strange or 'decoder layer'}: adapters or quantisation)"
    if any(linear.bias is not None for linear in linears):
        return "a linear layer has a bias"
    if type(model.model.embed_tokens) is not nn.Embedding or type(model.model.norm) is not LlamaRMSNorm:
        return "the embedding or the final norm was replaced"
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return "a module has a forward hook" if hooked else None


def _linears(layer: LlamaDecoderLayer) -> tuple[nn.Module, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return (
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
        mlp.gate_proj, mlp.up_proj, mlp.down_proj,
    )


@torch.no_grad()
def pack_llama(model: LlamaForCausalLM, dtype: torch.dtype) -> LlamaWeights:
    """Weights for decoding in ``dtype``: references where the model already has it, else one cast and stacked copy.

    In a copy the tied embedding shares the head's matrix, so the copy is of one moment and costs 2 bytes a parameter.
    """

    def stack(*linears: nn.Linear) -> tuple[Tensor, ...]:
        weights = tuple(linear.weight.detach() for linear in linears)
        return weights if weights[0].dtype == dtype else (torch.cat([w.to(dtype) for w in weights]),)

    def norm(module: LlamaRMSNorm) -> Tensor:
        weight = module.weight.detach()
        return weight if weight.dtype == dtype == torch.float32 else weight.float().clone()

    layers = []
    for layer in model.model.layers:
        q, k, v, out, gate, up, down = _linears(layer)
        layers.append(
            LlamaLayer(
                norm(layer.input_layernorm), stack(q, k, v), stack(out)[0],
                norm(layer.post_attention_layernorm), stack(gate, up), stack(down)[0],
            )
        )
    (head,) = stack(model.lm_head)
    tied = model.model.embed_tokens.weight is model.lm_head.weight
    embedding = head if tied else model.model.embed_tokens.weight.detach().to(dtype)
    attention, config = model.model.layers[0].self_attn, model.config
    return LlamaWeights(
        embedding, tuple(layers), norm(model.model.norm), head, model.model.rotary_emb,
        config.num_attention_heads, config.num_key_value_heads, attention.head_dim, config.rms_norm_eps,
    )  # fmt: skip


class LlamaDecoder:
    """The state of one ``generate`` call: the cache and who sits where. Weights come with each call, so that a publish
    in mid-generation takes effect from the next token on. Rows are 0 ... R-1, dense at all times."""

    def __init__(
        self, weights: LlamaWeights, *, max_rows: int, prompt_columns: int, response_columns: int
    ) -> None:
        dtype, device = weights.head.dtype, weights.head.device
        columns = prompt_columns + response_columns
        size = (len(weights.layers), max_rows, weights.kv_heads)
        # Keys lie transposed: query (G, D) times keys (D, C) is the fast orientation for bf16 on CPU.
        self._keys_LRKDC = torch.empty(*size, weights.head_size, columns, dtype=dtype, device=device)
        self._values_LRKCD = torch.empty(*size, columns, weights.head_size, dtype=dtype, device=device)
        self._bias_RC = torch.full((max_rows, columns), -torch.inf, device=device)
        positions = torch.arange(columns, device=device)
        cos, sin = weights.rotary(torch.empty(0, device=device), positions[None])
        half = weights.head_size // 2
        self._cos_PD = cos[0].float()
        self._sin_PD = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1).float()  # for a roll in place of rotate_half
        self._prompt_columns, self._response_columns = prompt_columns, response_columns
        self._lengths: list[int] = []  # tokens in the cache, per live row
        self._prompts: list[int] = []  # prompt tokens, per live row
        self._steps = 0

    def join(
        self, weights: LlamaWeights, prompts: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> Float[Tensor, "R V"]:
        """Add ``counts[i]`` rows of prompt i after the live rows; the logits of their first tokens. Each prompt is
        computed once."""
        if not self._lengths:
            self._steps = 0
        lengths = [len(prompt) for prompt in prompts]
        device = weights.head.device
        hidden_Nh = _embed(weights, torch.tensor([t for prompt in prompts for t in prompt], device=device))
        positions_N = torch.cat([torch.arange(length, device=device) for length in lengths])
        rotation = self._cos_PD[positions_N, None], self._sin_PD[positions_N, None]
        starts = [len(self._lengths) + sum(counts[:i]) for i in range(len(counts))]
        for index, layer in enumerate(weights.layers):
            q_NHD, k_NKD, v_NKD = _heads(weights, layer, hidden_Nh, rotation)
            parts, first = [], 0
            for start, count, length in zip(starts, counts, lengths, strict=True):
                own = slice(first, first + length)
                parts.append(_causal_attention(q_NHD[own], k_NKD[own], v_NKD[own]))
                self._write_prompt(index, slice(start, start + count), k_NKD[own], v_NKD[own])
                first += length
            hidden_Nh = _rest_of_layer(weights, layer, hidden_Nh, torch.cat(parts))
        for start, count, length in zip(starts, counts, lengths, strict=True):
            self._bias_RC[start : start + count] = -torch.inf
            end = self._prompt_columns
            self._bias_RC[start : start + count, end - length : end] = 0.0
            self._lengths += [length] * count
            self._prompts += [length] * count
        last_P = torch.tensor(lengths, device=device).cumsum(0) - 1
        logits_PV = _logits(weights, hidden_Nh[last_P])
        return logits_PV.repeat_interleave(torch.tensor(counts, device=device), 0)

    def step(self, weights: LlamaWeights, tokens: Sequence[int]) -> Float[Tensor, "R V"]:
        """Feed one token to each live row; the logits of the next."""
        num_rows, device = len(self._lengths), weights.head.device
        column = self._prompt_columns + self._steps % self._response_columns
        self._steps += 1
        self._bias_RC[:num_rows, column] = 0.0
        live = slice(self._prompt_columns - max(self._prompts), self._ring_end())
        bias_R11C = self._bias_RC[:num_rows, None, None, live]
        positions_R = torch.tensor(self._lengths, device=device)
        rotation = self._cos_PD[positions_R, None], self._sin_PD[positions_R, None]
        hidden_Rh = _embed(weights, torch.tensor(tokens, device=device))
        for index, layer in enumerate(weights.layers):
            q_RHD, k_RKD, v_RKD = _heads(weights, layer, hidden_Rh, rotation)
            keys_RKDC, values_RKCD = self._keys_LRKDC[index, :num_rows], self._values_LRKCD[index, :num_rows]
            keys_RKDC[..., column] = k_RKD
            values_RKCD[:, :, column] = v_RKD
            mixed = _cached_attention(q_RHD, keys_RKDC[..., live], values_RKCD[:, :, live], bias_R11C)
            hidden_Rh = _rest_of_layer(weights, layer, hidden_Rh, mixed)
        self._lengths = [length + 1 for length in self._lengths]
        return _logits(weights, hidden_Rh)

    def keep(self, alive: Sequence[bool]) -> list[int]:
        """Drop the other rows; rows from the end fill the holes. Returns the old index of each new row."""
        order = [row for row, lives in enumerate(alive) if lives]
        num_left = len(order)
        holes = [row for row in range(num_left) if not alive[row]]
        movers = [row for row in order if row >= num_left]
        if holes:
            live = slice(self._prompt_columns - max(self._prompts), self._ring_end())
            self._keys_LRKDC[:, holes, ..., live] = self._keys_LRKDC[:, movers, ..., live]
            self._values_LRKCD[:, holes, :, live] = self._values_LRKCD[:, movers, :, live]
            self._bias_RC[holes] = self._bias_RC[movers]
        origin = dict(zip(holes, movers, strict=True))
        order = [origin.get(row, row) for row in range(num_left)]
        self._lengths = [self._lengths[row] for row in order]
        self._prompts = [self._prompts[row] for row in order]
        return order

    def _ring_end(self) -> int:
        return self._prompt_columns + min(self._steps, self._response_columns)

    def _write_prompt(self, layer: int, rows: slice, k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Lay one prompt's keys and values into its rows, and zeros where a masked product must not meet old NaN."""
        end = self._prompt_columns
        own = slice(end - k_NKD.shape[0], end)
        keys_RKDC, values_RKCD = self._keys_LRKDC[layer, rows], self._values_LRKCD[layer, rows]
        for blank in (slice(0, own.start), slice(end, self._ring_end())):
            keys_RKDC[..., blank] = 0
            values_RKCD[:, :, blank] = 0
        keys_RKDC[..., own] = k_NKD.permute(1, 2, 0)
        values_RKCD[:, :, own] = v_NKD.transpose(0, 1)


def _embed(weights: LlamaWeights, tokens_N: Tensor) -> Tensor:
    return F.embedding(tokens_N, weights.embedding).float()  # the residual stream stays in float32


def _project(hidden_Nh: Tensor, matrices: tuple[Tensor, ...]) -> Tensor:
    if len(matrices) == 1:
        return F.linear(hidden_Nh, matrices[0])
    return torch.cat([F.linear(hidden_Nh, matrix) for matrix in matrices], -1)


def _normed(weights: LlamaWeights, hidden_Nh: Tensor, scale_h: Tensor) -> Tensor:
    return F.rms_norm(hidden_Nh, scale_h.shape, scale_h, weights.eps).to(weights.head.dtype)


def _heads(
    weights: LlamaWeights, layer: LlamaLayer, hidden_Nh: Tensor, rotation: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys (rotation in float32), and values, in compute precision."""
    projected = _project(_normed(weights, hidden_Nh, layer.attention_norm), layer.qkv)
    every_NXD = projected.view(hidden_Nh.shape[0], -1, weights.head_size)
    rotated = weights.heads + weights.kv_heads
    cos_N1D, sin_N1D = rotation
    plain_NXD = every_NXD[:, :rotated].float()
    swapped_NXD = plain_NXD.roll(weights.head_size // 2, -1)
    qk_NXD = (plain_NXD * cos_N1D).addcmul_(swapped_NXD, sin_N1D).to(projected.dtype)
    return qk_NXD[:, : weights.heads], qk_NXD[:, weights.heads :], every_NXD[:, rotated:]


def _causal_attention(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    group = q_THD.shape[1] // k_TKD.shape[1]
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TKD, v_TKD))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)
    return mixed[0].transpose(0, 1).flatten(1)


def _cached_attention(q_RHD: Tensor, keys_RKDC: Tensor, values_RKCD: Tensor, bias_R11C: Tensor) -> Tensor:
    """softmax(q k / sqrt(D) + bias) v with the G queries of a key-value head as one small matrix product."""
    rows, kv_heads, size, columns = keys_RKDC.shape
    q_XGD = q_RHD.reshape(rows * kv_heads, -1, size)
    scores_XGC = torch.bmm(q_XGD, keys_RKDC.reshape(rows * kv_heads, size, columns))
    scores_RKGC = scores_XGC.view(rows, kv_heads, -1, columns)
    weights_RKGC = torch.softmax(torch.add(bias_R11C, scores_RKGC, alpha=size**-0.5), -1).to(q_RHD.dtype)
    return torch.bmm(weights_RKGC.flatten(0, 1), values_RKCD.reshape(rows * kv_heads, columns, size)).view(rows, -1)


def _rest_of_layer(weights: LlamaWeights, layer: LlamaLayer, hidden_Nh: Tensor, mixed_Nh: Tensor) -> Tensor:
    hidden_Nh = hidden_Nh + F.linear(mixed_Nh, layer.out)
    gate, up = _project(_normed(weights, hidden_Nh, layer.mlp_norm), layer.gate_up).chunk(2, -1)
    return hidden_Nh + F.linear(F.silu(gate) * up, layer.down)


def _logits(weights: LlamaWeights, hidden_Nh: Tensor) -> Tensor:
    return F.linear(_normed(weights, hidden_Nh, weights.norm), weights.head)
