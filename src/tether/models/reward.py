"""The reward model: a HF sequence classifier with one label, read at the last attended token of a row.

The folder is one that plain transformers scores the same (`AutoModelForSequenceClassification`). Beside it
lies `tether_reward.json`: how texts are rendered and cut, and `score_offset`, which is NOT part of a score:
rewards/learned adds it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..errors import DataError, MissingHeadError, ModelError
from ..maths.logprobs import last_live_index
from ..text.chat import ChatFormat
from ..types import Message
from . import files
from .adapters import LoraSpec, add_lora, merged_weights
from .elementwise import lean_layers
from .packed import enable_packing
from .resolve import resolve_model
from .trunk import TokenRows, hidden_states

SETTINGS_FILE = "tether_reward.json"
HEAD = "score.weight"
PAD_TOKEN = "<|pad|>"
Text = str | Sequence[Message]


class Truncation(StrEnum):
    """What happens to a text past `max_length` tokens: ERROR (DataError), LEFT (its last `max_length` are
    scored)."""

    ERROR = "error"
    LEFT = "left"


@final
@dataclass(frozen=True, slots=True)
class RewardSettings:
    """The content of tether_reward.json. `fingerprint` is that of the template; `score_offset` in score
    units."""

    fingerprint: str
    max_length: int
    truncation: Truncation = Truncation.ERROR
    score_offset: float = 0.0
    schema_version: int = 1


@final
@dataclass(frozen=True, slots=True)
class _Rows:
    token_ids_BT: Tensor
    attention_mask_BT: Tensor
    response_mask_BT: Tensor


@final
class RewardModel(nn.Module):
    """A scalar score per row; trained in place. `head` is the linear layer under which higher is better."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
        truncation: Truncation | str = Truncation.ERROR,
        score_offset: float = 0.0,
    ) -> None:
        super().__init__()
        _separate_pad(model, tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.format = ChatFormat(tokenizer)
        self.max_length = max_length or model.config.get_text_config().max_position_embeddings
        self.truncation = Truncation(truncation)
        self.score_offset = score_offset
        enable_packing(model)
        lean_layers(model)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        new_head: bool = False,
        lora: LoraSpec | None = None,
        dtype: str = "float32",
        local_files_only: bool = True,
        trust_remote_code: bool = False,
        seed: int = 0,
    ) -> RewardModel:
        """A saved reward model, ours or any one-label classifier with a head named `score`.

        Raises ModelError for another number of labels or a template that has changed since it was saved, and
        MissingHeadError where the checkpoint has no head, unless `new_head` allows a fresh one drawn from
        `seed`.
        """
        path = resolve_model(path, local_files_only=local_files_only)
        rules: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": trust_remote_code}
        loaded = _load_classifier(str(path), dtype, rules)
        if HEAD in loaded.missing:
            if not new_head:
                raise MissingHeadError(
                    f"{path} holds no {HEAD}: it is not a trained reward model, and would score with random "
                    "weights. "
                    "Train one, or pass new_head=True / RewardModel.from_base to start one"
                )
            _draw_head(loaded.model, seed)
        tokenizer = files.load_tokenizer(str(path), **rules)
        settings = _read_settings(Path(path))
        kept = {} if settings is None else _options(settings)
        reward_model = cls(loaded.model, tokenizer, **kept)
        if settings is not None and settings.fingerprint != reward_model.format.fingerprint:
            raise ModelError(
                f"the chat template or the special tokens in {path} are not those the reward model was "
                "trained with "
                f"({SETTINGS_FILE} says {settings.fingerprint[:12]}, found "
                f"{reward_model.format.fingerprint[:12]})"
            )
        if lora is not None:
            add_lora(reward_model.model, lora, seed, trained=(HEAD,))
        return reward_model

    @classmethod
    def from_base(cls, path: str | Path, seed: int = 0, **options: Any) -> RewardModel:
        """A new reward model on the trunk of a causal model: head normal with std 1 / sqrt(hidden + 1).

        Source: Stiennon et al. 2020 (lm-human-preferences). `options` as for `load`.
        """
        reward_model = cls.load(path, new_head=True, seed=seed, **options)
        _draw_head(reward_model.model, seed)
        reward_model.score_offset = 0.0
        return reward_model

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.head.weight.device

    @property
    def head(self) -> nn.Linear:
        """The score head."""
        return _score(self.model)

    @property
    def trunk(self) -> nn.Module:
        """The transformer under the head."""
        return self.model.base_model

    @property
    def settings(self) -> RewardSettings:
        """What `save` writes into tether_reward.json."""
        return RewardSettings(self.format.fingerprint, self.max_length, self.truncation, self.score_offset)

    def score_batch(self, batch: TokenRows) -> Float[Tensor, " B"]:
        """Raw scores, float32, read at the last position the attention mask holds (never found by ids);
        differentiable.

        Padding on either side, and pad id == end id, change nothing (case E1). Raises DataError for an empty
        row.
        """
        last_B = last_live_index(batch.attention_mask_BT.to(self.device))
        if bool((last_B < 0).any()):
            raise DataError(
                f"row {int((last_B < 0).nonzero()[0, 0]) + 1} of the batch has no attended token to score"
            )
        hidden_BH = hidden_states(self.trunk, batch, self.device).at(last_B)
        with torch.autocast(self.device.type, enabled=False):
            return self.head(hidden_BH.to(self.head.weight.dtype))[:, 0].float()

    @torch.no_grad()
    def score_texts(
        self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int = 16_384
    ) -> list[float]:
        """Raw scores of texts, rendered by the template stored with the model; batches of at most
        `token_budget` tokens."""
        if len(prompts) != len(completions):
            raise DataError(f"{len(prompts)} prompts but {len(completions)} completions")
        rows = [self._row(n, p, c) for n, (p, c) in enumerate(zip(prompts, completions, strict=True), 1)]
        scores = [0.0] * len(rows)
        for indices in _by_length([len(row) for row in rows], token_budget):
            batch = _padded([rows[index] for index in indices], self.format.pad_id)
            for index, score in zip(indices, self.score_batch(batch).tolist(), strict=True):
                scores[index] = score
        return scores

    def _row(self, number: int, prompt: Text, completion: Text) -> tuple[int, ...]:
        ids = self.format.example(prompt, completion).token_ids
        if len(ids) <= self.max_length:
            return ids
        if self.truncation is Truncation.LEFT:
            return ids[-self.max_length :]
        raise DataError(
            f"text {number} has {len(ids)} tokens, the reward model takes {self.max_length}: shorten it, or "
            "set "
            "truncation to left"
        )

    @torch.no_grad()
    def normalise(self, mean: float, std: float) -> None:
        """Make scores with this mean and std come out with 0 and 1: the gain goes into the head, the rest
        into the offset.

        `mean` and `std` are of the present RAW scores. Afterwards raw scores are divided by std, and
        `score_offset` is -mean / std. Example: scores 3 and 5, mean 4, std 1 -> raw 3 and 5, offset -4.
        """
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise ModelError(f"normalise needs a finite mean and a std above 0, got mean {mean}, std {std}")
        self.head.weight.div_(std)
        self.score_offset = -mean / std

    def enable_activation_checkpointing(self) -> None:
        """Keep one hidden state per layer and recompute the rest in the backward pass; puts the model in
        train mode."""
        files.checkpoint_activations(self.model)

    def save(self, folder: Path | str) -> None:
        """Adapters merged, head included, for plain transformers; settings in tether_reward.json."""
        target = Path(folder)
        files.save_model(self.model, self.tokenizer, target, merged_weights(self.model))
        (target / SETTINGS_FILE).write_text(json.dumps(asdict(self.settings), indent=2) + "\n", "utf-8")

    def weights_fingerprint(self) -> str:
        """sha256 of all weights, adapters included."""
        return files.fingerprint(self)


def _load_classifier(path: str, dtype: str, rules: dict[str, Any]) -> files.Loaded:
    files.require_safetensors(path)
    try:
        config = AutoConfig.from_pretrained(path, **rules)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} has no usable config.json: {error}") from error
    classifier = any("ForSequenceClassification" in name for name in config.architectures or ())
    if classifier and config.num_labels != 1:
        raise ModelError(
            f"{path} classifies into {config.num_labels} labels; a reward model has num_labels = 1"
        )
    options = {} if classifier else {"num_labels": 1, "problem_type": "regression"}
    loaded = files.load_model(AutoModelForSequenceClassification, path, dtype=dtype, **rules, **options)
    if not isinstance(dict(loaded.model.named_children()).get("score"), nn.Linear):
        raise ModelError(
            f"{type(loaded.model).__name__} has no head named score: expected a decoder with one linear head"
        )
    files.refuse_missing(path, loaded, allowed=(HEAD,))
    return loaded


@torch.no_grad()
def _draw_head(model: PreTrainedModel, seed: int) -> None:
    weight = _score(model).weight
    generator = torch.Generator().manual_seed(seed)
    weight.copy_(torch.randn(tuple(weight.shape), generator=generator) / math.sqrt(weight.shape[1] + 1))


def _score(model: PreTrainedModel) -> nn.Linear:
    head = model.get_submodule("score")
    assert isinstance(head, nn.Linear), f"score is a {type(head).__name__}"
    return head


def _separate_pad(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A pad id that ends no text: plain transformers looks for the last id that is not the pad id.

    With pad == end it would read the score one token early (SmolLM2, GPT-2). An unused special token is
    taken, or one is added. Our own scores do not look at it.
    """
    ends = ChatFormat(tokenizer).eos_ids
    spare: list[Any] = [tokenizer.pad_token_id, tokenizer.unk_token_id]
    chosen = next((i for i in spare if i is not None and i not in ends), None)
    if chosen is None:
        tokenizer.add_special_tokens({"pad_token": PAD_TOKEN})
        if len(tokenizer) > model.config.get_text_config().vocab_size:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    elif chosen != tokenizer.pad_token_id:
        tokenizer.pad_token = str(tokenizer.convert_ids_to_tokens(chosen))
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


def _read_settings(folder: Path) -> RewardSettings | None:
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return None
    try:
        return RewardSettings(**json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _options(settings: RewardSettings) -> dict[Literal["max_length", "truncation", "score_offset"], Any]:
    return {
        "max_length": settings.max_length,
        "truncation": settings.truncation,
        "score_offset": settings.score_offset,
    }


def _by_length(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Rows in groups of like length, rows x longest within the budget; a longer row stands alone."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * lengths[index] <= token_budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _padded(rows: Sequence[tuple[int, ...]], pad_id: int) -> _Rows:
    width = max(map(len, rows))
    ids_BT = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows])
    mask_BT = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    return _Rows(ids_BT, mask_BT, torch.zeros_like(mask_BT))
