"""Token rewards, returns and generalised advantage estimation. Axes: B sequences, T tokens.

"Next" always means the next LIVE token of the row: interior gaps (tool tokens) are skipped, not zero-valued
steps. All results are detached: advantages and returns are data to the losses.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .kl import KLEstimator, kl_tokens
from .logprobs import last_live_index
from .masked import NonFiniteError, full_precision, require_finite, select


@dataclass(frozen=True)
class GAEResult:
    """Advantages and value targets, 0 at pads, detached."""

    advantages_BT: Float[Tensor, "B T"]
    returns_BT: Float[Tensor, "B T"]


def shaped_rewards(
    scores_B: Float[Tensor, "B"],
    old_logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    beta: float,
    estimator: KLEstimator = KLEstimator.K1,
) -> Float[Tensor, "B T"]:
    """r_t = -beta kl_t + [t is the LAST LIVE token] score. Ziegler et al. 2019 eq. 2, InstructGPT eq. 2.

    kl in nats from OLD log-probabilities; k1 is the estimator whose expected gradient is that of KL(pi ||
    ref). The score of an empty row goes nowhere, and may be NaN. Raises NonFiniteError for a live NaN or the
    NaN score of a non-empty row. Example: score 1, KL 0, mask [1, 1, 1, 0, 0] -> [0, 0, 1, 0, 0].
    """
    require_finite("scores", scores_B, mask_BT.any(-1))
    require_finite("old_logprobs", old_logprobs_BT, mask_BT)
    kl_BT = kl_tokens(old_logprobs_BT, ref_logprobs_BT, mask_BT, estimator).detach()
    columns_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_BT = mask_BT & (columns_T == last_live_index(mask_BT)[:, None])
    score_BT = select(full_precision(scores_B)[:, None].expand(mask_BT.shape), last_BT)
    return (select(-beta * kl_BT, mask_BT) + score_BT).detach()


def broadcast_to_tokens(rewards_B: Float[Tensor, "B"], mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """One number per row at every live token of it, 0 at pads. Example: [2] under [[1, 1, 0]] -> [[2, 2,
    0]].
    """
    return select(rewards_B[:, None].expand(mask_BT.shape), mask_BT)


def reward_to_go(
    rewards_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], gamma: float = 1.0
) -> Float[Tensor, "B T"]:
    """G_t = r_t + gamma G_next, 0 at pads. Raises NonFiniteError at a live NaN.

    Example: [[1, nan, 2]] under [[1, 0, 1]], gamma .5 -> [[2, 0, 2]].
    """
    require_finite("rewards", rewards_BT, mask_BT)
    live_BT = full_precision(select(rewards_BT, mask_BT)).detach()
    running_B = torch.zeros_like(live_BT[:, 0]) if live_BT.shape[1] else live_BT.sum(-1)
    out_BT = torch.zeros_like(live_BT)
    for t in reversed(range(live_BT.shape[1])):
        running_B = torch.where(mask_BT[:, t], live_BT[:, t] + gamma * running_B, running_B)
        out_BT[:, t] = running_B
    return select(out_BT, mask_BT)


def gae(
    rewards_BT: Float[Tensor, "B T"],
    values_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    gamma: float,
    lam: float | Float[Tensor, "B"],
    terminated_B: Bool[Tensor, "B"],
    bootstrap_values_B: Float[Tensor, "B"] | None = None,
    dones_BT: Bool[Tensor, "B T"] | None = None,
) -> GAEResult:
    """delta_t = r_t + gamma V_next - V_t;  A_t = delta_t + gamma lam A_next;  R_t = A_t + V_t.

    Schulman et al. 2016 eq. 16; algorithms.md section 4. After the last live token V_next is 0 in a
    terminated row and `bootstrap_values` in a truncated one (length limit): the value of the state after it.
    A bootstrap of a terminated row is ignored, NaN included. `dones` marks the last token of each episode
    packed in a row and cuts bootstrap and trace there. `lam` is one number, or one per row (VAPO). Raises
    NonFiniteError for NaN at a live position or in a bootstrap that is needed, ValueError when one is needed
    and none is given. Example: r [0, 1], V [.2, .4], gamma 1, lam .9, terminated -> A [.74, .6], R [.94, 1].
    """
    require_finite("rewards", rewards_BT, mask_BT)
    require_finite("values", values_BT, mask_BT)
    rewards_BT = full_precision(select(rewards_BT, mask_BT)).detach()
    live_values_BT = full_precision(select(values_BT, mask_BT)).detach()
    next_value_B = _bootstrap(mask_BT, terminated_B, bootstrap_values_B, dones_BT, live_values_BT)
    trace_B = torch.zeros_like(next_value_B)
    advantages_BT = torch.zeros_like(rewards_BT)
    for t in reversed(range(rewards_BT.shape[1])):
        if dones_BT is not None:
            done_B = dones_BT[:, t] & mask_BT[:, t]
            next_value_B, trace_B = next_value_B.masked_fill(done_B, 0), trace_B.masked_fill(done_B, 0)
        delta_B = rewards_BT[:, t] + gamma * next_value_B - live_values_BT[:, t]
        live_B = mask_BT[:, t]
        trace_B = torch.where(live_B, delta_B + gamma * lam * trace_B, trace_B)
        next_value_B = torch.where(live_B, live_values_BT[:, t], next_value_B)
        advantages_BT[:, t] = trace_B
    advantages_BT = select(advantages_BT, mask_BT)
    return GAEResult(advantages_BT, select(advantages_BT + live_values_BT, mask_BT))


def vapo_lambda(lengths_B: Int[Tensor, "B"] | Float[Tensor, "B"], alpha: float = 0.05) -> Float[Tensor, "B"]:
    """lam = 1 - 1 / (alpha l), alpha l floored at 1, so within [0, 1). VAPO 2504.05118, length-adaptive GAE.

    Lengths in tokens. Raises ValueError for alpha <= 0. Example: lengths [40, 10], alpha .05 -> [.5, 0].
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    lengths_B = lengths_B if lengths_B.is_floating_point() else lengths_B.double()
    return 1 - 1 / (alpha * lengths_B).clamp(min=1)


def decoupled_gae(
    rewards_BT: Float[Tensor, "B T"],
    values_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    gamma: float,
    lam_policy: float | Float[Tensor, "B"],
    lam_critic: float | Float[Tensor, "B"],
    terminated_B: Bool[Tensor, "B"],
    bootstrap_values_B: Float[Tensor, "B"] | None = None,
) -> GAEResult:
    """Advantages with `lam_policy`, returns with `lam_critic`, each one number or one per row. VAPO 2504.05118,
    decoupled GAE.

    Raises as `gae`. Example: r [0, 1], V [.2, .4], gamma 1, lam_policy 0, lam_critic 1 -> A [.2, .6], R [1,
    1].
    """
    common = (terminated_B, bootstrap_values_B)
    policy = gae(rewards_BT, values_BT, mask_BT, gamma, lam_policy, *common)
    critic = gae(rewards_BT, values_BT, mask_BT, gamma, lam_critic, *common)
    return GAEResult(policy.advantages_BT, critic.returns_BT)


def _bootstrap(
    mask_BT: Tensor,
    terminated_B: Tensor,
    bootstrap_B: Tensor | None,
    dones_BT: Tensor | None,
    like_BT: Tensor,
) -> Tensor:
    """The value after the last live token: 0 where the row ended, else the bootstrap, which must then be
    finite.
    """
    needed_B = ~terminated_B & mask_BT.any(-1)
    if dones_BT is not None and bool(needed_B.any()):
        last_B1 = last_live_index(mask_BT).clamp(min=0)[:, None]
        needed_B = needed_B & ~dones_BT.gather(-1, last_B1)[:, 0]
    zeros_B = like_BT.new_zeros(like_BT.shape[0])
    if not bool(needed_B.any()):
        return zeros_B
    if bootstrap_B is None:
        row = int(needed_B.nonzero()[0])
        raise ValueError(
            f"row {row} is truncated (not terminated), so it needs bootstrap_values: the value of the state "
            "after its last token. Mark the row terminated if the limit is part of the task."
        )
    bad_B = needed_B & ~torch.isfinite(bootstrap_B)
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise NonFiniteError("bootstrap_values", row, None, float(bootstrap_B[row]))
    return torch.where(needed_B, bootstrap_B.to(like_BT.dtype).detach(), zeros_B)
