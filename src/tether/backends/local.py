"""The optimiser side of training in one process: accumulate gradients, check them, step, schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tether.backends.narrow_adamw import NarrowAdamW
from tether.config import OptimConfig
from tether.errors import CheckpointError
from tether.state import State

__all__ = ["LocalWorker", "StepReport", "learning_rate_factor"]

_SCALES = ("exp_avg_absmax", "exp_avg_sq_absmax")  # of moments that are kept as codes


@dataclass(frozen=True)
class StepReport:
    """One optimiser step. ``grad_norm`` before clipping; ``applied`` is False when the step was refused, for ``reason``."""

    grad_norm: float
    learning_rate: float
    applied: bool
    reason: str = ""


def learning_rate_factor(step: int, config: OptimConfig, total_steps: int) -> float:
    """Factor of the peak learning rate at optimiser step ``step`` (from 0): linear warmup, then the schedule.

    Example: warmup 2, constant -> 1/2, 1, 1, ...; linear over 4 steps without warmup -> 1, 3/4, 1/2, 1/4.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    progress = min(progress, 1.0)
    return 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


class LocalWorker:
    """AdamW over the trainable weights of some modules. State: optimiser moments, in the form of ``optim.states``, and the step count."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        config: OptimConfig,
        total_steps: int,
        *,
        head_names: tuple[str, ...] = (),
        head_learning_rate: float | None = None,
    ) -> None:
        self._config = config
        self._total_steps = total_steps
        self._steps = 0
        modules = list(modules)
        named: dict[int, tuple[str, nn.Parameter]] = {}
        for number, module in enumerate(modules):
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    named.setdefault(id(parameter), (f"{number}.{name}", parameter))
        self._named = dict(named.values())
        self.parameters = list(self._named.values())
        if not self.parameters:
            raise ValueError("no trainable weights: every parameter has requires_grad = False")
        groups = _groups(list(named.values()), config, head_names, head_learning_rate)
        self._peaks = [group["lr"] for group in groups]
        self.optimizer = _adamw(groups, config, modules)
        self._begin_moments()

    @property
    def steps(self) -> int:
        """Optimiser steps taken or refused so far: the position in the schedule."""
        return self._steps

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of an already divided microbatch loss.

        Whoever calls it lets go of all that hangs on the graph before the next pass begins, locals included: its nodes are small and
        lie where the tensors of the pass lay, so that on a CPU those of the next find no room between them and the heap grows by
        some hundred MiB every pass (bench/RESULTS.md).
        """
        loss.backward()

    def step(self) -> StepReport:
        """Clip, refuse a gradient that is not finite, update, and clear the gradient."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if not math.isfinite(float(norm)):
            return self.refuse(self._not_finite(), float(norm))
        nn.utils.clip_grads_with_norm_(self.parameters, self._config.max_grad_norm, norm)
        factor = learning_rate_factor(self._steps, self._config, self._total_steps)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        return StepReport(float(norm), self._config.learning_rate * factor, True)

    def refuse(self, reason: str, grad_norm: float = math.nan, *, steps: int = 1) -> StepReport:
        """Drop accumulated gradients; the schedule moves on by ``steps``, as if they had been taken."""
        self.discard()
        rate = self._config.learning_rate * learning_rate_factor(self._steps, self._config, self._total_steps)
        self._steps += steps
        return StepReport(grad_norm, rate, False, reason)

    def discard(self) -> None:
        """Drop accumulated gradients without a step."""
        self.optimizer.zero_grad(set_to_none=True)

    def _not_finite(self) -> str:
        """Which gradient is to blame for a norm that is not finite."""
        for name, parameter in self._named.items():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                place = (~torch.isfinite(parameter.grad)).nonzero()[0].tolist()
                value = parameter.grad[tuple(place)].item()
                return f"the gradient of {name.partition('.')[2]} is {value} at {place}"
        return "the norm of the gradient overflows"

    def state(self) -> State:
        """Every trained weight, the moments of AdamW as they are held, and the place in the schedule."""
        tensors: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for name, parameter in self._named.items():
            tensors[f"weights/{name}"] = parameter.detach()
            moments = self.optimizer.state.get(parameter)
            if moments and int(moments["step"]):  # none before the first step that reached this weight
                counts[name] = int(moments["step"])
                tensors.update({f"{kept}/{name}": tensor for kept, tensor in moments.items() if kept != "step"})
        return State(tensors, {"steps": self._steps, "updates": counts, "states": self._config.states})

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Go on from ``state``. Raises CheckpointError for moments in another form than ``optim.states``, and naming a weight that is
        missing, too much, or of another shape."""
        if (held := state.values.get("states", "float32")) != self._config.states:
            raise CheckpointError(
                f"the checkpoint holds optimiser states in {held}, and optim.states = {self._config.states!r}: set optim.states = {held!r} "
                "to go on from it, or start over with `tether run CONFIG --fresh`"
            )
        told = {name.removeprefix("weights/") for name in state.tensors if name.startswith("weights/")}
        if other := sorted(told ^ self._named.keys()):
            raise CheckpointError(f"the checkpoint and the model do not have the same trained weights; the first that differs: {other[0]}")
        for name, parameter in self._named.items():
            saved = state.tensors[f"weights/{name}"]
            if saved.shape != parameter.shape:
                raise CheckpointError(f"{name} has shape {tuple(saved.shape)} in the checkpoint, {tuple(parameter.shape)} in the model")
            parameter.copy_(saved)
        self.optimizer.state.clear()
        for name, count in state.values["updates"].items():
            parameter = self._named[name]
            kept = ["exp_avg", "exp_avg_sq", *(scale for scale in _SCALES if f"{scale}/{name}" in state.tensors)]
            self.optimizer.state[parameter] = {
                "step": count if isinstance(self.optimizer, NarrowAdamW) else torch.tensor(float(count), device=parameter.device),
                **{key: state.tensors[f"{key}/{name}"].to(parameter.device, copy=True) for key in kept},
            }
        self._steps = int(state.values["steps"])
        self._begin_moments()

    def _begin_moments(self) -> None:
        """Float32 moments that are not there yet, as AdamW would make them at its first step: after a pass they would lie scattered where
        the tensors of the next one have no room left."""
        if isinstance(self.optimizer, NarrowAdamW):
            return
        for parameter in self.parameters:
            if not self.optimizer.state[parameter]:
                zero = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = {key: torch.zeros_like(parameter, memory_format=torch.preserve_format) for key in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[parameter] = {"step": zero, **moments}


def _adamw(groups: list[dict[str, Any]], config: OptimConfig, modules: list[nn.Module]) -> torch.optim.Optimizer:
    """AdamW with its moments in the form that was asked for; embeddings are named to it."""
    if config.states == "float32":
        return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=True)
    embeddings = [part.weight for module in modules for part in module.modules() if isinstance(part, nn.Embedding)]
    return NarrowAdamW(groups, config.states, betas=config.betas, eps=config.eps, keep_float32=embeddings)


def _groups(
    named: list[tuple[str, nn.Parameter]], config: OptimConfig, head_names: tuple[str, ...], head_learning_rate: float | None
) -> list[dict[str, Any]]:
    """Weight decay on matrices outside the heads; heads may learn at their own rate."""

    def is_head(name: str) -> bool:
        return any(head in name for head in head_names)

    decayed = [p for name, p in named if p.ndim >= 2 and not is_head(name)]
    plain = [p for name, p in named if p.ndim < 2 and not is_head(name)]
    heads = [p for name, p in named if is_head(name)]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay, "lr": config.learning_rate},
        {"params": plain, "weight_decay": 0.0, "lr": config.learning_rate},
        {"params": heads, "weight_decay": 0.0, "lr": head_learning_rate or config.learning_rate},
    ]
    return [group for group in groups if group["params"]]
