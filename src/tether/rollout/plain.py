"""The plain path for every other causal language model: its own forward pass with its own cache, rows in
waves.

Rows of a wave are left-padded with an attention mask and explicit positions; a model that takes no
positions gets waves of equal prompt length, so that nothing is padded. Axes: P prompts, R live rows, T
columns, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

__all__ = ["PlainDecoder", "position_limit"]


class PlainDecoder:
    """The state of one ``generate`` call. Rows join only while none is live."""

    def __init__(self, model: PreTrainedModel, *, pad_id: int, compute_dtype: torch.dtype) -> None:
        accepted = inspect.signature(model.forward).parameters
        self._model, self._pad_id, self._dtype = model, pad_id, compute_dtype
        self.takes_positions = "position_ids" in accepted
        self._cache_name = next((name for name in ("past_key_values", "cache") if name in accepted), None)
        self._takes_last_only = "logits_to_keep" in accepted
        self._cache = DynamicCache(config=model.config)
        self._mask_RT = torch.zeros(0, 0, dtype=torch.long)

    def join(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Float[Tensor, "R V"]:
        """Start a wave: ``counts[i]`` rows of prompt i; the logits of their first tokens."""
        device = next(self._model.parameters()).device
        width = max(map(len, prompts))
        ids = [[self._pad_id] * (width - len(p)) + list(p) for p in prompts]
        mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
        ids_PT, self._mask_RT = torch.tensor(ids, device=device), torch.tensor(mask, device=device)
        self._cache = DynamicCache(config=self._model.config)
        logits_PV = self._forward(ids_PT, (self._mask_RT.cumsum(-1) - 1).clamp_min(0))
        rows_R = torch.arange(len(prompts), device=device).repeat_interleave(
            torch.tensor(counts, device=device)
        )
        self._select(rows_R)
        return logits_PV[rows_R]

    def step(self, tokens: Sequence[int]) -> Float[Tensor, "R V"]:
        """Feed one token to each live row; the logits of the next."""
        self._mask_RT = torch.nn.functional.pad(self._mask_RT, (0, 1), value=1)
        ids_R1 = torch.tensor(tokens, device=self._mask_RT.device)[:, None]
        return self._forward(ids_R1, self._mask_RT.sum(-1, keepdim=True) - 1)

    def keep(self, alive: Sequence[bool]) -> list[int]:
        """Drop the other rows. Returns the old index of each new row."""
        order = [row for row, lives in enumerate(alive) if lives]
        if order:
            self._select(torch.tensor(order, device=self._mask_RT.device))
        return order

    def _select(self, rows_R: Tensor) -> None:
        self._mask_RT = self._mask_RT[rows_R]
        self._cache.batch_select_indices(rows_R)

    def _forward(self, ids_RT: Tensor, positions_RT: Tensor) -> Tensor:
        extra: dict[str, object] = {self._cache_name: self._cache} if self._cache_name else {}
        if self.takes_positions:
            extra["position_ids"] = positions_RT
        if self._takes_last_only:
            extra["logits_to_keep"] = 1
        was_training = self._model.training
        self._model.eval()
        try:
            with self._autocast():
                output = self._model(input_ids=ids_RT, attention_mask=self._mask_RT, use_cache=True, **extra)
        finally:
            self._model.train(was_training)
        return output.logits[:, -1]

    def _autocast(self) -> AbstractContextManager[object]:
        weight = next(self._model.parameters())
        if weight.dtype == self._dtype or self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(weight.device.type, dtype=self._dtype)


def position_limit(config: Mapping[str, object]) -> int | None:
    """Most positions a model has, from its configuration as a mapping; None where none is stated (ALiBi,
    recurrent).
    """
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    limits = [config[name] for name in names if isinstance(config.get(name), int)]
    return min(limits) if limits else None  # type: ignore[type-var, return-value]
