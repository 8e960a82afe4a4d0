"""The output head and the softmax over it, a chunk of positions at a time: log-probabilities of chosen tokens without the logits of all.

Forward keeps hidden states, tokens and one normaliser per position, and as many narrow logits as fit into ``KEPT_BYTES``; backward makes
those of the other chunks again and goes straight to the gradients of hidden states and matrix. So memory grows with neither positions x
vocabulary nor the number of elementwise passes of a softmax that autograd takes apart. A chunk is what one product makes; what follows it
goes over a few positions at a time, all passes while they are in the cache. Axes: N positions, C of one chunk, R of one such piece, H
hidden, V vocabulary.
"""

from __future__ import annotations

import math
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
_WIDENED = 4096
"""Rows of the head's gradient that are added in float32 at once; what is cast for it stays near the cores."""
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
        rooms = _rooms(len(tokens_N), matrix_VH, full, 2)
        for own in _chunks(len(tokens_N), len(matrix_VH)):
            logits_CV = _logits(states_NH[own], matrix_VH)
            if (room := room - logits_CV.nbytes) >= 0:
                kept.append(logits_CV)
            for at, piece in _pieces(own, logits_CV):
                z_RV = _tempered(logits_CV[piece], temperature, rooms[0])
                largest_R1 = z_RV.amax(-1, keepdim=True)
                weights_RV = torch.sub(z_RV, largest_R1, out=rooms[1][: len(z_RV)]).exp_()
                sum_R = weights_RV.sum(-1)
                normaliser_N[at] = sum_R.log() + largest_R1[:, 0]
                chosen_N[at] = z_RV.gather(-1, tokens_N[at, None])[:, 0] - normaliser_N[at]
                if entropy:  # log Z - sum p z, with 0 times minus infinity taken as 0
                    finite_RV = z_RV.clamp_(min=torch.finfo(full).min)
                    entropy_N[at] = normaliser_N[at] - weights_RV.mul_(finite_RV).sum(-1) / sum_R
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
        weight_grad_VH = torch.empty(matrix_VH.shape, dtype=weight_dtype, device=matrix_VH.device) if wants_weight else None
        rooms = _rooms(len(tokens_N), matrix_VH, normaliser_N.dtype, 1 if entropy_grad_N is None else 2)
        for number, own in enumerate(_chunks(len(tokens_N), len(matrix_VH))):
            logits_CV = kept[number] if number < len(kept) else _logits(states_NH[own], matrix_VH)
            narrow_CV = torch.empty_like(logits_CV) if number < len(kept) else logits_CV
            for at, piece in _pieces(own, logits_CV):
                logp_RV = _tempered(logits_CV[piece], ctx.temperature, rooms[0]).sub_(normaliser_N[at, None])
                chosen_grad_R = None if chosen_grad_N is None else chosen_grad_N[at]
                if entropy_grad_N is None:
                    grad_RV = logp_RV.exp_().mul_(0.0 if chosen_grad_R is None else -chosen_grad_R[:, None])
                else:
                    probs_RV = torch.exp(logp_RV, out=rooms[1][: len(logp_RV)])
                    grad_RV = logp_RV.add_(entropy_N[at, None]).mul_(-entropy_grad_N[at, None])
                    if chosen_grad_R is not None:
                        grad_RV.sub_(chosen_grad_R[:, None])
                    grad_RV.mul_(probs_RV)
                if chosen_grad_R is not None:
                    grad_RV.scatter_add_(-1, tokens_N[at, None], chosen_grad_R[:, None])
                narrow_CV[piece] = grad_RV if ctx.temperature == 1 else grad_RV.div_(ctx.temperature)
            if hidden_grad_NH is not None:
                hidden_grad_NH[own] = narrow_CV @ matrix_VH
            if weight_grad_VH is not None:
                _add_product(weight_grad_VH, narrow_CV, states_NH[own], first=number == 0)
        if weight_grad_VH is not None and not len(tokens_N):
            weight_grad_VH.zero_()
        return hidden_grad_NH, weight_grad_VH, None, None, None, None, None


def _chunks(count: int, vocabulary: int) -> list[slice]:
    """Positions of each product: as many chunks as fit a quarter over CHUNK_ELEMENTS, of equal size up to 16. One of few positions at the
    end would read and write as much of the matrix and its gradient as a whole one."""
    most = max(1, CHUNK_ELEMENTS // vocabulary)
    number = max(1, math.ceil(count / most - 0.25))
    size = max(1, math.ceil(count / number))
    size += -size % min(16, most)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _logits(states_CH: Tensor, matrix_VH: Tensor) -> Tensor:
    if states_CH.device.type != "cpu" or states_CH.dtype != torch.float32:
        return states_CH @ matrix_VH.T
    logits_CV = states_CH.new_empty(len(states_CH), len(matrix_VH))
    for own, part in zip(logits_CV.split(_COLUMNS, 1), matrix_VH.split(_COLUMNS), strict=True):
        torch.mm(states_CH, part.T, out=own)
    return logits_CV


def _add_product(total_VH: Tensor, grad_CV: Tensor, states_CH: Tensor, *, first: bool) -> None:
    """total += grad^T states, or total = grad^T states for the ``first``. A narrow product is widened some rows at a time."""
    if total_VH.dtype == grad_CV.dtype:
        torch.addmm(total_VH, grad_CV.T, states_CH, beta=0 if first else 1, out=total_VH)
        return
    product_VH = grad_CV.T @ states_CH
    if first:
        total_VH.copy_(product_VH)
        return
    for total, product in zip(total_VH.split(_WIDENED), product_VH.split(_WIDENED), strict=True):
        total.add_(product)


def _size_of_piece(vocabulary: int, device: torch.device) -> int:
    return max(1, _PIECE.get(device.type, CHUNK_ELEMENTS) // vocabulary)


def _rooms(positions: int, matrix_VH: Tensor, full: torch.dtype, count: int) -> list[Tensor]:
    """Places that every piece is written into, one after the other: memory that was just used is near the cores, a fresh one is not."""
    rows = min(positions, _size_of_piece(len(matrix_VH), matrix_VH.device))
    return [torch.empty(rows, len(matrix_VH), dtype=full, device=matrix_VH.device) for _ in range(count)]


def _pieces(chunk: slice, logits_CV: Tensor) -> list[tuple[slice, slice]]:
    """(positions among all, positions in the chunk) of every piece."""
    rows, size = len(logits_CV), _size_of_piece(logits_CV.shape[1], logits_CV.device)
    ends = [(first, min(first + size, rows)) for first in range(0, rows, size)]
    return [(slice(chunk.start + first, chunk.start + end), slice(first, end)) for first, end in ends]


def _tempered(logits_RV: Tensor, temperature: float, room_RV: Tensor) -> Tensor:
    """Logits / temperature in full precision, to be written over: narrow logits stay as they are, others are this very tensor."""
    full_RV = logits_RV if logits_RV.dtype == room_RV.dtype else room_RV[: len(logits_RV)].copy_(logits_RV)
    return full_RV if temperature == 1 else full_RV.div_(temperature)
