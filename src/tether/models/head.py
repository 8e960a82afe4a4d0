"""The output head and the softmax over it, a chunk of positions at a time: log-probabilities of chosen tokens without the logits of all.

Forward keeps hidden states, tokens and one normaliser per position, and as many narrow logits as fit into ``KEPT_BYTES``; backward makes
those of the other chunks again and goes straight to the gradients of hidden states and matrix. So memory grows with neither positions x
vocabulary nor the number of elementwise passes of a softmax that autograd takes apart. A chunk is what one product makes; what follows it
goes over a few positions at a time, all passes while they are in the cache. Axes: N positions, C of one chunk, R of one such piece, H
hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..maths.logprobs import CHUNK_ELEMENTS, check_temperature

__all__ = ["chosen_logprobs", "is_fused"]

KEPT_BYTES = 2**27
"""Most bytes of logits that wait for the backward pass, where a product of a quarter of the head's work would make them again."""
_PIECE = {"cpu": 2**20}
"""Logits that are read and written over and over at once, by kind of device: 4 MiB in float32 stay near the cores. Elsewhere: a chunk."""
_COLUMNS = 2048
"""Vocabulary entries of one float32 product on a CPU: of all of them at once it takes a third longer (bench/RESULTS.md)."""


def is_fused(head: nn.Module) -> bool:
    """Whether a path that takes the weight alone serves this head or layer: one plain matrix (no bias, adapter or hook on it)."""
    return type(head) is nn.Linear and head.bias is None and not head._forward_hooks and not head._forward_pre_hooks


def chosen_logprobs(
    weight_VH: Tensor, hidden_NH: Tensor, tokens_N: Tensor, temperature: float, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden W^T / temperature) at ``tokens_N``, and the entropy of that softmax where asked for. Nats, in float32 (or 64).

    Products run in the precision of autocast where it is on, everything else in float32. Both results are differentiable.
    Raises ValueError for a temperature that is not above 0.
    """
    check_temperature(temperature)
    device = hidden_NH.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VH.dtype
    room = KEPT_BYTES if torch.is_grad_enabled() and dtype.itemsize == 2 else 0
    logprobs_N, entropy_N = _Chosen.apply(hidden_NH, weight_VH, tokens_N, temperature, entropy, dtype, room)
    return logprobs_N, entropy_N if entropy else None


class _Chosen(torch.autograd.Function):
    """With z = logits / temperature, p = softmax z and H = -sum p log p:  d log p_a / dz = onehot_a - p,  dH / dz = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        tokens_N: Tensor,
        temperature: float,
        entropy: bool,
        dtype: torch.dtype,
        room: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        matrix_VH = weight_VH.to(dtype)
        states_NH = hidden_NH.to(dtype)
        full = torch.float64 if dtype == torch.float64 else torch.float32
        chosen_N, normaliser_N = (torch.empty(len(tokens_N), dtype=full, device=tokens_N.device) for _ in range(2))
        entropy_N = torch.empty(len(tokens_N) if entropy else 0, dtype=full, device=tokens_N.device)
        kept: list[Tensor] = []
        for own in _chunks(len(tokens_N), len(matrix_VH)):
            logits_CV = _logits(states_NH[own], matrix_VH)
            if (room := room - logits_CV.nbytes) >= 0:
                kept.append(logits_CV)
            for at, piece in _pieces(own, logits_CV):
                z_RV = _tempered(logits_CV[piece], temperature)
                normaliser_N[at] = z_RV.logsumexp(-1)
                chosen_N[at] = z_RV.gather(-1, tokens_N[at, None])[:, 0] - normaliser_N[at]
                if entropy:
                    entropy_N[at] = _entropy(z_RV, normaliser_N[at])
        with torch.autocast(hidden_NH.device.type, enabled=False):
            ctx.save_for_backward(states_NH, matrix_VH, tokens_N, normaliser_N, entropy_N, *kept)
        ctx.temperature, ctx.precisions = temperature, (hidden_NH.dtype, weight_VH.dtype)
        return chosen_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, chosen_grad_N: Tensor | None, entropy_grad_N: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        states_NH, matrix_VH, tokens_N, normaliser_N, entropy_N, *kept = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.precisions
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_grad_NH = torch.empty(states_NH.shape, dtype=hidden_dtype, device=states_NH.device) if wants_hidden else None
        weight_grad_VH = torch.zeros(matrix_VH.shape, dtype=weight_dtype, device=matrix_VH.device) if wants_weight else None
        for number, own in enumerate(_chunks(len(tokens_N), len(matrix_VH))):
            logits_CV = kept[number] if number < len(kept) else _logits(states_NH[own], matrix_VH)
            narrow_CV = torch.empty_like(logits_CV) if number < len(kept) else logits_CV
            for at, piece in _pieces(own, logits_CV):
                logp_RV = _tempered(logits_CV[piece], ctx.temperature).sub_(normaliser_N[at, None])
                chosen_grad_R = None if chosen_grad_N is None else chosen_grad_N[at]
                if entropy_grad_N is None:
                    grad_RV = logp_RV.exp_().mul_(0.0 if chosen_grad_R is None else -chosen_grad_R[:, None])
                else:
                    probs_RV = logp_RV.exp()
                    grad_RV = logp_RV.add_(entropy_N[at, None]).mul_(-entropy_grad_N[at, None])
                    if chosen_grad_R is not None:
                        grad_RV.sub_(chosen_grad_R[:, None])
                    grad_RV.mul_(probs_RV)
                if chosen_grad_R is not None:
                    grad_RV.scatter_add_(-1, tokens_N[at, None], chosen_grad_R[:, None])
                narrow_CV[piece] = grad_RV if ctx.temperature == 1 else grad_RV.div_(ctx.temperature)
            if hidden_grad_NH is not None:
                hidden_grad_NH[own] = (narrow_CV @ matrix_VH).to(hidden_dtype)
            if weight_grad_VH is not None:
                if weight_grad_VH.dtype == narrow_CV.dtype:
                    torch.addmm(weight_grad_VH, narrow_CV.T, states_NH[own], out=weight_grad_VH)
                else:
                    weight_grad_VH.add_(narrow_CV.T @ states_NH[own])
        return hidden_grad_NH, weight_grad_VH, None, None, None, None, None


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _logits(states_CH: Tensor, matrix_VH: Tensor) -> Tensor:
    if states_CH.device.type != "cpu" or states_CH.dtype != torch.float32:
        return states_CH @ matrix_VH.T
    logits_CV = states_CH.new_empty(len(states_CH), len(matrix_VH))
    for own, part in zip(logits_CV.split(_COLUMNS, 1), matrix_VH.split(_COLUMNS), strict=True):
        torch.mm(states_CH, part.T, out=own)
    return logits_CV


def _pieces(chunk: slice, logits_CV: Tensor) -> list[tuple[slice, slice]]:
    """(positions among all, positions in the chunk) of every piece."""
    rows, vocabulary = logits_CV.shape
    size = max(1, _PIECE.get(logits_CV.device.type, CHUNK_ELEMENTS) // vocabulary)
    ends = [(first, min(first + size, rows)) for first in range(0, rows, size)]
    return [(slice(chunk.start + first, chunk.start + end), slice(first, end)) for first, end in ends]


def _tempered(logits_RV: Tensor, temperature: float) -> Tensor:
    """Logits / temperature in float32, to be written over: narrow logits stay as they are, others are this very tensor."""
    full_RV = logits_RV if logits_RV.dtype in (torch.float32, torch.float64) else logits_RV.float()
    return full_RV if temperature == 1 else full_RV.div_(temperature)


def _entropy(z_RV: Tensor, normaliser_R: Tensor) -> Tensor:
    """log Z - sum p z, with 0 times minus infinity taken as 0."""
    probs_RV = (z_RV - normaliser_R[:, None]).exp_()
    return normaliser_R - probs_RV.mul_(z_RV.clamp(min=torch.finfo(z_RV.dtype).min)).sum(-1)
