"""AdamW whose two moments are held in a narrow form between steps; weights, gradients and the arithmetic stay float32.

A weight costs 4 bytes, its gradient 4, and its moments 8 in float32: more than the other two. They are read, widened, updated and narrowed
again piece by piece (``_PIECES``), so that only one piece of one parameter is ever wide.

    form       bytes a weight    held as
    bfloat16   4                 bfloat16, rounded at random (``narrow.to_bfloat16``)
    int8       2 + 8 / 256       one byte, and a float32 scale for every 256 of them (``narrow.PowerCode``)

Rounding is random but repeatable: its bits are a function of the parameter's number and of its count of updates alone, so that a resumed
run draws those of the run that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from tether.backends.narrow import BLOCK, FIRST_MOMENT, SECOND_MOMENT, PowerCode, num_blocks, random_bits, to_bfloat16

__all__ = ["SMALL", "NarrowAdamW", "NarrowForm"]

NarrowForm = Literal["bfloat16", "int8"]

SMALL = 4096
"""Parameters with fewer weights keep float32 moments where others take int8 (norms, biases, heads: a thousandth of a model)."""

# Weights that are wide at once; whole blocks. On a CPU a piece and its temporaries stay in the cache, elsewhere calls are what costs.
_PIECES = {"cpu": 256 * BLOCK}
_PIECE = 16384 * BLOCK


@final
class NarrowAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter 2019, 1711.05101, algorithm 2 in PyTorch's form) with narrow moments, t from 1:

        w <- (1 - lr wd) w
        m <- beta1 m + (1 - beta1) g                v <- beta2 v + (1 - beta2) g^2
        w <- w - lr / (1 - beta1^t)  m / (sqrt(v / (1 - beta2^t)) + eps)

    The update of w uses m and v before they are narrowed. ``groups`` hold ``params``, ``lr`` and ``weight_decay``. With ``form`` int8
    parameters under ``SMALL`` weights and those of ``keep_float32`` (embeddings, as 2110.02861 advises: their gradients are the most
    uneven) keep float32 moments. State of a parameter: ``step``, ``exp_avg``, ``exp_avg_sq`` in its shape, and for codes
    ``exp_avg_absmax``, ``exp_avg_sq_absmax``, one scale a block. To be saved by ``LocalWorker.state``: ``load_state_dict`` of torch would
    widen what it reads.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        form: NarrowForm,
        *,
        betas: tuple[float, float],
        eps: float,
        keep_float32: Iterable[Tensor] = (),
    ) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0, "betas": betas, "eps": eps})
        self._form: NarrowForm = form
        self._kept = {id(parameter) for parameter in keep_float32}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """One update of every parameter that has a gradient. ``closure`` is torch's and not supported."""
        assert closure is None, "gradients are made before the step"
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group, number)
                number += 1

    def _update(self, parameter: nn.Parameter, group: dict[str, Any], number: int) -> None:
        state = self.state[parameter]
        if not state:
            dtype = self._dtype(parameter)
            state.update({"step": 0, **_FIRST.fresh(parameter, dtype), **_SECOND.fresh(parameter, dtype)})
        state["step"] += 1
        assert parameter.grad is not None
        weights = parameter if parameter.is_contiguous() else parameter.contiguous()
        weights_N, gradient_N = weights.view(-1), parameter.grad.reshape(-1)
        generator = torch.Generator(parameter.device).manual_seed(_seed(state["step"], number))
        size = _PIECES.get(parameter.device.type, _PIECE)
        for start in range(0, weights_N.numel(), size):
            part = slice(start, min(start + size, weights_N.numel()))
            first_N, second_N = _FIRST.read(state, part), _SECOND.read(state, part)
            _adamw(weights_N[part], gradient_N[part], first_N, second_N, group, state["step"])
            if state["exp_avg"].dtype != torch.float32:
                first_bits_N, second_bits_N = random_bits(first_N.numel(), generator, parameter.device)
                _FIRST.write(state, part, first_N, first_bits_N)
                _SECOND.write(state, part, second_N, second_bits_N)
        if weights is not parameter:
            parameter.copy_(weights)

    def _dtype(self, parameter: nn.Parameter) -> torch.dtype:
        """bfloat16, int8 (for codes), or float32 where they are kept wide."""
        if self._form == "bfloat16":
            return torch.bfloat16
        return torch.float32 if parameter.numel() < SMALL or id(parameter) in self._kept else torch.int8


@final
@dataclass(frozen=True)
class _Moment:
    """How one of the two moments is kept in the state of a parameter: under ``name``, its scales under ``name``_absmax."""

    name: str
    code: PowerCode

    def fresh(self, parameter: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Zeros."""
        of_codes = dtype == torch.int8
        zeros = torch.zeros(parameter.shape, dtype=self.code.dtype if of_codes else dtype, device=parameter.device)
        absmax_K = torch.zeros(num_blocks(parameter.numel()), device=parameter.device)
        return {self.name: zeros, f"{self.name}_absmax": absmax_K} if of_codes else {self.name: zeros}

    def read(self, state: dict[str, Any], part: slice) -> Tensor:
        """Float32 numbers of a piece. Where they are kept in float32, those themselves."""
        stored_N = state[self.name].view(-1)[part]
        if stored_N.dtype == self.code.dtype:
            return self.code.read(stored_N, state[f"{self.name}_absmax"][_blocks(part)])
        return stored_N.float()

    def write(self, state: dict[str, Any], part: slice, wide_N: Tensor, bits_N: Tensor) -> None:
        """Narrow a piece and put it back."""
        stored_N = state[self.name].view(-1)[part]
        if stored_N.dtype == self.code.dtype:
            codes_N, absmax_K = self.code.write(wide_N, bits_N)
            stored_N.copy_(codes_N)
            state[f"{self.name}_absmax"][_blocks(part)] = absmax_K
        else:
            stored_N.copy_(to_bfloat16(wide_N, bits_N))


_FIRST, _SECOND = _Moment("exp_avg", FIRST_MOMENT), _Moment("exp_avg_sq", SECOND_MOMENT)


def _adamw(weights_N: Tensor, gradient_N: Tensor, first_N: Tensor, second_N: Tensor, group: dict[str, Any], step: int) -> None:
    """The formula of the class, in place, float32."""
    beta1, beta2 = group["betas"]
    weights_N.mul_(1 - group["lr"] * group["weight_decay"])
    first_N.lerp_(gradient_N, 1 - beta1)
    second_N.mul_(beta2).addcmul_(gradient_N, gradient_N, value=1 - beta2)
    root_N = second_N.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
    weights_N.addcdiv_(first_N, root_N, value=-group["lr"] / (1 - beta1**step))


def _blocks(part: slice) -> slice:
    """The blocks of a piece, which begins with one."""
    return slice(part.start // BLOCK, num_blocks(part.stop))


def _seed(step: int, number: int) -> int:
    """Of the random bits of one update of one parameter."""
    return (step * 1_000_003 + number) % 2**63
