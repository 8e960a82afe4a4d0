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

from ._ratio import check_clip, clipped_objective, live_advantages, log_ratio
from .kl import KLEstimator, exceeds_exp_range, exp_within_range, kl_k3, kl_tokens
from .masked import full_precision, require_finite, select


@dataclass(frozen=True)
class Surrogate:
    """Per-token losses (attached, 0 at pads) and pi/old (detached, 0 at pads)."""

    losses_BT: Float[Tensor, "B T"]
    ratio_BT: Float[Tensor, "B T"]


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
    check_clip(eps_low, eps_high)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}")
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    advantages_BT = live_advantages(advantages_BT, mask_BT)
    ratio_BT = exp_within_range(log_ratio_BT)
    objective_BT = clipped_objective(ratio_BT, advantages_BT, eps_low, eps_high)
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
    weights_BT: Float[Tensor, "B T"] | None = None,
) -> PolicyStats:
    """Sums for monitoring a policy update, as Python floats; see PolicyStats. algorithms.md section 5.

    `weights_BT`: pi_old / pi_sampler at each token, where another policy than the old one drew them; approx_kl_*
    are means under the old policy and are weighted by it, the shares are of the tokens that are there.

    Raises NonFiniteError at a live NaN. Example: one token, log-ratio log 1.4, A 2, eps .2 -> k1 -.336472,
    k3 .063528, clip_high 1.
    """
    log_ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach()
    live_N = log_ratio_BT[mask_BT]
    advantages_N = live_advantages(advantages_BT, mask_BT)[mask_BT]
    ratio_N = exp_within_range(live_N)
    below_N, above_N = ratio_N < 1 - eps_low, ratio_N > 1 + eps_high
    low_N, high_N = below_N & (advantages_N < 0), above_N & (advantages_N > 0)
    sums = {
        "approx_kl_k1": -live_N,
        "approx_kl_k2": live_N.square() / 2,
        "approx_kl_k3": kl_k3(torch.zeros_like(live_N), live_N),
        "clip_any": below_N | above_N,
        "clip_low": low_N,
        "clip_high": high_N,
        "clip_beneficial": low_N | high_N,
        "dual_clip": (advantages_N < 0) & (ratio_N > (math.inf if dual_clip is None else dual_clip)),
        "overflow": exceeds_exp_range(live_N),
        "ratio_sum": ratio_N,
        "ratio_sq_sum": ratio_N.double().square(),
    }
    if weights_BT is not None:
        sums |= {name: weights_BT[mask_BT] * x_N for name, x_N in sums.items() if name.startswith("approx_kl")}
    totals = torch.stack([x_N.double().sum() for x_N in sums.values()]).tolist()  # one transfer
    ratio_min, ratio_max = (
        (float(ratio_N.min()), float(ratio_N.max())) if len(live_N) else (math.inf, -math.inf)
    )
    named = dict(zip(sums, totals, strict=True))
    return PolicyStats(count=float(len(live_N)), ratio_min=ratio_min, ratio_max=ratio_max, **named)


def entropy_bonus(
    entropy_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], coef: float
) -> Float[Tensor, "B T"]:
    """Per-token loss -coef H_t, 0 at pads; H in nats, attached, from `token_entropy`. algorithms.md section
    5.

    Raises NonFiniteError at a live NaN. Example: H [[.5, nan]] under [[1, 0]], coef .1 -> [[-.05, 0]].
    """
    require_finite("entropy", entropy_BT, mask_BT)
    return select(-coef * full_precision(select(entropy_BT, mask_BT)), mask_BT)


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
    check_clip(0.0 if eps_low is None else eps_low, eps_high)
    advantages_BT = live_advantages(advantages_BT, mask_BT)
    ratio_BT = exp_within_range(log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach())
    weights_BT = ratio_BT.clamp(min=None if eps_low is None else 1 - eps_low, max=1 + eps_high)
    weights_BT = select(weights_BT, mask_BT)
    losses_BT = -weights_BT * advantages_BT * full_precision(select(logprobs_BT, mask_BT))
    return WeightedSurrogate(select(losses_BT, mask_BT), weights_BT)


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
    log pi -1, log ref -.5, beta .1 -> 1.4 * .0148721 = .0208210.
    """
    surrogate = ppo_surrogate(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, eps_low, eps_high)
    kl_BT = ratio_corrected_kl(logprobs_BT, old_logprobs_BT, ref_logprobs_BT, mask_BT, estimator)
    return TetheredSurrogate(surrogate.losses_BT + beta * kl_BT, surrogate.ratio_BT, kl_BT.detach())


def ratio_corrected_kl(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    estimator: KLEstimator = KLEstimator.K3,
) -> Float[Tensor, "B T"]:
    """r_t kl_t with r = exp(logprobs - old_logprobs) differentiable, nats, 0 at pads. 2512.02556.

    With k3 its expected gradient under old samples is that of KL(pi || ref). Raises NonFiniteError at a live
    NaN. Example: r 1.4, log pi -1, log ref -.5 -> 1.4 * .148721 = .208210.
    """
    ratio_BT = exp_within_range(log_ratio(logprobs_BT, old_logprobs_BT, mask_BT))
    return select(ratio_BT * kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, estimator), mask_BT)
