"""The copies that a Llama sampler holds, beside the trained weights: made again at a publish, and compared, a few entries of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from .llama import LlamaWeights

__all__ = ["copy_again", "packed_gaps"]

_ENTRIES = 64


@torch.no_grad()
def copy_again(weights: LlamaWeights, model: LlamaForCausalLM) -> None:
    """Write the present weights of ``model`` over the copies: no second set in memory. What is no copy is left alone."""
    written: set[int] = set()  # the tied embedding shares the head's copy
    for _, copied, trained in _pairs(weights, model):
        if copied.data_ptr() not in written | {trained.data_ptr()}:
            copied.copy_(trained)
            written.add(copied.data_ptr())


@torch.no_grad()
def packed_gaps(weights: LlamaWeights, model: LlamaForCausalLM) -> dict[str, float]:
    """Largest difference over up to 64 entries spread over each tensor, by name of the trained weight. A healthy copy gives 0 for all:
    both sides are rounded the same way. One transfer to the host, whatever the size of the model.
    """
    names, gaps = [], []
    for name, copied, trained in _pairs(weights, model):
        stride = max(1, trained.numel() // _ENTRIES)
        own, theirs = copied.flatten()[::stride], trained.detach().flatten()[::stride].to(copied.dtype)
        names.append(name)
        gaps.append((own.float() - theirs.float()).abs().max())
    return dict(zip(names, torch.stack(gaps).tolist(), strict=True))


def _pairs(weights: LlamaWeights, model: LlamaForCausalLM) -> Iterator[tuple[str, Tensor, Tensor]]:
    trunk: Any = model.model
    yield "embed_tokens", weights.embedding, trunk.embed_tokens.weight
    for index, (copied, layer) in enumerate(zip(weights.layers, trunk.layers, strict=True)):
        attention, mlp, place = layer.self_attn, layer.mlp, f"layers.{index}"
        yield f"{place}.input_layernorm", copied.attention_norm, layer.input_layernorm.weight
        yield from _rows_of(place, copied.qkv, {name: getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")})
        yield f"{place}.o_proj", copied.out, attention.o_proj.weight
        yield f"{place}.post_attention_layernorm", copied.mlp_norm, layer.post_attention_layernorm.weight
        yield from _rows_of(place, copied.gate_up, {name: getattr(mlp, name) for name in ("gate_proj", "up_proj")})
        yield f"{place}.down_proj", copied.down, mlp.down_proj.weight
    yield "norm", weights.norm, trunk.norm.weight
    yield "lm_head", weights.head, model.lm_head.weight


def _rows_of(place: str, stacked: tuple[Tensor, ...], linears: dict[str, Any]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The parts of a stacked matrix beside what they were copied from; a tuple of references is one part each."""
    trained = [linear.weight for linear in linears.values()]
    parts = stacked if len(stacked) == len(trained) else stacked[0].split([weight.shape[0] for weight in trained])
    for name, part, weight in zip(linears, parts, trained, strict=True):
        yield f"{place}.{name}", part, weight
