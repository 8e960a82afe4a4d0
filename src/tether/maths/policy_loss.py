"""Policy surrogates, minimised. Axes: B sequences, T tokens.

Each returns per-token losses (0 at pads), not a mean: the caller sums them by `aggregate_sum` and divides by
one `aggregate_count` of the whole optimiser step. Advantages and old log-probabilities are data: detached
here.
"""

import math
from dataclasses import asdict, dataclass, fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .kl import KLEstimator, exceeds_exp_range, exp_within_range, kl_k3, kl_tokens
from .masked import full_precision, require_finite, select
from .returns import broadcast_to_tokens


@dataclass(frozen=True)
class Surrogate:
    """Per-token losses (attached, 0 at pads) and pi/old (detached, 0 at pads)."""

    losses_BT: Float[Tensor, "B T"]
    ratio_BT: Float[Tensor, "B T"]


@dataclass(frozen=True)
class SequenceSurrogate:
    """As Surrogate, with one coefficient per row: the loss of a row stands at each of its live tokens, so
    that `seq_mean_token_mean` is the mean over rows. `clipped_B`: the gradient of the row is cut.
    """

    losses_BT: Float[Tensor, "B T"]
    ratio_B: Float[Tensor, "B"]
    clipped_B: Bool[Tensor, "B"]


@dataclass(frozen=True)
class WeightedSurrogate:
    """As Surrogate, with the detached weight that multiplies log pi."""

    losses_BT: Float[Tensor, "B T"]
    weights_BT: Float[Tensor, "B T"]


@dataclass(frozen=True)
class TetheredSurrogate:
    """Surrogate plus beta times the per-token KL; `kl_BT` (nats, detached) is the term without beta."""

    losses_BT: Float[Tensor, "B T"]
    ratio_BT: Float[Tensor, "B T"]
    kl_BT: Float[Tensor, "B T"]


@dataclass(frozen=True)
class PolicyMeans:
    """PolicyStats divided by its count: shares in [0, 1], KLs in nats per token, ratios without unit."""

    approx_kl_k1: float
    approx_kl_k2: float
    approx_kl_k3: float
    clip_any: float
    clip_low: float
    clip_high: float
    clip_beneficial: float
    dual_clip: float
    overflow: float
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    ess_token: float


@dataclass(frozen=True)
class PolicyStats:
    """SUMS over `count` live tokens (and the extremes of the ratio): add them over microbatches, then take
    `means()`.

    approx_kl_*: KL(old || new) in nats. clip_any: ratio outside [1 - eps_low, 1 + eps_high]; clip_low and
    clip_high: outside on the side where the advantage makes the clip cut the gradient; clip_beneficial: both.
    dual_clip: negative advantage and ratio above the dual bound. overflow: log-ratios clamped before exp.
    Example: ratios 1.4 (A 2) and 1 (A 2) at eps .2: count 2, clip_high 1, ratio_sum 2.4.
    """

    count: float
    approx_kl_k1: float
    approx_kl_k2: float
    approx_kl_k3: float
    clip_any: float
    clip_low: float
    clip_high: float
    clip_beneficial: float
    dual_clip: float
    overflow: float
    ratio_sum: float
    ratio_sq_sum: float
    ratio_min: float
    ratio_max: float

    def __add__(self, other: "PolicyStats") -> "PolicyStats":
        mine, theirs = asdict(self), asdict(other)
        sums = {name: mine[name] + theirs[name] for name in mine}
        low, high = min(self.ratio_min, other.ratio_min), max(self.ratio_max, other.ratio_max)
        return PolicyStats(**{**sums, "ratio_min": low, "ratio_max": high})

    def means(self) -> PolicyMeans:
        """Means over the live tokens; NaN when there was none. ess_token = (sum r)^2 / (n sum r^2)."""
        if self.count == 0:
            return PolicyMeans(*[math.nan] * len(fields(PolicyMeans)))
        n = self.count
        return PolicyMeans(
            self.approx_kl_k1 / n, self.approx_kl_k2 / n, self.approx_kl_k3 / n,
            self.clip_any / n, self.clip_low / n, self.clip_high / n, self.clip_beneficial / n,
            self.dual_clip / n, self.overflow / n,
            self.ratio_sum / n, self.ratio_min, self.ratio_max,
            self.ratio_sum**2 / (n * self.ratio_sq_sum) if self.ratio_sq_sum else math.nan,
        )  # fmt: skip


def ppo_surrogate(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
) -> Surrogate:
    """L_t = -min(r A, clip(r, 1 - eps_low, 1 + eps_high) A), r = exp(logprobs - old_logprobs). PPO 1707.06347
    eq. 7.

    Gradient -r A grad log pi, and 0 iff A > 0 and r > 1 + eps_high, or A < 0 and r < 1 - eps_low (strictly).
    With `dual_clip` c > 1 (1912.09729), for A < 0 the objective is at least c A: gradient 0 iff r > c. eps
    may be infinite: the plain policy gradient. Raises NonFiniteError at a live NaN, ValueError for eps < 0 or
    c <= 1. Example: r 1.4, A 2, eps .2 -> loss -2.4, gradient 0; A -2 -> loss 2.8, gradient 2.8.
    """
    _check_clip(eps_low, eps_high)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}")
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    advantages_BT = _advantages(advantages_BT, mask_BT)
    ratio_BT = exp_within_range(log_ratio_BT)
    objective_BT = _clipped(ratio_BT, advantages_BT, eps_low, eps_high)
    if dual_clip is not None:
        cut_BT = (advantages_BT < 0) & (ratio_BT > dual_clip)
        objective_BT = torch.where(cut_BT, dual_clip * advantages_BT, objective_BT)
    return Surrogate(select(-objective_BT, mask_BT), select(ratio_BT, mask_BT).detach())


def policy_stats(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
) -> PolicyStats:
    """Sums for monitoring a policy update, as Python floats; see PolicyStats. algorithms.md section 5.

    Raises NonFiniteError at a live NaN. Example: one token, log-ratio log 1.4, A 2, eps .2 -> k1 -.336472,
    k3 .063528, clip_high 1.
    """
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach()
    live_N = log_ratio_BT[mask_BT]
    advantages_N = _advantages(advantages_BT, mask_BT)[mask_BT]
    ratio_N = exp_within_range(live_N)
    below_N, above_N = ratio_N < 1 - eps_low, ratio_N > 1 + eps_high
    low_N, high_N = below_N & (advantages_N < 0), above_N & (advantages_N > 0)
    dual_N = (advantages_N < 0) & (ratio_N > (math.inf if dual_clip is None else dual_clip))
    sums = [
        -live_N, live_N.square() / 2, kl_k3(torch.zeros_like(live_N), live_N),
        below_N | above_N, low_N, high_N, low_N | high_N, dual_N, exceeds_exp_range(live_N),
        ratio_N, ratio_N.square(),
    ]  # fmt: skip
    totals = torch.stack([x.double().sum() for x in sums]).tolist()
    empty = not len(live_N)
    ratio_min = math.inf if empty else float(ratio_N.min())
    ratio_max = -math.inf if empty else float(ratio_N.max())
    return PolicyStats(float(len(live_N)), *totals, ratio_min, ratio_max)


def entropy_bonus(
    entropy_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], coef: float
) -> Float[Tensor, "B T"]:
    """Per-token loss -coef H_t, 0 at pads; H in nats, attached, from `token_entropy`. algorithms.md section
    5.

    Raises NonFiniteError at a live NaN. Example: H [[.5, nan]] under [[1, 0]], coef .1 -> [[-.05, 0]].
    """
    require_finite("entropy", entropy_BT, mask_BT)
    return select(-coef * full_precision(select(entropy_BT, mask_BT)), mask_BT)


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
    _check_clip(eps_low, eps_high)
    advantages_B = _row_advantages(advantages_B, mask_BT)
    ratio_B = _sequence_ratio(_log_ratio(logprobs_BT, old_logprobs_BT, mask_BT), mask_BT)
    losses_B = -_clipped(ratio_B, advantages_B, eps_low, eps_high)
    clipped_B = _gradient_cut(ratio_B, advantages_B, eps_low, eps_high) & mask_BT.any(-1)
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
    _check_clip(eps_low, eps_high)
    advantages_BT = _advantages(advantages_BT, mask_BT)
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    sequence_BT = _sequence_ratio(log_ratio_BT.detach(), mask_BT)[:, None]
    ratio_BT = sequence_BT * torch.exp(log_ratio_BT - log_ratio_BT.detach())
    losses_BT = select(-_clipped(ratio_BT, advantages_BT, eps_low, eps_high), mask_BT)
    return Surrogate(losses_BT, select(ratio_BT, mask_BT).detach())


def cispo(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    eps_high: float = 0.28,
    eps_low: float | None = None,
) -> WeightedSurrogate:
    """L_t = -sg[clip(r, 1 - eps_low, 1 + eps_high)] A log pi. CISPO 2506.13585 eq. 4-5; no lower bound by
    default.

    No token loses its gradient. eps_high is relative to 1 (TRL's is the absolute cap). Raises as
    `ppo_surrogate`. Example: r 1.4, eps_high .28, A 1, log pi -1 -> weight 1.28, loss 1.28.
    """
    _check_clip(0.0 if eps_low is None else eps_low, eps_high)
    advantages_BT = _advantages(advantages_BT, mask_BT)
    ratio_BT = exp_within_range(_log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach())
    weights_BT = ratio_BT.clamp(min=None if eps_low is None else 1 - eps_low, max=1 + eps_high)
    weights_BT = select(weights_BT, mask_BT)
    losses_BT = -weights_BT * advantages_BT * full_precision(select(logprobs_BT, mask_BT))
    return WeightedSurrogate(select(losses_BT, mask_BT), weights_BT)


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
    _check_clip(log_eps_low, log_eps_high)
    advantages_B = _row_advantages(advantages_B, mask_BT)
    log_ratio_BT = _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    sign_B1 = torch.sign(advantages_B)[:, None]
    high_BT = (sign_B1 > 0) & (log_ratio_BT > log_eps_high)
    low_BT = (sign_B1 < 0) & (log_ratio_BT < -log_eps_low)
    clipped_BT = torch.where(high_BT, log_eps_high, torch.where(low_BT, -log_eps_low, log_ratio_BT))
    coef_B = _sequence_ratio(clipped_BT, mask_BT)
    all_cut_B = ((high_BT | low_BT) | ~mask_BT).all(-1) & mask_BT.any(-1)
    return SequenceSurrogate(broadcast_to_tokens(-coef_B * advantages_B, mask_BT), coef_B.detach(), all_cut_B)


def grpo_loss(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    beta: float = 0.04,
    estimator: KLEstimator = KLEstimator.K3,
) -> TetheredSurrogate:
    """L_t = ppo_surrogate_t + beta kl_t. DeepSeekMath 2402.03300 eq. 3-4 (k3, aggregated by
    `seq_mean_token_mean`).

    k3 as a loss follows KL(ref || pi), and off policy neither; see `grpo_loss_ratio_corrected` and k2. Raises
    as `ppo_surrogate`. Example: r 1, A 0, log pi -1, log ref -.5, beta .1 -> loss +.0148721.
    """
    surrogate = ppo_surrogate(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, eps_low, eps_high)
    kl_BT = kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, estimator)
    return TetheredSurrogate(surrogate.losses_BT + beta * kl_BT, surrogate.ratio_BT, kl_BT.detach())


def grpo_loss_ratio_corrected(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    beta: float = 0.04,
    estimator: KLEstimator = KLEstimator.K3,
) -> TetheredSurrogate:
    """`grpo_loss` with r_t kl_t, r differentiable: with k3 the gradient of KL(pi || ref), off policy too.

    DeepSeek-V3.2 2512.02556; TRL `use_bias_correction_kl`. Raises as `ppo_surrogate`. Example: r 1.4, A 0,
    log pi -1, log ref -.5, beta .1 -> 1.4 * .0148721 = .0208209.
    """
    surrogate = ppo_surrogate(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, eps_low, eps_high)
    ratio_BT = exp_within_range(_log_ratio(logprobs_BT, old_logprobs_BT, mask_BT))
    kl_BT = select(ratio_BT * kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, estimator), mask_BT)
    return TetheredSurrogate(surrogate.losses_BT + beta * kl_BT, surrogate.ratio_BT, kl_BT.detach())


def _log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """logprobs - old_logprobs in full precision, 0 at pads; the old side detached; both checked."""
    require_finite("logprobs", logprobs_BT, mask_BT)
    require_finite("old_logprobs", old_logprobs_BT, mask_BT)
    old_BT = select(old_logprobs_BT, mask_BT).detach()
    return full_precision(select(logprobs_BT, mask_BT)) - full_precision(old_BT)


def _advantages(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    require_finite("advantages", advantages_BT, mask_BT)
    return full_precision(select(advantages_BT, mask_BT)).detach()


def _row_advantages(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    return _advantages(advantages_B, mask_BT.any(-1))


def _gradient_cut(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    return ((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))


def _clipped(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    """min(r A, clip(r) A), written as a choice so that a tie keeps the whole gradient."""
    bound = torch.where(
        advantages > 0, torch.full_like(ratio, 1 + eps_high), torch.full_like(ratio, 1 - eps_low)
    )
    return torch.where(
        _gradient_cut(ratio, advantages, eps_low, eps_high), bound * advantages, ratio * advantages
    )


def _sequence_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return exp_within_range(select(log_ratio_BT, mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1))


def _check_clip(eps_low: float, eps_high: float) -> None:
    if eps_low < 0 or eps_high < 0:
        raise ValueError(f"clip widths must not be negative, got {eps_low} and {eps_high}")
