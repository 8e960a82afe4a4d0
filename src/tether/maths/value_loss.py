"""Value function loss and its fit. Axes: B sequences, T tokens. Values and returns in the unit of the
reward.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .masked import full_precision, has_spread, masked_var, require_finite, select


@dataclass(frozen=True)
class ValueLoss:
    """Per-token losses (attached, 0 at pads) and where the clipped branch won, so that the gradient is cut or
    bent.
    """

    losses_BT: Float[Tensor, "B T"]
    clipped_BT: Bool[Tensor, "B T"]


def value_loss(
    values_BT: Float[Tensor, "B T"],
    old_values_BT: Float[Tensor, "B T"],
    returns_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    clip: float | None = None,
) -> ValueLoss:
    """L_t = 1/2 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), or 1/2 (v - R)^2 without `clip`.

    OpenAI baselines ppo2; algorithms.md section 5. Gradient 0 where the clipped branch is the larger. The
    clip fraction is `clipped_BT.sum() / live tokens`. Old values and returns are data. Raises NonFiniteError
    at a live NaN, ValueError for clip < 0. Example: v 1, v_old 0, R 2, c .2: 1/2 max(1, 1.8^2) = 1.62,
    gradient 0.
    """
    for name, x_BT in (("values", values_BT), ("old_values", old_values_BT), ("returns", returns_BT)):
        require_finite(name, x_BT, mask_BT)
    live_BT = full_precision(select(values_BT, mask_BT))
    returns_BT = full_precision(select(returns_BT, mask_BT)).detach()
    squared_BT = (live_BT - returns_BT).square()
    if clip is None:
        return ValueLoss(select(squared_BT / 2, mask_BT), torch.zeros_like(mask_BT))
    if clip < 0:
        raise ValueError(f"clip must not be negative, got {clip}")
    old_BT = full_precision(select(old_values_BT, mask_BT)).detach()
    bounded_BT = (old_BT + (live_BT - old_BT).clamp(-clip, clip) - returns_BT).square()
    outside_BT = (live_BT - old_BT).abs() > clip  # inside, the two branches differ by rounding alone
    clipped_BT = mask_BT & outside_BT & (bounded_BT > squared_BT)
    return ValueLoss(select(torch.where(clipped_BT, bounded_BT, squared_BT) / 2, mask_BT), clipped_BT)


def explained_variance(
    old_values_BT: Float[Tensor, "B T"], returns_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]
) -> float:
    """1 - Var(R - V_old) / Var(R) over live tokens, population variances; NaN when R has no spread or nothing is
    live.

    1 is a perfect fit, 0 no better than the mean. Raises NonFiniteError at a live NaN. Example: V [1, 2], R
    [1, 3] -> 1 - .25 / 1 = .75.
    """
    require_finite("old_values", old_values_BT, mask_BT)
    require_finite("returns", returns_BT, mask_BT)
    if not has_spread(returns_BT, mask_BT):
        return math.nan
    old_values_BT, returns_BT = old_values_BT.detach(), returns_BT.detach()
    residual_BT = full_precision(select(returns_BT, mask_BT)) - full_precision(select(old_values_BT, mask_BT))
    return 1 - float(masked_var(residual_BT, mask_BT) / masked_var(returns_BT, mask_BT))
