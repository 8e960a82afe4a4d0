"""What a decode step of a Llama-like model reads: weights in compute precision, stacked where they read one input, and adapters beside.

Llama, Mistral, Qwen2 (biases of queries, keys and values) and Qwen3 (norms of heads). Axes: N rows, I and O the width before and after a
product, r the rank of an adapter, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.adapters import adapter_of
from ..models.classes import FAMILIES, class_path, family_class
from ..models.elementwise import is_replaced
from .prepacked import prepack, product, why_not_prepacked

__all__ = ["LlamaLayer", "LlamaWeights", "LowRank", "Projection", "head_norms", "pack_llama", "stacks", "why_not_llama", "write_stacked"]

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Frequencies that do not depend on the longest row of a batch."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to the columns ``own`` of a product: scale (x A^T) B^T, rounded where the trainer rounds."""

    down_rI: Tensor
    up_Or: Tensor
    scale: float
    own: slice


@dataclass(frozen=True, slots=True)
class Projection:
    """x -> x W^T + b, and what adapters add. ``matrices``: one of all rows of W, plain or prepacked, or those of the model in order;
    ``biases``: one of each, or none."""

    matrices: tuple[Tensor, ...]
    biases: tuple[Tensor, ...] = ()
    adapters: tuple[LowRank, ...] = ()

    def __call__(self, x_NI: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        """In the precision of the matrices. Adapters are not merged: a sum in bfloat16 would lose what one update changes."""
        biases = self.biases or (None,) * len(self.matrices)
        parts = [product(x_NI, matrix, bias) for matrix, bias in zip(self.matrices, biases, strict=True)]
        out_NO = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        for adapter in self.adapters:
            out_NO[:, adapter.own] += F.linear(F.linear(x_NI, adapter.down_rI), adapter.up_Or) * adapter.scale
        return out_NO


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Projections in compute precision; norms in float32. ``head_norms``: of each query and of each key head, [D] and [D]; often none."""

    attention_norm: Tensor
    qkv: Projection
    out: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection
    head_norms: tuple[Tensor, Tensor] | None = None

    @property
    def projections(self) -> tuple[Projection, ...]:
        """In the order of a step."""
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """What a decode step reads. Own copies, or the model's parameters themselves where the precision is the
    same. ``why_plain``: the reason why matrices are not prepacked, None where they are.
    """

    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Tensor
    rotary: nn.Module
    heads: int
    kv_heads: int
    head_size: int
    eps: float
    why_plain: str | None

    @property
    def adapted(self) -> bool:
        """Whether there are adapters, which then are all that a publish copies."""
        return any(projection.adapters for layer in self.layers for projection in layer.projections)


def why_not_llama(model: nn.Module) -> str | None:
    """The reason why this decoder does not serve the model (a plain path does), or None where it does.
    Strict.
    """
    family = next((name for name in FAMILIES if _is(model, name, "ForCausalLM")), None)
    whole: Any = model
    if family is None or not _is(whole.model, family, "Model"):
        return f"{type(model).__name__} is not exactly one of {', '.join(f'{name}ForCausalLM' for name in FAMILIES)}"
    config: Any = whole.config
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act!r} is not silu"
    rope = config.rope_parameters["rope_type"]
    if rope not in STATIC_ROPE:
        return f"rope type {rope!r} changes with the length of the batch"
    if getattr(config, "sliding_window", None) or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return "attention sees a window"
    if type(whole.lm_head) is not nn.Linear or whole.lm_head.bias is not None:
        return f"the head is not a plain matrix ({type(whole.lm_head).__name__})"
    if type(whole.model.embed_tokens) is not nn.Embedding or not _is(whole.model.norm, family, "RMSNorm"):
        return "the embedding or the final norm was replaced"
    for layer in whole.model.layers:
        if problem := _why_not_layer(layer, family):
            return problem
        if layer.self_attn.scaling != layer.self_attn.head_dim**-0.5:
            return f"attention is scaled by {layer.self_attn.scaling}, not 1 / sqrt(head size)"
    norms = (module for name, module in model.named_modules() if name.endswith("norm"))
    if any(norm.variance_epsilon != config.rms_norm_eps for norm in norms):
        return "a norm has another epsilon than the configuration"
    if replaced := [name for name, module in model.named_modules() if is_replaced(module)]:
        return f"the forward of {replaced[0] or 'the model'} was replaced"
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return "a module has a forward hook" if hooked else None


def _why_not_layer(layer: Any, family: str) -> str | None:
    if not _is(layer, family, "DecoderLayer"):
        return f"a layer was replaced ({type(layer).__name__})"
    if not (_is(layer.self_attn, family, "Attention") and _is(layer.mlp, family, "MLP")):
        return f"a layer was replaced ({type(layer.self_attn).__name__} and {type(layer.mlp).__name__} in it)"
    norms = (layer.input_layernorm, layer.post_attention_layernorm, *head_norms(layer).values())
    if not all(_is(norm, family, "RMSNorm") for norm in norms):
        return "a norm was replaced"
    for stack in stacks(layer):
        for name, linear in stack.items():
            if type(linear) is not nn.Linear and adapter_of(linear) is None:
                return f"{name} was replaced ({type(linear).__name__}: adapters of another kind or switched off, or quantisation)"
        if len({linear.bias is None for linear in stack.values()}) > 1:
            return f"of {', '.join(stack)} some have a bias and others none"
    return None


def _is(module: nn.Module, family: str, kind: str) -> bool:
    return class_path(module) == family_class(family, kind)


def head_norms(layer: Any) -> dict[str, Any]:
    """Of queries and keys, by name; empty where heads are not normed."""
    found = {name: getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")}
    return {name: norm for name, norm in found.items() if norm is not None}


def stacks(layer: Any) -> tuple[dict[str, Any], ...]:
    """The linear layers of a decoder layer by name, in the order of ``LlamaLayer.projections``; those of one entry read the same input."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        {name: getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")},
        {"o_proj": attention.o_proj},
        {name: getattr(mlp, name) for name in ("gate_proj", "up_proj")},
        {"down_proj": mlp.down_proj},
    )


@torch.no_grad()
def pack_llama(model: Any, dtype: torch.dtype) -> LlamaWeights:
    """Weights for decoding in ``dtype``: references where the model already has it, else one cast and
    stacked copy, prepacked where that changes no bit.

    The copy is of one moment and costs 2 bytes a weight; the rows of a tied embedding are looked up in the
    head's matrix, or where that is prepacked, in 2 bytes more.
    """

    def stack(linears: Sequence[Any], what: str = "weight") -> tuple[Tensor, ...]:
        parts = tuple(getattr(linear, what).detach() for linear in linears)
        if parts[0].dtype == dtype:
            return parts
        rows = sum(part.shape[0] for part in parts)
        return (write_stacked(parts[0].new_empty(rows, *parts[0].shape[1:], dtype=dtype), parts),)

    def norm(module: Any) -> Tensor:
        weight = module.weight.detach()
        return weight if weight.dtype == dtype == torch.float32 else weight.float().clone()

    every_layer: Any = model.model.layers
    (head,) = stack([model.lm_head])
    if model.lm_head.weight.dtype == dtype:
        why_plain = "the trained weights are read where they lie (none is copied)"
    else:
        linears = [list(one.values()) for one in stacks(every_layer[0])]
        first = (matrix for one in linears for matrix in stack(one))
        biased = any(one[0].bias is not None for one in linears)
        why_plain = why_not_prepacked(chain(first, [head]), biased=biased)

    def place(matrices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return matrices if why_plain else tuple(prepack(matrix) for matrix in matrices)

    def project(linears: Sequence[Any]) -> Projection:
        matrices = place(stack(linears))
        biases = stack(linears, "bias") if linears[0].bias is not None else ()
        if biases and len(biases) < len(matrices):  # the matrices are in this precision already, the biases were cast and stacked
            biases = biases[0].split([linear.out_features for linear in linears])
        return Projection(matrices, biases, _low_rank(linears, dtype))

    tied = model.model.embed_tokens.weight is model.lm_head.weight
    embedding = head if tied else model.model.embed_tokens.weight.detach().to(dtype)
    (head,) = place((head,))
    layers = []
    for layer in every_layer:
        qkv, out, gate_up, down = (project(list(one.values())) for one in stacks(layer))
        before, after = norm(layer.input_layernorm), norm(layer.post_attention_layernorm)
        of_heads = tuple(map(norm, head_norms(layer).values()))
        layers.append(LlamaLayer(before, qkv, out, after, gate_up, down, (of_heads[0], of_heads[1]) if of_heads else None))
    config: Any = model.config
    return LlamaWeights(
        embedding, tuple(layers), norm(model.model.norm), head, model.model.rotary_emb,
        config.num_attention_heads, config.num_key_value_heads, every_layer[0].self_attn.head_dim,
        config.rms_norm_eps, why_plain,
    )  # fmt: skip


def _low_rank(linears: Sequence[Any], dtype: torch.dtype) -> tuple[LowRank, ...]:
    """The adapters of these layers, in ``dtype``; ``own`` counts rows as they are stacked."""
    found, first = [], 0
    for linear in linears:
        own = slice(first, first + linear.weight.shape[0])
        if (adapter := adapter_of(linear)) is not None:
            found.append(LowRank(adapter.down_rI.detach().to(dtype), adapter.up_Or.detach().to(dtype), adapter.scale, own))
        first = own.stop
    return tuple(found)


def write_stacked(into: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Write the rows of the weights below one another, cast on the way, so that no cast of all is in memory
    too. Returns ``into``.
    """
    for part, weight in zip(into.split([weight.shape[0] for weight in weights]), weights, strict=True):
        part.copy_(weight)
    return into
