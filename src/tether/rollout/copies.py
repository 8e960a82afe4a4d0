"""The copies that a Llama sampler holds, beside the trained weights: made again at a publish, and compared, a few entries of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from .llama import LlamaWeights, write_stacked
from .prepacked import prepack

__all__ = ["copy_again", "packed_gaps"]

_ENTRIES = 64


@torch.no_grad()
def copy_again(weights: LlamaWeights, model: LlamaForCausalLM) -> None:
    """Write the present weights of ``model`` over the copies: no second set in memory. What is no copy is left alone.

    A prepacked matrix is cast and packed anew, one at a time, and written over the old one.
    """
    tied = model.model.embed_tokens.weight
    written: set[int] = set()  # the tied embedding shares the head's copy
    for copied, trained in _copies(weights, model):
        parts = list(trained.values())
        if copied.is_mkldnn:
            is_embedding = parts[0] is tied  # whose copy came first
            plain = weights.embedding if is_embedding else write_stacked(torch.empty(copied.shape, dtype=copied.dtype), parts)
            copied.copy_(prepack(plain))
        elif copied.data_ptr() not in written | {parts[0].data_ptr()}:
            write_stacked(copied, parts)
            written.add(copied.data_ptr())


@torch.no_grad()
def packed_gaps(weights: LlamaWeights, model: LlamaForCausalLM) -> dict[str, float]:
    """Largest difference over up to 64 entries spread over each tensor, by name of the trained weight. A healthy copy gives 0 for all:
    both sides are rounded the same way. One transfer to the host, whatever the size of the model.
    """
    names, gaps = [], []
    for copied, trained in _copies(weights, model):
        plain = copied.to_dense() if copied.is_mkldnn else copied
        for (name, weight), part in zip(trained.items(), plain.split([weight.shape[0] for weight in trained.values()]), strict=True):
            stride = max(1, weight.numel() // _ENTRIES)
            own, theirs = part.flatten()[::stride], weight.detach().flatten()[::stride].to(plain.dtype)
            names.append(name)
            gaps.append((own.float() - theirs.float()).abs().max())
    return dict(zip(names, torch.stack(gaps).tolist(), strict=True))


def _copies(weights: LlamaWeights, model: LlamaForCausalLM) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
    """What the sampler holds, each with the trained weights that are stacked in it, in order, by name."""
    trunk: Any = model.model
    yield weights.embedding, {"embed_tokens": trunk.embed_tokens.weight}
    for index, (copied, layer) in enumerate(zip(weights.layers, trunk.layers, strict=True)):
        attention, mlp, place = layer.self_attn, layer.mlp, f"layers.{index}"
        yield copied.attention_norm, {f"{place}.input_layernorm": layer.input_layernorm.weight}
        yield from _stacked(place, copied.qkv, {name: getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")})
        yield copied.out, {f"{place}.o_proj": attention.o_proj.weight}
        yield copied.mlp_norm, {f"{place}.post_attention_layernorm": layer.post_attention_layernorm.weight}
        yield from _stacked(place, copied.gate_up, {name: getattr(mlp, name) for name in ("gate_proj", "up_proj")})
        yield copied.down, {f"{place}.down_proj": mlp.down_proj.weight}
    yield weights.norm, {"norm": trunk.norm.weight}
    yield weights.head, {"lm_head": model.lm_head.weight}


def _stacked(place: str, matrices: tuple[Tensor, ...], linears: dict[str, Any]) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
    """One matrix of all, or a tuple of references, one each."""
    trained = {f"{place}.{name}": linear.weight for name, linear in linears.items()}
    if len(matrices) == 1:
        yield matrices[0], trained
    else:
        yield from ((matrix, {name: weight}) for matrix, (name, weight) in zip(matrices, trained.items(), strict=True))
