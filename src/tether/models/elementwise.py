"""Norms and gates of Llama-like layers with less kept for the backward pass and fewer passes over memory.

Left to autograd, a norm keeps two float32 tensors and under autocast its result is cast once for every matrix that reads it; a gated unit
keeps its activation and its product beside the two inputs they are made of. Here a norm keeps its input and gives the precision of the
matrices, a gated unit keeps its inputs, and the matrix after it makes the product again. Forward results are those of transformers to the
last bit. Axes: N tokens, H hidden, M intermediate.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .classes import FAMILIES, class_path, family_class
from .head import is_fused

__all__ = ["is_replaced", "lean_layers"]

_NORMS = frozenset(family_class(family, "RMSNorm") for family in FAMILIES)
_UNITS = frozenset(family_class(family, "MLP") for family in FAMILIES)


def lean_layers(model: nn.Module) -> int:
    """Give the norms before attention and gated units, and the gated units, of ``model`` the forms above; returns how many.

    Only classes whose arithmetic is known are touched; norms of other precisions do as before. The norms inside
    of an attention and the last one stay: others than matrices read them.
    """
    count = 0
    for layer in model.modules():
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm = getattr(layer, name, None)
            if isinstance(norm, nn.Module) and class_path(norm) in _NORMS:
                norm.forward = MethodType(_norm, norm)
                count += 1
        if class_path(layer) in _UNITS and type(layer.act_fn) in (nn.SiLU, _silu_of_transformers()):
            layer.forward = MethodType(_unit, layer)
            count += 1
    return count


def is_replaced(module: nn.Module) -> bool:
    """Whether this very object has a ``forward`` that is neither its class's nor one of the forms above (accelerate's hooks, a patch)."""
    own = vars(module).get("forward")
    return own is not None and getattr(own, "__func__", None) not in (_norm, _unit)


def _silu_of_transformers() -> type:
    from transformers.activations import ACT2FN

    return type(ACT2FN["silu"])


def _norm(self: Any, hidden: Tensor) -> Tensor:
    device = hidden.device.type
    if hidden.dtype != torch.float32 or self.weight.dtype != torch.float32:
        return type(self).forward(self, hidden)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    return _Norm.apply(hidden, self.weight, self.variance_epsilon, dtype)


def _unit(self: Any, x: Tensor) -> Tensor:
    gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
    if is_fused(down) and gate.dtype == up.dtype:
        return _GateDown.apply(gate, up, down.weight)
    return down(_Gate.apply(gate, up))


class _Norm(torch.autograd.Function):
    """y = w n with n = x r, r = 1 / sqrt(mean x^2 + eps):  dw = sum dy n,  dx = r (g - n mean(g n)) with g = dy w."""

    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, weight_H: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        r_N1 = torch.rsqrt(x_NH.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x_NH, weight_H, r_N1)
        return (x_NH * r_N1).mul_(weight_H).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NH: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_NH, weight_H, r_N1 = ctx.saved_tensors
        wide_NH, n_NH = grad_NH.to(x_NH.dtype), x_NH * r_N1
        weight_grad_H = (wide_NH * n_NH).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, weight_grad_H, None, None
        g_NH = wide_NH * weight_H
        along_N1 = (g_NH * n_NH).mean(-1, keepdim=True)
        return g_NH.sub_(n_NH.mul_(along_N1)).mul_(r_N1), weight_grad_H, None, None


class _Gate(torch.autograd.Function):
    """silu(gate) * up, with both products of the backward pass made again from the two."""

    @staticmethod
    def forward(ctx: Any, gate_NM: Tensor, up_NM: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NM, up_NM)
        return F.silu(gate_NM) * up_NM

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NM: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate_NM, up_NM = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad_NM * up_NM, gate_NM), grad_NM * F.silu(gate_NM)


class _GateDown(torch.autograd.Function):
    """y = a W^T with a = silu(gate) * up, in the precision of the two; a is made again in the backward pass:  dW = dy^T a,  da = dy W."""

    @staticmethod
    def forward(ctx: Any, gate_NM: Tensor, up_NM: Tensor, weight_HM: Tensor) -> Tensor:
        matrix_HM = weight_HM.to(gate_NM.dtype)
        ctx.save_for_backward(gate_NM, up_NM, matrix_HM)
        ctx.weight_dtype = weight_HM.dtype
        return F.linear(F.silu(gate_NM).mul_(up_NM), matrix_HM)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NH: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate_NM, up_NM, matrix_HM = ctx.saved_tensors
        active_NM, weight_grad_HM = F.silu(gate_NM), None
        if ctx.needs_input_grad[2]:
            unit_NM = (active_NM * up_NM).flatten(0, -2)
            weight_grad_HM = (grad_NH.flatten(0, -2).T @ unit_NM).to(ctx.weight_dtype)
            del unit_NM
        if not any(ctx.needs_input_grad[:2]):
            return None, None, weight_grad_HM
        grad_NM = grad_NH @ matrix_HM
        up_grad_NM = active_NM.mul_(grad_NM)
        return torch.ops.aten.silu_backward(grad_NM.mul_(up_NM), gate_NM), up_grad_NM, weight_grad_HM
