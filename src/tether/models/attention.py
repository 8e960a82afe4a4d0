"""Attention on a CPU by batched products where they are faster than torch's fused kernel; elsewhere it is torch's own.

torch's fused backward on a CPU takes four to five times its forward at the sizes of answers (a hundred to a thousand tokens, heads of 64);
products of the same numbers take two. Forward, products win in narrow precisions: under a mask always, without one (causal) up to some
hundred tokens. Axes: A sequences, H query heads, K key-value heads, G = H / K, L queries, C keys, D head size, X = A K, M = G L.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

__all__ = ["attend"]

_ELEMENTS = 2**20  # scores of one piece, a sequence at least: 4 MiB in float32 stay near the cores
_CAUSAL = 256  # queries up to which products beat the fused kernel that skips what comes later


def attend(q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float | None) -> Tensor:
    """softmax(scale q k^T) v over the keys that ``seen_LC`` marks (None: each query sees the keys up to its own place): [A, H, L, D].

    ``scale`` None is 1 / sqrt(D). Scores are float32 (or 64) whatever the inputs are; the backward pass makes them again.
    """
    factor: float = q_AHLD.shape[-1] ** -0.5 if scale is None else scale
    if q_AHLD.device.type != "cpu":
        return _fused(q_AHLD, k_AKCD, v_AKCD, seen_LC, factor)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        q_AHLD, k_AKCD, v_AKCD = (x.to(dtype) for x in (q_AHLD, k_AKCD, v_AKCD))
    if torch.is_grad_enabled():
        return _Attention.apply(q_AHLD, k_AKCD, v_AKCD, seen_LC, factor)
    return _forward(q_AHLD, k_AKCD, v_AKCD, seen_LC, factor)


def _fused(q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float) -> Tensor:
    gqa = q_AHLD.shape[1] != k_AKCD.shape[1]
    return F.scaled_dot_product_attention(
        q_AHLD, k_AKCD, v_AKCD, attn_mask=seen_LC, is_causal=seen_LC is None, scale=scale, enable_gqa=gqa
    )


def _forward(q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float) -> Tensor:
    if q_AHLD.dtype.itemsize > 2 or (seen_LC is None and q_AHLD.shape[2] > _CAUSAL):
        return _fused(q_AHLD, k_AKCD, v_AKCD, seen_LC, scale)
    hidden_LC, out_AHLD = _hidden(q_AHLD, k_AKCD, seen_LC), torch.empty_like(q_AHLD, memory_format=torch.contiguous_format)
    for q, k, v, out in _pieces(q_AHLD, k_AKCD, v_AKCD, out_AHLD):
        probs_XMC = torch.softmax(_scores(_by_kv_head(q, k.shape[1]), k.flatten(0, 1), hidden_LC, scale), -1)
        out.copy_(torch.bmm(probs_XMC.to(v.dtype), v.flatten(0, 1)).view(out.shape))
    return out_AHLD


def _hidden(q_AHLD: Tensor, k_AKCD: Tensor, seen_LC: Tensor | None) -> Tensor:
    """Minus infinity where a query does not see a key, else 0. To add it takes an eighth of the time of filling under a mask."""
    shape = (q_AHLD.shape[2], k_AKCD.shape[2])
    if seen_LC is None:
        seen_LC = torch.ones(shape, dtype=torch.bool, device=q_AHLD.device).tril()
    dtype = q_AHLD.dtype if q_AHLD.dtype == torch.float64 else torch.float32
    return torch.zeros(shape, dtype=dtype, device=q_AHLD.device).masked_fill_(~seen_LC, -torch.inf)


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some sequences of each; the first two are q and k."""
    (heads, queries), keys = tensors[0].shape[1:3], tensors[1].shape[2]
    size = max(1, _ELEMENTS // (heads * queries * keys))
    return zip(*(x.split(size) for x in tensors), strict=True)


def _scores(q_XMD: Tensor, k_XCD: Tensor, hidden_LC: Tensor, scale: float) -> Tensor:
    """scale q k^T in float32 (or 64), minus infinity where hidden: [X, M, C].

    A narrow product rounds what it gives. A second one, less the first, gives what was lost, so that the two hold 16 bits or more, in half
    of the time that a product of widened inputs takes.
    """
    k_XDC = k_XCD.transpose(1, 2)
    scores_XMC = torch.bmm(q_XMD, k_XDC)
    if scores_XMC.dtype != hidden_LC.dtype:
        lost_XMC = torch.baddbmm(scores_XMC, q_XMD, k_XDC, beta=-1)
        scores_XMC = scores_XMC.to(hidden_LC.dtype).add_(lost_XMC)
    scores_XMC.mul_(scale).view(-1, *hidden_LC.shape).add_(hidden_LC)
    return scores_XMC


class _Attention(torch.autograd.Function):
    """With P = softmax(scale q k^T), O = P v:  dv = P^T dO,  dS = P (dO v^T - sum dO O),  dq = scale dS k,  dk = scale dS^T q."""

    @staticmethod
    def forward(ctx: Any, q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, seen_LC: Tensor | None, scale: float) -> Tensor:
        out_AHLD = _forward(q_AHLD, k_AKCD, v_AKCD, seen_LC, scale)
        ctx.save_for_backward(q_AHLD, k_AKCD, v_AKCD, out_AHLD, seen_LC)
        ctx.scale = scale
        return out_AHLD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_grad_AHLD: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q_AHLD, k_AKCD, v_AKCD, out_AHLD, seen_LC = ctx.saved_tensors
        hidden_LC = _hidden(q_AHLD, k_AKCD, seen_LC)
        pieces = _pieces(q_AHLD, k_AKCD, v_AKCD, out_AHLD, out_grad_AHLD)
        grads = [_gradients(q, k, v, out, out_grad, hidden_LC, ctx.scale) for q, k, v, out, out_grad in pieces]
        if len(grads) == 1:
            return *grads[0], None, None
        q_grads, k_grads, v_grads = zip(*grads, strict=True)
        return torch.cat(q_grads), torch.cat(k_grads), torch.cat(v_grads), None, None


def _gradients(
    q_AHLD: Tensor, k_AKCD: Tensor, v_AKCD: Tensor, out_AHLD: Tensor, out_grad_AHLD: Tensor, hidden_LC: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v. The G queries of a key-value head are one matrix."""
    full = hidden_LC.dtype
    q_XMD, out_XMD, out_grad_XMD = (_by_kv_head(x, k_AKCD.shape[1]) for x in (q_AHLD, out_AHLD, out_grad_AHLD))
    k_XCD, v_XCD = k_AKCD.flatten(0, 1), v_AKCD.flatten(0, 1)
    probs_XMC = torch.softmax(_scores(q_XMD, k_XCD, hidden_LC, scale), -1)
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
