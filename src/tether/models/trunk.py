"""From padded rows to hidden states, and from hidden states of live tokens to log-probabilities.

Axes: B rows, T tokens, N live tokens of the batch, H hidden, V vocabulary. Column t speaks of token t: its
log-probability and value come from the hidden state at t - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..maths.logprobs import CHUNK_ELEMENTS, entropy_from_logits, selected_logprobs
from ..maths.masked import full_precision
from .packed import pack_rows, packs, run_packed

Head = Callable[[Tensor], Tensor]


class TokenRows(Protocol):
    """What a model reads of a batch (data.batches.TextBatch has it; models and data do not import each
    other)."""

    @property
    def token_ids_BT(self) -> Int[Tensor, "B T"]: ...
    @property
    def attention_mask_BT(self) -> Bool[Tensor, "B T"]: ...
    @property
    def response_mask_BT(self) -> Bool[Tensor, "B T"]: ...


def model_inputs(batch: TokenRows, device: torch.device) -> dict[str, Tensor]:
    """Keyword arguments for a causal transformer.

    Rows padded on the right need no mask: a live token never looks at a later one, and without a mask
    attention takes its fast path. Any other mask is passed with the positions it implies. Ids at pads are
    never looked up.
    """
    mask_BT = batch.attention_mask_BT.to(device)
    ids_BT = torch.where(mask_BT, batch.token_ids_BT.to(device), 0)
    if bool((mask_BT[:, 1:] <= mask_BT[:, :-1]).all()):
        return {"input_ids": ids_BT}
    positions_BT = (mask_BT.long().cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids_BT, "attention_mask": mask_BT.long(), "position_ids": positions_BT}


@final
@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states after the final norm, wherever the trunk computed them: that of token (b, t) is row
    `place_BT[b, t]` (pads: any)."""

    states_NH: Tensor
    place_BT: Int[Tensor, "B T"]

    def before_live(self, live_BT: Bool[Tensor, "B T"]) -> Tensor:
        """Those at t - 1 for every live token t, in reading order: [M, H]."""
        return self.states_NH[self.place_BT[:, :-1][live_BT[:, 1:]]]

    def at(self, columns_B: Int[Tensor, " B"]) -> Tensor:
        """That of one column of each row: [B, H]."""
        return self.states_NH[self.place_BT[torch.arange(len(columns_B), device=columns_B.device), columns_B]]


def hidden_states(trunk: nn.Module, batch: TokenRows, device: torch.device) -> HiddenStates:
    """One run of the trunk, no cache: over packed rows where the model takes them (`models.packed`), else over padded ones."""
    if packs(trunk):
        on_device = (x.to(device) for x in (batch.token_ids_BT, batch.attention_mask_BT, batch.response_mask_BT))
        if (rows := pack_rows(*on_device)) is not None:
            return HiddenStates(run_packed(trunk, rows), rows.place_BT)
    states_BTH = trunk(**model_inputs(batch, device), use_cache=False).last_hidden_state
    shape = states_BTH.shape[:2]
    return HiddenStates(states_BTH.flatten(0, 1), torch.arange(shape.numel(), device=device).view(shape))


def live_positions(batch: TokenRows, device: torch.device) -> Bool[Tensor, "B T"]:
    """The response mask on the device. Raises ValueError for a live column 0, which nothing predicts."""
    live_BT = (batch.response_mask_BT & batch.attention_mask_BT).to(device)
    if bool(live_BT[:, :1].any()):
        raise ValueError(
            "response_mask is True in column 0, but no token precedes it: give each row a prompt token"
        )
    return live_BT


def last_columns(batch: TokenRows, device: torch.device) -> Int[Tensor, " B"]:
    """The column of each row's last token."""
    mask_BT = batch.attention_mask_BT.to(device)
    return mask_BT.shape[1] - 1 - mask_BT.flip(-1).int().argmax(-1)


def before_live(x_BTD: Tensor, live_BT: Tensor) -> Tensor:
    """Rows of x at t - 1 for every live token t, in reading order: [N, D]."""
    return x_BTD[:, :-1][live_BT[:, 1:]]


def spread(x_N: Tensor, live_BT: Tensor) -> Float[Tensor, "B T"]:
    """Put one number per live token into its column, in float32 (float64 stays); 0 elsewhere."""
    x_N = full_precision(x_N)
    out_BT = torch.zeros(live_BT.shape, dtype=x_N.dtype, device=live_BT.device)
    return out_BT.masked_scatter(live_BT, x_N)


def select_by_chunks(
    head: Head, hidden_NH: Tensor, tokens_N: Tensor, temperature: float, vocabulary: int, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the tokens and, when asked for, entropies, for heads that `models.head` does not serve: over chunks of
    positions, recomputed in the backward pass."""
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    graph = torch.is_grad_enabled()

    def scores(h_CH: Tensor, t_C: Tensor) -> tuple[Tensor, Tensor | None]:
        logits_CV = head(h_CH)
        chosen_C = selected_logprobs(logits_CV, t_C, temperature)
        return chosen_C, entropy_from_logits(logits_CV, temperature) if entropy else None

    parts = [
        checkpoint(scores, h, t, use_reentrant=False, preserve_rng_state=False) if graph else scores(h, t)
        for h, t in zip(hidden_NH.split(size), tokens_N.split(size), strict=True)
    ]
    entropies = [e for _, e in parts if e is not None]
    return torch.cat([p for p, _ in parts]), torch.cat(entropies) if entropy else None
