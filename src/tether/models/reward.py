"""The reward model: a HF sequence classifier with one label, read at the last attended token of a row.

The folder is one that plain transformers scores the same (`AutoModelForSequenceClassification`). Beside it
lies `tether_reward.json`: how texts are rendered and cut, what it was fitted to, and `score_offset`, which is NOT
part of a score: rewards/learned adds it. Several heads lie in `tether_heads.safetensors`; the head of the folder is
their mean, so that plain transformers gives the mean of their scores.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import DataError, MissingHeadError, ModelError
from ..maths.logprobs import last_live_index
from ..text.chat import ChatFormat
from ..types import Message
from . import files
from .adapters import LoraSpec, add_lora, merged_weights
from .classifier import HEAD, draw_head, draw_weight, load_classifier, score_head, separate_pad
from .elementwise import lean_layers
from .packed import enable_packing
from .resolve import resolve_model
from .reward_settings import (
    HEADS_FILE,
    SETTINGS_FILE,
    RewardSettings,
    ScoredText,
    Truncation,
    options_of,
    read_heads,
    read_settings,
    refuse_changed,
    tokenizer_sha256,
    write_heads,
)
from .trunk import TokenRows, hidden_states

__all__ = ["HEADS_FILE", "SETTINGS_FILE", "RewardModel", "RewardSettings", "ScoredText", "Truncation"]

_LOG = logging.getLogger(__name__)
Text = str | Sequence[Message]


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
        separate_pad(model, tokenizer)
        self.score_heads: nn.Linear | None = None
        self.num_cut = 0  # texts that were scored without some of their tokens
        self.model = model
        self.tokenizer = tokenizer
        self.format = ChatFormat(tokenizer)
        self.max_length = max_length or model.config.get_text_config().max_position_embeddings
        self.truncation = Truncation(truncation)
        self.score_offset = score_offset
        self.log_odds_per_unit = 1.0
        self.tie_model, self.tie_parameter = "", None
        self.fitted_to: dict[str, Any] = {}
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
        loaded = load_classifier(str(path), dtype, rules)
        if HEAD in loaded.missing:
            if not new_head:
                raise MissingHeadError(
                    f"{path} holds no {HEAD}: it is not a trained reward model, and would score with random "
                    "weights. "
                    "Train one, or pass new_head=True / RewardModel.from_base to start one"
                )
            draw_head(loaded.model, seed)
        tokenizer = files.load_tokenizer(str(path), **rules)
        settings = read_settings(Path(path))
        kept = {} if settings is None else options_of(settings)
        reward_model = cls(loaded.model, tokenizer, **kept)
        if settings is not None:
            refuse_changed(str(path), settings, reward_model.format)
            reward_model._remember(settings)
        read_heads(Path(path), reward_model)
        if lora is not None:
            add_lora(reward_model.model, lora, seed, trained=(HEAD,))
        return reward_model

    @classmethod
    def from_base(cls, path: str | Path, seed: int = 0, **options: Any) -> RewardModel:
        """A new reward model on the trunk of a causal model: head normal with std 1 / sqrt(hidden + 1).

        Source: Stiennon et al. 2020 (lm-human-preferences). `options` as for `load`.
        """
        reward_model = cls.load(path, new_head=True, seed=seed, **options)
        draw_head(reward_model.model, seed)
        reward_model.score_heads = None
        reward_model._remember(RewardSettings("", reward_model.max_length, reward_model.truncation))
        return reward_model

    def _remember(self, settings: RewardSettings) -> None:
        self.score_offset, self.log_odds_per_unit = settings.score_offset, settings.log_odds_per_unit
        self.tie_model, self.tie_parameter = settings.tie_model, settings.tie_parameter
        self.fitted_to = dict(settings.fitted_to)

    def grow_heads(self, count: int, seed: int) -> None:
        """`count` heads to train in place of the one, drawn from `seed`, `seed` + 1, ...; the one becomes their mean when saved.

        They share the trunk: their spread says how far the data leave the last layer open, and is less than that of models
        trained apart.
        """
        heads = nn.Linear(self.head.in_features, count, bias=False, dtype=self.head.weight.dtype, device=self.device)
        for number in range(count):
            draw_weight(heads.weight[number : number + 1], seed + number)
        self.score_heads = heads
        self.head.weight.requires_grad_(False)
        self.sync_heads()

    @torch.no_grad()
    def sync_heads(self) -> None:
        """Make the head that plain transformers reads the mean of the heads."""
        if self.score_heads is not None:
            self.head.weight.copy_(self.score_heads.weight.mean(0, keepdim=True))

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.head.weight.device

    @property
    def head(self) -> nn.Linear:
        """The score head."""
        return score_head(self.model)

    @property
    def trunk(self) -> nn.Module:
        """The transformer under the head."""
        return self.model.base_model

    @property
    def settings(self) -> RewardSettings:
        """What `save` writes into tether_reward.json."""
        return RewardSettings(
            self.format.fingerprint,
            self.max_length,
            self.truncation,
            self.score_offset,
            tokenizer_sha256=tokenizer_sha256(self.tokenizer),
            log_odds_per_unit=self.log_odds_per_unit,
            tie_model=self.tie_model,
            tie_parameter=self.tie_parameter,
            fitted_to=self.fitted_to,
        )

    def score_batch(self, batch: TokenRows) -> Float[Tensor, " B"]:
        """Raw scores, float32, read at the last position the attention mask holds (never found by ids);
        differentiable. With several heads: their mean.

        Padding on either side, and pad id == end id, change nothing (case E1). Raises DataError for an empty
        row.
        """
        return self.score_batch_by_head(batch).mean(-1)

    def score_batch_by_head(self, batch: TokenRows) -> Float[Tensor, "B M"]:
        """As `score_batch`, one column a head."""
        last_B = last_live_index(batch.attention_mask_BT.to(self.device))
        if bool((last_B < 0).any()):
            raise DataError(
                f"row {int((last_B < 0).nonzero()[0, 0]) + 1} of the batch has no attended token to score"
            )
        hidden_BH = hidden_states(self.trunk, batch, self.device).at(last_B)
        head = self.head if self.score_heads is None else self.score_heads
        with torch.autocast(self.device.type, enabled=False):
            return head(hidden_BH.to(head.weight.dtype)).float()

    def score_texts(
        self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int = 16_384
    ) -> list[float]:
        """Raw scores of texts, rendered by the template stored with the model; batches of at most
        `token_budget` tokens."""
        return [scored.mean for scored in self.score_texts_with_std(prompts, completions, token_budget=token_budget)]

    @torch.no_grad()
    def score_texts_with_std(
        self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int = 16_384
    ) -> list[ScoredText]:
        """As `score_texts`, with the standard deviation over heads."""
        if len(prompts) != len(completions):
            raise DataError(f"{len(prompts)} prompts but {len(completions)} completions")
        read = [self._row(n, p, c) for n, (p, c) in enumerate(zip(prompts, completions, strict=True), 1)]
        self._count_cut([length for row, length in read if length > len(row)])  # after the last one that may be refused
        rows = [row for row, _ in read]
        scores = [ScoredText(0.0, 0.0)] * len(rows)
        for indices in _by_length([len(row) for row in rows], token_budget):
            batch = _padded([rows[index] for index in indices], self.format.pad_id)
            by_head_BM = self.score_batch_by_head(batch)
            stds = [math.nan] * len(indices) if self.score_heads is None else by_head_BM.std(-1, correction=0).tolist()
            for index, mean, std in zip(indices, by_head_BM.mean(-1).tolist(), stds, strict=True):
                scores[index] = ScoredText(mean, std)
        return scores

    def num_tokens(self, prompt: Text, completion: Text) -> int:
        """Tokens of a text as the model would read it, before any cut."""
        return len(self.format.example(prompt, completion).token_ids)

    def _row(self, number: int, prompt: Text, completion: Text) -> tuple[tuple[int, ...], int]:
        """The tokens that are read, and how many there were before the cut."""
        example = self.format.example(prompt, completion)
        ids = example.token_ids
        if len(ids) <= self.max_length:
            return ids, len(ids)
        first_live = example.response_mask.index(True)
        if self.truncation is Truncation.ERROR or (self.truncation is Truncation.RIGHT and first_live >= self.max_length):
            prompt_alone = f", and its prompt alone {first_live}" if self.truncation is Truncation.RIGHT else ""
            remedy = "shorten it" if prompt_alone else "shorten it, or set truncation to left or right"
            raise DataError(f"text {number} has {len(ids)} tokens{prompt_alone}, the reward model takes {self.max_length}: {remedy}")
        return ids[: self.max_length] if self.truncation is Truncation.RIGHT else ids[-self.max_length :], len(ids)

    def _count_cut(self, lengths: Sequence[int]) -> None:
        """One warning, for the first of all."""
        if lengths and not self.num_cut:
            side = "at its end" if self.truncation is Truncation.RIGHT else "at its beginning"
            _LOG.warning("a text of %d tokens was cut %s to the %d that the reward model takes", lengths[0], side, self.max_length)
        self.num_cut += len(lengths)

    @torch.no_grad()
    def normalise(self, mean: float, std: float) -> None:
        """Make scores with this mean and std come out with 0 and 1: the gain goes into the heads, the rest
        into the offset. What a unit means in log-odds is kept (`log_odds_per_unit`). With std 1 the scale stays.

        `mean` and `std` are of the present RAW scores. Afterwards raw scores are divided by std, and
        `score_offset` is -mean / std. Example: scores 3 and 5, mean 4, std 1 -> raw 3 and 5, offset -4.
        """
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise ModelError(f"normalise needs a finite mean and a std above 0, got mean {mean}, std {std}")
        for head in (self.head, *([] if self.score_heads is None else [self.score_heads])):
            head.weight.div_(std)
        self.log_odds_per_unit *= std
        self.score_offset = -mean / std

    def enable_activation_checkpointing(self) -> None:
        """Keep one hidden state per layer and recompute the rest in the backward pass; puts the model in
        train mode."""
        files.checkpoint_activations(self.model)

    def save(self, folder: Path | str) -> None:
        """Adapters merged, head included, for plain transformers; settings in tether_reward.json."""
        target = Path(folder)
        self.sync_heads()
        files.save_model(self.model, self.tokenizer, target, merged_weights(self.model))
        write_heads(target, self)
        (target / SETTINGS_FILE).write_text(json.dumps(asdict(self.settings), indent=2) + "\n", "utf-8")

    def weights_fingerprint(self) -> str:
        """sha256 of all weights, adapters included."""
        return files.fingerprint(self)


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
