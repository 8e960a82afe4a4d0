"""LoRA through peft: put into a model in place, switched off for the reference, merged when saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .classes import class_path

ADAPTER = "default"


@final
@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Low-rank adapters W + (alpha / rank) B A. There is no dropout: it would break the ratio (case B5).

    `targets` empty: every linear layer except the output head and the score.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ModelError(f"LoRA needs rank >= 1 and alpha > 0, got rank {self.rank}, alpha {self.alpha}")


def add_lora(model: nn.Module, spec: LoraSpec, seed: int, trained: tuple[str, ...] = ()) -> None:
    """Inject adapters in place and freeze all else but the parameters named in `trained` (a new score head)."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ModelError(f"LoRA needs the package peft: {error}. Run `pip install peft`") from error
    if no_layers := [target for target in spec.targets if target.rsplit(".", 1)[-1] in _ends(model)]:
        raise ModelError(f"LoRA targets {', '.join(no_layers)}: embeddings and output heads take no adapter here; name layers between them")
    alpha: Any = spec.alpha  # annotated int there, used as a float
    config: Any = LoraConfig(
        r=spec.rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=list(spec.targets) or _linear_names(model),
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, adapter_name=ADAPTER)
        except ValueError as error:
            raise ModelError(
                f"LoRA targets {', '.join(spec.targets)} do not fit this model: {error}"
            ) from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name or name in trained)


def has_adapters(model: nn.Module) -> bool:
    """Whether `add_lora` was applied to the model."""
    return bool(_layers(model))


@final
@dataclass(frozen=True, slots=True)
class Adapter:
    """x -> scale (x A^T) B^T: A is ``down_rI``, B ``up_Or``, scale alpha / rank."""

    down_rI: Tensor
    up_Or: Tensor
    scale: float


def adapter_of(layer: nn.Module) -> Adapter | None:
    """What a linear layer has beside its matrix, where that is exactly what `add_lora` gives it and it is on; None for any other layer."""
    if class_path(layer) != "peft.tuners.lora.layer.Linear":
        return None
    told: Any = layer
    down, up, dropout = (told.lora_A, told.lora_B, told.lora_dropout)
    plain = (
        type(told.base_layer) is nn.Linear
        and list(down) == list(told.active_adapters) == [ADAPTER]
        and not (told.disable_adapters or told.merged or told.fan_in_fan_out)
        and not told.lora_variant  # DoRA and its kin
    )
    if not plain or down[ADAPTER].bias is not None or up[ADAPTER].bias is not None or type(dropout[ADAPTER]) is not nn.Identity:
        return None
    return Adapter(down[ADAPTER].weight, up[ADAPTER].weight, float(told.scaling[ADAPTER]))


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The base model for the length of the block; adapters are on again afterwards, whatever happens inside.

    Which parameters are trained is left alone (peft's own switch freezes the adapters).
    """
    layers = list(_layers(model).values())
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, flag in zip(layers, before, strict=True):
            layer._disable_adapters = flag


@torch.no_grad()
def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the plain model that computes the same: W + delta under the base names; the model is
    unchanged."""
    layers = _layers(model)
    weights = {}
    for name, value in model.state_dict().items():
        owner, _, rest = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        if rest == "weight" and owner in layers:
            value = value + layers[owner].get_delta_weight(ADAPTER).to(value.dtype)
        weights[f"{owner}.{rest}" if rest else name] = value
    return weights


def _layers(model: nn.Module) -> dict[str, Any]:
    """peft's adapted layers by name: those that hold a `lora_A`."""
    return {name: m for name, m in model.named_modules() if "lora_A" in dict(m.named_children())}


def _ends(model: Any) -> set[str]:
    """Names of the first and last matrix."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if any(module is end for end in ends)} | {"score"}


def _linear_names(model: nn.Module) -> list[str]:
    names = {name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    return sorted(names - _ends(model))
