"""Attention whose backward pass on a CPU is made of batched products; forward, and everything on other devices, is torch's own.

torch's fused backward on a CPU takes four to five times its forward at the sizes of answers (a hundred to a thousand tokens, heads of 64);
products of the same numbers take two. Axes: A sequences, H query heads, K key-value heads, G = H / K, L queries, C keys, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

__all__ = ["attend"]

_ELEMENTS = 2**24  # scores of one piece of the backward pass: 64 MiB in float32


def attend(q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float | None) -> Tensor:
    """softmax(scale q k^T) v over the keys that ``seen_LC`` marks (None: each query sees the keys up to its own place): [A, H, L, D].

    ``scale`` None is 1 / sqrt(D). The scores of the backward pass are made again, in float32 as the forward pass has them.
    """
    if q_AHLD.device.type != "cpu" or not torch.is_grad_enabled():
        return _forward(q_AHLD, k_AKCD, v_AKCD, seen_LC, scale)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        q_AHLD, k_AKCD, v_AKCD = (x.to(dtype) for x in (q_AHLD, k_AKCD, v_AKCD))
    return _Attention.apply(q_AHLD, k_AKCD, v_AKCD, seen_LC, scale)


def _forward(q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float | None) -> Tensor:
    gqa = q_AHLD.shape[1] != k_AKCD.shape[1]
    return F.scaled_dot_product_attention(
        q_AHLD, k_AKCD, v_AKCD, attn_mask=seen_LC, is_causal=seen_LC is None, scale=scale, enable_gqa=gqa
    )


class _Attention(torch.autograd.Function):
    """With P = softmax(scale q k^T), O = P v:  dv = P^T dO,  dS = P (dO v^T - sum dO O),  dq = scale dS k,  dk = scale dS^T q."""

    @staticmethod
    def forward(ctx: Any, q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float | None) -> Tensor:
        out_AHLD = _forward(q_AHLD, k_AKCD, v_AKCD, seen_LC, scale)
        if seen_LC is None:
            seen_LC = torch.ones(q_AHLD.shape[2], k_AKCD.shape[2], dtype=torch.bool, device=q_AHLD.device).tril()
        ctx.save_for_backward(q_AHLD, k_AKCD, v_AKCD, out_AHLD, seen_LC)
        ctx.scale = q_AHLD.shape[-1] ** -0.5 if scale is None else scale
        return out_AHLD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_grad_AHLD: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q_AHLD, k_AKCD, v_AKCD, out_AHLD, seen_LC = ctx.saved_tensors
        heads, (queries, keys) = q_AHLD.shape[1], seen_LC.shape
        piece = max(1, _ELEMENTS // (heads * queries * keys))
        pieces = zip(*(x.split(piece) for x in (q_AHLD, k_AKCD, v_AKCD, out_AHLD, out_grad_AHLD)), strict=True)
        grads = [_gradients(q, k, v, out, out_grad, seen_LC, ctx.scale) for q, k, v, out, out_grad in pieces]
        if len(grads) == 1:
            return *grads[0], None, None
        q_grads, k_grads, v_grads = zip(*grads, strict=True)
        return torch.cat(q_grads), torch.cat(k_grads), torch.cat(v_grads), None, None


def _gradients(
    q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, out_AHLD: Tensor, out_grad_AHLD: Tensor, seen_LC: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v. The G queries of a key-value head are one matrix, X = A K of them."""
    kv_heads, (queries, keys) = k_AKCD.shape[1], seen_LC.shape
    q_XMD, out_XMD, out_grad_XMD = (_by_kv_head(x, kv_heads) for x in (q_AHLD, out_AHLD, out_grad_AHLD))
    k_XCD, v_XCD = k_AKCD.flatten(0, 1), v_AKCD.flatten(0, 1)
    full = q_XMD.dtype if q_XMD.dtype == torch.float64 else torch.float32
    scores_XMC = torch.bmm(q_XMD.to(full), k_XCD.to(full).transpose(1, 2)).mul_(scale)
    scores_XMC.view(-1, queries, keys).masked_fill_(~seen_LC, -torch.inf)
    probs_XMC = torch.softmax(scores_XMC, -1)
    v_grad_XCD = torch.bmm(probs_XMC.to(v_XCD.dtype).transpose(1, 2), out_grad_XMD)
    along_XM1 = (out_grad_XMD.to(full) * out_XMD.to(full)).sum(-1, keepdim=True)
    through_XMC = torch.bmm(out_grad_XMD, v_XCD.transpose(1, 2)).to(full)
    scores_grad_XMC = through_XMC.sub_(along_XM1).mul_(probs_XMC).mul_(scale).to(q_XMD.dtype)
    q_grad_XMD = torch.bmm(scores_grad_XMC, k_XCD)
    k_grad_XCD = torch.bmm(scores_grad_XMC.transpose(1, 2), q_XMD)
    return q_grad_XMD.view(q_AHLD.shape), k_grad_XCD.view(k_AKCD.shape), v_grad_XCD.view(v_AKCD.shape)


def _by_kv_head(x_AHLD: Tensor, kv_heads: int) -> Tensor:
    """[A, H, L, D] -> [A K, G L, D]."""
    return x_AHLD.unflatten(1, (kv_heads, -1)).flatten(2, 3).flatten(0, 1)
