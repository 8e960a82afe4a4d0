"""What the policy losses share: the ratio, the advantages as data, the clip. Axes: B sequences, T tokens."""

import torch
from torch import Tensor

from .kl import exp_within_range
from .masked import full_precision, require_finite, select


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """logprobs - old_logprobs in full precision, 0 at pads; the old side detached; both checked."""
    require_finite("logprobs", logprobs_BT, mask_BT)
    require_finite("old_logprobs", old_logprobs_BT, mask_BT)
    old_BT = select(old_logprobs_BT, mask_BT).detach()
    return full_precision(select(logprobs_BT, mask_BT)) - full_precision(old_BT)


def live_advantages(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    require_finite("advantages", advantages_BT, mask_BT)
    return full_precision(select(advantages_BT, mask_BT)).detach()


def row_advantages(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    return live_advantages(advantages_B, mask_BT.any(-1))


def gradient_cut(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    return ((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))


def clipped_objective(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    """min(r A, clip(r) A), written as a choice so that a tie keeps the whole gradient."""
    bound = torch.where(
        advantages > 0, torch.full_like(ratio, 1 + eps_high), torch.full_like(ratio, 1 - eps_low)
    )
    return torch.where(
        gradient_cut(ratio, advantages, eps_low, eps_high), bound * advantages, ratio * advantages
    )


def sequence_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return exp_within_range(select(log_ratio_BT, mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1))


def check_clip(eps_low: float, eps_high: float) -> None:
    if eps_low < 0 or eps_high < 0:
        raise ValueError(f"clip widths must not be negative, got {eps_low} and {eps_high}")
