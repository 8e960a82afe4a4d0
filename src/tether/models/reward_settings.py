"""What lies beside the weights of a reward model: its settings, checked on load, and its heads where it has several."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..errors import ModelError
from ..text.chat import ChatFormat

SETTINGS_FILE = "tether_reward.json"
HEADS_FILE = "tether_heads.safetensors"
HEADS = "heads.weight"
_VERSION = 2
_PROBE = "The probe: Zürich, 3.14 \u00d7 2 = 6.28?  naïve\n\t\u4f60\u597d"


class Truncation(StrEnum):
    """What happens to a text past `max_length` tokens: ERROR (DataError), LEFT (its last `max_length` are
    scored), RIGHT (its first). Texts that are cut are counted."""

    ERROR = "error"
    LEFT = "left"
    RIGHT = "right"


@final
@dataclass(frozen=True, slots=True)
class RewardSettings:
    """The content of tether_reward.json. `fingerprint` is that of the template; `score_offset` in score units.

    `log_odds_per_unit`: what a difference of 1 in scores means in log-odds of being preferred (a model whose scores were divided
    by their std is no longer in log-odds). `tie_parameter` in log-odds. `fitted_to`: what is known of the data, for those who ask
    whether a text is like them. Files of version 1 lack all of these.
    """

    fingerprint: str
    max_length: int
    truncation: Truncation = Truncation.ERROR
    score_offset: float = 0.0
    schema_version: int = 2
    tokenizer_sha256: str = ""
    log_odds_per_unit: float = 1.0
    tie_model: str = ""
    tie_parameter: float | None = None
    fitted_to: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class ScoredText:
    """A raw score: mean over heads, and their standard deviation (population; NaN with one head)."""

    mean: float
    std: float


class HasHeads(Protocol):
    """A reward model as far as its heads go."""

    score_heads: nn.Linear | None

    @property
    def format(self) -> ChatFormat: ...
    @property
    def head(self) -> nn.Linear: ...


def read_settings(folder: Path) -> RewardSettings | None:
    """The settings of a folder of ours; None for any other classifier."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text("utf-8"))
        settings = RewardSettings(**told | {"truncation": Truncation(told.get("truncation", Truncation.ERROR))})
        if not isinstance(settings.schema_version, int) or settings.schema_version > _VERSION:
            raise ValueError(f"schema_version {settings.schema_version!r}, this version of Tether reads up to {_VERSION}")
        if not (math.isfinite(settings.log_odds_per_unit) and settings.log_odds_per_unit > 0):
            raise ValueError(f"log_odds_per_unit must be finite and above 0, got {settings.log_odds_per_unit}")
        if not math.isfinite(settings.score_offset):
            raise ValueError(f"score_offset, which is added to every score, must be finite, got {settings.score_offset}")
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}; put it back from a copy of the folder, or train the model again") from error
    return settings


def options_of(settings: RewardSettings) -> dict[Literal["max_length", "truncation", "score_offset"], Any]:
    """Those that a reward model is built with."""
    return {"max_length": settings.max_length, "truncation": settings.truncation, "score_offset": settings.score_offset}


def refuse_changed(path: str, settings: RewardSettings, format: ChatFormat) -> None:
    """ModelError for a template or a tokenizer that are not those of the training."""
    told = (
        ("the chat template or the special tokens", settings.fingerprint, format.fingerprint),
        ("the tokenizer's vocabulary or rules", settings.tokenizer_sha256, tokenizer_sha256(format.tokenizer)),
    )
    for what, stored, found in told:
        if stored and stored != found:
            raise ModelError(
                f"{what} in {path} are not those the reward model was trained with ({SETTINGS_FILE} says {stored[:12]}, found "
                f"{found[:12]}): put the tokenizer files of its training back, or train it again"
            )


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over the vocabulary and how a fixed text is split: what a changed merge or normaliser changes too."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    probe = list(tokenizer(_PROBE, add_special_tokens=False, verbose=False)["input_ids"])
    return hashlib.sha256(json.dumps([vocabulary, probe]).encode()).hexdigest()


def write_heads(folder: Path, model: HasHeads) -> None:
    """The heads, if there are several; nothing stays of those that lay there before."""
    path = folder / HEADS_FILE
    if model.score_heads is None:
        path.unlink(missing_ok=True)
        return
    save_file({HEADS: model.score_heads.weight.detach().contiguous().cpu()}, path)
    path.chmod((folder / SETTINGS_FILE).stat().st_mode & 0o777 if (folder / SETTINGS_FILE).exists() else 0o644)


def read_heads(folder: Path, model: HasHeads) -> None:
    """Give ``model`` the heads of its folder. Raises ModelError for a file that holds something else."""
    path = folder / HEADS_FILE
    if not path.is_file():
        return
    try:
        weight_MH = load_file(path)[HEADS]
    except (OSError, KeyError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if weight_MH.ndim != 2 or weight_MH.shape[1] != model.head.in_features:
        raise ModelError(f"{path} holds heads of shape {tuple(weight_MH.shape)}, the model has {model.head.in_features} hidden units")
    heads = nn.Linear(weight_MH.shape[1], weight_MH.shape[0], bias=False, dtype=model.head.weight.dtype)
    heads.weight.data.copy_(weight_MH)
    model.score_heads = heads
    model.head.weight.requires_grad_(False)
