"""What the drivers of TRL share: models in the wanted precision, arguments of a trainer, and a callback that is the turnstile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from tempfile import mkdtemp
from typing import Any

import torch
from driver import Clock, Turnstile
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

__all__ = ["Steps", "arguments", "causal", "classifier", "tokenizer", "watch_trainer"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def tokenizer(setup: Mapping[str, Any]) -> Any:
    """The tokenizer of the model folder."""
    return AutoTokenizer.from_pretrained(setup["model"])


def causal(setup: Mapping[str, Any], dtype: str = "") -> Any:
    """The model that writes."""
    return _load(AutoModelForCausalLM, setup, dtype)


def classifier(setup: Mapping[str, Any], dtype: str = "") -> Any:
    """The same trunk with one score, its head drawn from a seed."""
    torch.manual_seed(0)
    return _load(AutoModelForSequenceClassification, setup, dtype, num_labels=1)


def _load(kind: Any, setup: Mapping[str, Any], dtype: str, **more: Any) -> Any:
    settings = setup["settings"]
    wanted = _DTYPES[dtype or settings["weights"]]
    return kind.from_pretrained(setup["model"], dtype=wanted, attn_implementation=settings.get("attention", "sdpa"), **more)


def arguments(setup: Mapping[str, Any], rows: int, **more: Any) -> dict[str, Any]:
    """Arguments of a trainer: ``rows`` an optimiser step, in passes of the setting ``rows_per_pass``; nothing saved or reported."""
    settings = setup["settings"]
    per_pass = min(settings["rows_per_pass"], rows)
    if rows % per_pass:
        raise ValueError(f"{rows} rows a step are no multiple of {per_pass} a pass")
    return {
        "output_dir": mkdtemp(),
        "use_cpu": True,
        "bf16": settings["autocast"],
        "per_device_train_batch_size": per_pass,
        "gradient_accumulation_steps": rows // per_pass,
        "gradient_checkpointing": False,
        "learning_rate": setup["learning_rate"],
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
        **({"torch_compile": True} if settings.get("compile") else {}),
        **more,
    }


class Steps(TrainerCallback):
    """A callback that is the turnstile. ``tokens`` tells what the step that ended has handled; ``obey`` gets the next command."""

    def __init__(
        self,
        turnstile: Turnstile,
        tokens: Callable[[], Mapping[str, int]],
        obey: Callable[[Mapping[str, Any]], None] = lambda command: None,
    ) -> None:
        self.turnstile, self.tokens, self.obey = turnstile, tokens, obey

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Everything is built: wait for the first command."""
        if known.get("optimizer") is not None:
            self.turnstile.clock.wrap(known["optimizer"], "step", "optimiser")
        self.obey(self.turnstile.turn())

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """An optimiser step is done."""
        self.obey(self.turnstile.turn(self.tokens()))


def watch_trainer(trainer: Any, clock: Clock) -> None:
    """The phases that every trainer of transformers has."""
    clock.wrap(trainer, "training_step", "update")
    clock.wrap(trainer, "_clip_grad_norm", "optimiser")
