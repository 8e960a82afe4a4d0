"""The output head and the softmax over it, a chunk of positions at a time: log-probabilities of chosen tokens without the logits of all.

Forward keeps hidden states, tokens and one normaliser per position, and as many narrow logits as fit into ``KEPT_BYTES``; backward makes
those of the other chunks again and goes straight to the gradients of hidden states and matrix. So memory grows with neither positions x
vocabulary nor the number of elementwise passes of a softmax that autograd takes apart. Axes: N positions, C of one chunk, H hidden, V
vocabulary.
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


def is_fused(head: nn.Module) -> bool:
    """Whether this path serves the head: one plain matrix (no bias, no adapter on it)."""
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
            logits_CV = states_NH[own] @ matrix_VH.T
            if (room := room - logits_CV.nbytes) >= 0:
                kept.append(logits_CV)
            z_CV = _tempered(logits_CV, temperature)
            normaliser_N[own] = z_CV.logsumexp(-1)
            chosen_N[own] = z_CV.gather(-1, tokens_N[own, None])[:, 0] - normaliser_N[own]
            if entropy:
                entropy_N[own] = _entropy(z_CV, normaliser_N[own])
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
            logits_CV = kept[number] if number < len(kept) else states_NH[own] @ matrix_VH.T
            z_CV = _tempered(logits_CV, ctx.temperature)
            logp_CV = z_CV.sub_(normaliser_N[own, None])
            if entropy_grad_N is None:
                grad_CV = logp_CV.exp_()
                scale_C = torch.zeros_like(normaliser_N[own]) if chosen_grad_N is None else chosen_grad_N[own]
                grad_CV.mul_(-scale_C[:, None])
            else:
                probs_CV = logp_CV.exp()
                grad_CV = logp_CV.add_(entropy_N[own, None]).mul_(-entropy_grad_N[own, None])
                if chosen_grad_N is not None:
                    grad_CV.sub_(chosen_grad_N[own, None])
                grad_CV.mul_(probs_CV)
            if chosen_grad_N is not None:
                grad_CV.scatter_add_(-1, tokens_N[own, None], chosen_grad_N[own, None])
            if ctx.temperature != 1:
                grad_CV.div_(ctx.temperature)
            narrow_CV = grad_CV.to(matrix_VH.dtype)
            if hidden_grad_NH is not None:
                hidden_grad_NH[own] = (narrow_CV @ matrix_VH).to(hidden_dtype)
            if weight_grad_VH is not None:
                weight_grad_VH.add_(narrow_CV.T @ states_NH[own])
        return hidden_grad_NH, weight_grad_VH, None, None, None, None, None


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _tempered(logits_CV: Tensor, temperature: float) -> Tensor:
    """Logits / temperature in float32, to be written over: narrow logits stay as they are, others are this very tensor."""
    full_CV = logits_CV if logits_CV.dtype in (torch.float32, torch.float64) else logits_CV.float()
    return full_CV if temperature == 1 else full_CV.div_(temperature)


def _entropy(z_CV: Tensor, normaliser_C: Tensor) -> Tensor:
    """log Z - sum p z, with 0 times minus infinity taken as 0."""
    probs_CV = (z_CV - normaliser_C[:, None]).exp_()
    return normaliser_C - probs_CV.mul_(z_CV.clamp(min=torch.finfo(z_CV.dtype).min)).sum(-1)
