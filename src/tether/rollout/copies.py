"""The copies that the sampler's own decoder holds: made again at a publish, and compared with what is trained, a few entries of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..errors import SamplerError
from ..models.adapters import adapter_of
from .llama_weights import LlamaWeights, Projection, head_norms, stacks, write_stacked
from .prepacked import prepack

__all__ = ["copy_again", "packed_gaps"]

_ENTRIES = 64


@torch.no_grad()
def copy_again(weights: LlamaWeights, model: Any) -> None:
    """Write the present weights of ``model`` over the copies: no second set in memory. What is no copy is left alone.

    A prepacked matrix is cast and packed anew, one at a time, and written over the old one. Under adapters they alone are written: all else
    is frozen, which ``packed_gaps`` looks at.
    """
    tied = model.model.embed_tokens.weight
    written: set[int] = set()  # the tied embedding shares the head's copy
    for copied, trained in _adapters(weights, model) if weights.adapted else _copies(weights, model):
        parts = list(trained.values())
        if copied.is_mkldnn:
            is_embedding = parts[0] is tied  # whose copy came first
            plain = weights.embedding if is_embedding else write_stacked(torch.empty(copied.shape, dtype=copied.dtype), parts)
            copied.copy_(prepack(plain))
        elif copied.data_ptr() not in written | {parts[0].data_ptr()}:
            write_stacked(copied, parts)
            written.add(copied.data_ptr())


@torch.no_grad()
def packed_gaps(weights: LlamaWeights, model: Any) -> dict[str, float]:
    """Largest difference over up to 64 entries spread over each tensor, by name of the trained weight. A healthy copy gives 0 for all:
    both sides are rounded the same way. One transfer to the host, whatever the size of the model.
    """
    names, gaps = [], []
    for copied, trained in chain(_copies(weights, model), _adapters(weights, model)):
        plain = copied.to_dense() if copied.is_mkldnn else copied
        for (name, weight), part in zip(trained.items(), plain.split([weight.shape[0] for weight in trained.values()]), strict=True):
            stride = max(1, weight.numel() // _ENTRIES)
            own, theirs = part.flatten()[::stride], weight.detach().flatten()[::stride].to(plain.dtype)
            names.append(name)
            gaps.append((own.float() - theirs.float()).abs().max())
    return dict(zip(names, torch.stack(gaps).tolist(), strict=True))


def _copies(weights: LlamaWeights, model: Any) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
    """What the sampler holds, each with the trained weights that are stacked in it, in order, by name."""
    trunk: Any = model.model
    yield weights.embedding, {"embed_tokens": trunk.embed_tokens.weight}
    for index, (copied, layer) in enumerate(zip(weights.layers, trunk.layers, strict=True)):
        yield copied.attention_norm, {f"layers.{index}.input_layernorm": layer.input_layernorm.weight}
        yield copied.mlp_norm, {f"layers.{index}.post_attention_layernorm": layer.post_attention_layernorm.weight}
        for held, (name, norm) in zip(copied.head_norms or (), head_norms(layer).items(), strict=True):
            yield held, {f"layers.{index}.{name}": norm.weight}
    for projection, linears in _projections(weights, model):
        yield from _stacked(projection.matrices, {name: linear.weight for name, linear in linears.items()})
        if projection.biases:
            yield from _stacked(projection.biases, {f"{name}.bias": linear.bias for name, linear in linears.items()})
    yield weights.norm, {"norm": trunk.norm.weight}
    yield weights.head, {"lm_head": model.lm_head.weight}


def _stacked(held: tuple[Tensor, ...], trained: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
    """One tensor of all, or references, one each."""
    if len(held) == 1:
        yield held[0], trained
    else:
        yield from ((one, {name: weight}) for one, (name, weight) in zip(held, trained.items(), strict=True))


def _adapters(weights: LlamaWeights, model: Any) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
    """The same of adapters: both factors of each. Raises SamplerError where they are not those that the sampler was made with."""
    for projection, linears in _projections(weights, model):
        trained = {name: adapter for name, linear in linears.items() if (adapter := adapter_of(linear)) is not None}
        if [held.scale for held in projection.adapters] != [adapter.scale for adapter in trained.values()]:
            raise SamplerError(
                f"adapters of {', '.join(linears)} were switched off, merged, added or scaled anew since this sampler was made: "
                "give them back, or make a new sampler"
            )
        for held, (name, adapter) in zip(projection.adapters, trained.items(), strict=True):
            yield held.down_rI, {f"{name}.lora_A": adapter.down_rI}
            yield held.up_Or, {f"{name}.lora_B": adapter.up_Or}


def _projections(weights: LlamaWeights, model: Any) -> Iterator[tuple[Projection, Mapping[str, Any]]]:
    """Each with the linear layers that are stacked in it, by name."""
    for index, (copied, layer) in enumerate(zip(weights.layers, model.model.layers, strict=True)):
        for projection, linears in zip(copied.projections, stacks(layer), strict=True):
            yield projection, {f"layers.{index}.{name}": linear for name, linear in linears.items()}
