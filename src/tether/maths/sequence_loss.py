"""Policy surrogates with one coefficient per sequence, minimised. Axes: B sequences, T tokens.

As in `policy_loss`: per-token losses, 0 at pads, to be aggregated by the caller.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ._ratio import (
    check_clip,
    clipped_objective,
    gradient_cut,
    live_advantages,
    log_ratio,
    row_advantages,
    sequence_ratio,
)
from .masked import select
from .policy_loss import Surrogate
from .returns import broadcast_to_tokens


@dataclass(frozen=True)
class SequenceSurrogate:
    """As Surrogate, with one coefficient per row: the loss of a row stands at each of its live tokens, so
    that `seq_mean_token_mean` is the mean over rows. `clipped_B`: the gradient of the row is cut.
    """

    losses_BT: Float[Tensor, "B T"]
    ratio_B: Float[Tensor, "B"]
    clipped_B: Bool[Tensor, "B"]


def gspo(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_B: Float[Tensor, "B"],
    mask_BT: Bool[Tensor, "B T"],
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
) -> SequenceSurrogate:
    """L_b = -min(s A, clip(s, 1 - eps_low, 1 + eps_high) A), s = exp(mean_t log r_t). GSPO 2507.18071 eq. 5,
    7.

    Gradient -s A / L_b at every live token. Aggregate with `seq_mean_token_mean`. Raises as `ppo_surrogate`.
    Example: log-ratios [.1, .3], A 1, eps infinite -> s = exp(.2) = 1.221403, loss -1.221403.
    """
    check_clip(eps_low, eps_high)
    advantages_B = row_advantages(advantages_B, mask_BT)
    ratio_B = sequence_ratio(log_ratio(logprobs_BT, old_logprobs_BT, mask_BT), mask_BT)
    losses_B = -clipped_objective(ratio_B, advantages_B, eps_low, eps_high)
    clipped_B = gradient_cut(ratio_B, advantages_B, eps_low, eps_high) & mask_BT.any(-1)
    return SequenceSurrogate(broadcast_to_tokens(losses_B, mask_BT), ratio_B.detach(), clipped_B)


def gspo_token(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
) -> Surrogate:
    """GSPO with advantages per token: ratio sg[s] pi / sg[pi]. 2507.18071 eq. 13-14.

    Equal to `gspo` in value and gradient where A is constant in a row. Raises as `ppo_surrogate`.
    Example: log-ratios [.1, .3], A [1, 0], eps infinite -> losses [-1.221403, 0].
    """
    check_clip(eps_low, eps_high)
    advantages_BT = live_advantages(advantages_BT, mask_BT)
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    sequence_BT = sequence_ratio(log_ratio_BT.detach(), mask_BT)[:, None]
    ratio_BT = sequence_BT * torch.exp(log_ratio_BT - log_ratio_BT.detach())
    losses_BT = select(-clipped_objective(ratio_BT, advantages_BT, eps_low, eps_high), mask_BT)
    return Surrogate(losses_BT, select(ratio_BT, mask_BT).detach())


def gmpo(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_B: Float[Tensor, "B"],
    mask_BT: Bool[Tensor, "B T"],
    log_eps_low: float = 0.4,
    log_eps_high: float = 0.4,
) -> SequenceSurrogate:
    """L_b = -A exp(mean_t c_t), c_t the log-ratio clipped in log space on the side the sign of A asks for.

    GMPO 2507.20673: c = min(d, log_eps_high) for A > 0 and max(d, -log_eps_low) for A < 0. Aggregate with
    `seq_mean_token_mean`. Raises as `ppo_surrogate`. Example: log-ratios [.1, .9], A 1, bounds .4 ->
    exp(.25) = 1.284025, loss -1.284025.
    """
    check_clip(log_eps_low, log_eps_high)
    advantages_B = row_advantages(advantages_B, mask_BT)
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    sign_B1 = torch.sign(advantages_B)[:, None]
    high_BT = (sign_B1 > 0) & (log_ratio_BT > log_eps_high)
    low_BT = (sign_B1 < 0) & (log_ratio_BT < -log_eps_low)
    clipped_BT = torch.where(high_BT, log_eps_high, torch.where(low_BT, -log_eps_low, log_ratio_BT))
    coef_B = sequence_ratio(clipped_BT, mask_BT)
    all_cut_B = ((high_BT | low_BT) | ~mask_BT).all(-1) & mask_BT.any(-1)
    return SequenceSurrogate(broadcast_to_tokens(-coef_B * advantages_B, mask_BT), coef_B.detach(), all_cut_B)
