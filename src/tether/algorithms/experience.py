"""What the trainer knows of one round before the update: rollouts as tensors, and the advantages made of them.

Axes: B sequences, T tokens, K reward parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Annotated", "Experience", "as_groups"]


@dataclass(frozen=True)
class Experience:
    """One round of rollouts, before advantages. Log-probabilities in nats at the sampling temperature.

    ``terminated_B``: the answer ended by itself; otherwise it was cut by the token budget, and ``bootstrap_values_B`` (actor-critic)
    is the value of the state it was cut in. ``group_ids_B``: rows of one prompt share an id, in any order. ``baseline_scores_B``: the
    score of the greedy answer to the same prompt (ReMax). ``parts_BK``: unweighted reward parts, NaN where one does not apply, with
    ``part_weights_K`` (GDPO). ``drawn_logprobs_BT``: the sampler's, where older weights drew the answers (rollouts_ahead).
    ``ref_logprobs_BT``: None where the reference read nothing, which needs beta = 0 (kl.reference_pass).
    """

    mask_BT: Tensor
    scores_B: Tensor
    group_ids_B: Tensor
    terminated_B: Tensor
    old_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor | None
    old_values_BT: Tensor | None = None
    bootstrap_values_B: Tensor | None = None
    baseline_scores_B: Tensor | None = None
    parts_BK: Tensor | None = None
    part_weights_K: Tensor | None = None
    drawn_logprobs_BT: Tensor | None = None


@dataclass(frozen=True)
class Annotated:
    """Advantages per token and, for an actor-critic, the targets of the value function; all detached, 0 at pads.

    ``dead_groups`` of ``num_groups`` had no spread in their rewards.
    """

    advantages_BT: Tensor
    returns_BT: Tensor | None
    dead_groups: int
    num_groups: int


def as_groups(ids: list[str]) -> Tensor:
    """Integer group ids of prompt ids, in order of first appearance. Example: ["b", "a", "b"] -> [0, 1, 0]."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in ids])
