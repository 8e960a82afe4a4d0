"""Tables of logits, sampled and trained with the functions that train a language model.

Axes: P tables (one policy each), A actions, G draws of one table, B = P G rows. One action is one answer of one token.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tether.maths import Aggregation, KLEstimator, aggregate_sum, grpo_loss, inverse_cdf_sample, selected_logprobs

__all__ = ["draw_actions", "group_gradient", "group_ids", "pick_actions", "streams"]


def draw_actions(logits_PA: Tensor, group_size: int, generator: torch.Generator) -> Tensor:
    """``actions_PG``: G actions of every table, by inverse CDF from one uniform each."""
    return pick_actions(logits_PA, torch.rand(len(logits_PA), group_size, generator=generator, dtype=logits_PA.dtype))


def pick_actions(logits_PA: Tensor, uniforms_PG: Tensor) -> Tensor:
    """``actions_PG``: those that the uniforms stand for."""
    actions_B = inverse_cdf_sample(logits_PA.repeat_interleave(uniforms_PG.shape[1], 0), uniforms_PG.flatten())
    return actions_B.view(uniforms_PG.shape)


def streams(seeds: range, *shape: int) -> Tensor:
    """``uniforms_S...``: a stream of its own for every seed, NumPy's default generator."""
    return torch.from_numpy(np.stack([np.random.default_rng(seed).random(shape) for seed in seeds]))


def group_ids(num_tables: int, group_size: int) -> Tensor:
    """The group of each of the B rows: its table."""
    return torch.arange(num_tables).repeat_interleave(group_size)


def group_gradient(
    logits_PA: Tensor,
    actions_PG: Tensor,
    advantages_PG: Tensor,
    ref_logits_PA: Tensor | None = None,
    beta: float = 0.0,
    estimator: KLEstimator = KLEstimator.K2,
) -> Tensor:
    """Gradient of each table's GRPO loss, averaged over its own G draws: ``gradient_PA``.

    On policy, so every ratio is 1. Without a reference there is no tether. k2 as a loss has, in expectation, the gradient of
    KL(policy || reference).
    """
    num_tables, group_size = actions_PG.shape
    actions_B = actions_PG.flatten()
    leaf_PA = logits_PA.detach().requires_grad_()
    logprobs_B1 = selected_logprobs(leaf_PA.repeat_interleave(group_size, 0), actions_B)[:, None]
    old_B1 = logprobs_B1.detach()
    ref_B1 = old_B1
    if ref_logits_PA is not None:
        ref_BA = ref_logits_PA.expand(num_tables, -1).repeat_interleave(group_size, 0)
        ref_B1 = selected_logprobs(ref_BA, actions_B)[:, None]
    mask_B1 = torch.ones_like(old_B1, dtype=torch.bool)
    advantages_B1 = advantages_PG.reshape(-1, 1)
    losses_B1 = grpo_loss(logprobs_B1, old_B1, ref_B1, advantages_B1, mask_B1, beta=beta, estimator=estimator).losses_BT
    # Tables share nothing, so the gradient of the sum is that of each table's own loss: divide by the draws of ONE table.
    total = aggregate_sum(losses_B1, mask_B1, Aggregation.SEQ_MEAN_TOKEN_SUM) / group_size
    return torch.autograd.grad(total, leaf_PA)[0]
