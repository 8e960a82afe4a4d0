"""Scored answers as rows, and rows as tensors. Axes: B sequences, T tokens, K reward parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.algorithms.experience import Annotated, Experience
from tether.data.batches import PolicyBatch, TextBatch
from tether.errors import NumericsError

__all__ = ["RolloutRow", "check_rows", "drawn_logprobs", "part_tensors", "policy_batch", "sampler_logprobs"]


@dataclass(frozen=True)
class RolloutRow:
    """One scored answer: the very ids that were sampled. ``group`` names its prompt; ``terminated``: it ended by itself.

    ``baseline_score``: of the greedy answer to the prompt (ReMax); ``parts``: every reward part, unweighted, NaN where one does not apply.
    """

    query_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...] | None
    score: float
    group: str
    terminated: bool
    baseline_score: float | None = None
    parts: tuple[float, ...] = ()


def check_rows(rows: Sequence[RolloutRow]) -> None:
    if not rows:
        raise ValueError("no rollouts to learn from: no row has a score (did every reward part say it does not apply?)")
    for number, row in enumerate(rows):
        if not row.response_ids:
            raise ValueError(f"row {number} ({row.group}) has an empty response: an answer has at least its end token")
        if not row.query_ids:
            raise ValueError(f"row {number} ({row.group}) has an empty query: the first response token needs a token before it")
        if not math.isfinite(row.score):
            raise NumericsError(f"row {number} ({row.group}) has score {row.score}: leave unscorable rows out, and look at the reward")
        if row.sampler_logprobs is not None and len(row.sampler_logprobs) != len(row.response_ids):
            raise ValueError(
                f"row {number} ({row.group}): {len(row.sampler_logprobs)} sampler log-probabilities for {len(row.response_ids)} tokens"
            )


def policy_batch(
    texts: TextBatch, experience: Experience, annotated: Annotated, rows: Sequence[RolloutRow], *, needs_sampler: bool = False
) -> PolicyBatch:
    """The round as one batch. Where a row has no sampler log-probabilities the old ones stand in, unless ``needs_sampler``."""
    absent = [index for index, row in enumerate(rows) if row.sampler_logprobs is None]
    if needs_sampler and absent:
        group = rows[absent[0]].group
        raise ValueError(f"row {absent[0]} ({group}) has no sampler log-probabilities, and sampler_correction compares with them")
    sampler_BT = sampler_logprobs(experience.old_logprobs_BT, texts.response_mask_BT, rows)
    return PolicyBatch(
        text=texts,
        old_logprobs_BT=experience.old_logprobs_BT,
        ref_logprobs_BT=experience.ref_logprobs_BT,
        sampler_logprobs_BT=sampler_BT,
        advantages_BT=annotated.advantages_BT,
        returns_BT=annotated.returns_BT,
        old_values_BT=experience.old_values_BT,
    )


def sampler_logprobs(old_logprobs_BT: Tensor, mask_BT: Tensor, rows: Sequence[RolloutRow]) -> Tensor:
    """What the sampler reported, at live tokens; the old log-probabilities where it reported nothing."""
    sampler_BT = old_logprobs_BT.clone()
    for index, row in enumerate(rows):
        if row.sampler_logprobs is not None:
            sampler_BT[index, mask_BT[index]] = torch.tensor(row.sampler_logprobs, device=sampler_BT.device)
    return sampler_BT


def drawn_logprobs(mask_BT: Tensor, rows: Sequence[RolloutRow]) -> Tensor:
    """What the sampler reported, 0 elsewhere. Raises ValueError for a row without it: what drew it is then not known."""
    absent = next((index for index, row in enumerate(rows) if row.sampler_logprobs is None), None)
    if absent is not None:
        raise ValueError(
            f"row {absent} ({rows[absent].group}) has no sampler log-probabilities, and with rollouts_ahead = 1 other weights drew it than "
            "those that are updated: give sampler_logprobs, or set rollouts_ahead = 0"
        )
    return sampler_logprobs(torch.zeros(mask_BT.shape, device=mask_BT.device), mask_BT, rows)


def part_tensors(rows: Sequence[RolloutRow], weights: Sequence[float], like: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """(parts_BK, weights_K) where the rows carry their reward parts, else (None, None)."""
    if not rows[0].parts:
        return None, None
    if len(rows[0].parts) != len(weights):
        raise ValueError(f"rows have {len(rows[0].parts)} reward parts, and there are {len(weights)} weights")
    return like.new_tensor([row.parts for row in rows]), like.new_tensor(list(weights))
