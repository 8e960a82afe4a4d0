"""Scored answers as rows, and rows as tensors. Axes: B sequences, T tokens, K reward parts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.algorithms.experience import Annotated, Experience
from tether.data.batches import PolicyBatch, TextBatch
from tether.errors import NumericsError
from tether.state import State

__all__ = ["RolloutRow", "check_rows", "drawn_logprobs", "part_tensors", "policy_batch", "rows_of", "sampler_logprobs", "state_of_rows"]


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


def state_of_rows(rows: Sequence[RolloutRow]) -> State:
    """Rows as a value that can be saved: ids and log-probabilities one after the other in tensors, the rest as a text (NaN is no JSON)."""
    rest = [[row.score, row.group, row.terminated, row.baseline_score, row.parts] for row in rows]
    lengths = [[len(row.query_ids), len(row.response_ids)] for row in rows]
    return State(
        {
            "query_ids": torch.tensor([token for row in rows for token in row.query_ids], dtype=torch.int64),
            "response_ids": torch.tensor([token for row in rows for token in row.response_ids], dtype=torch.int64),
            "sampler_logprobs": torch.tensor([told for row in rows for told in row.sampler_logprobs or ()], dtype=torch.float64),
        },
        {"lengths": lengths, "rest": json.dumps(rest)},
    )


def rows_of(state: State) -> list[RolloutRow]:
    """The rows that ``state_of_rows`` was given, to the last bit; all of them with sampler log-probabilities."""
    queries, responses, logprobs = (state.tensors[name].tolist() for name in ("query_ids", "response_ids", "sampler_logprobs"))
    rows: list[RolloutRow] = []
    at_query = at_response = 0
    for (query, response), (score, group, terminated, baseline, parts) in zip(
        state.values["lengths"], json.loads(state.values["rest"]), strict=True
    ):
        ids, own = slice(at_query, at_query + query), slice(at_response, at_response + response)
        told = tuple(responses[own]), tuple(logprobs[own])
        rows.append(RolloutRow(tuple(queries[ids]), *told, score, group, terminated, baseline, tuple(parts)))
        at_query, at_response = ids.stop, own.stop
    return rows


def part_tensors(rows: Sequence[RolloutRow], weights: Sequence[float], like: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """(parts_BK, weights_K) where the rows carry their reward parts, else (None, None)."""
    if not rows[0].parts:
        return None, None
    if len(rows[0].parts) != len(weights):
        raise ValueError(f"rows have {len(rows[0].parts)} reward parts, and there are {len(weights)} weights")
    return like.new_tensor([row.parts for row in rows]), like.new_tensor(list(weights))
