"""Direct preference losses, one per pair, minimised. Axis: B pairs (or rows).

`chosen_*`, `rejected_*` are SUMS of completion-token log-probabilities in nats; lengths in tokens. h =
(chosen - ref_chosen) - (rejected - ref_rejected). algorithms.md section 9. softplus everywhere: exact at any
size. Every loss raises NonFiniteError naming the row of a NaN.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from .masked import full_precision, require_finite


class PreferenceKind(StrEnum):
    """Losses of `preference_loss`, each also a function of its own."""

    DPO = "dpo"
    CDPO = "cdpo"
    ROBUST = "robust"
    HINGE = "hinge"
    IPO = "ipo"
    IPO_AVG = "ipo_avg"
    SIMPO = "simpo"
    ORPO = "orpo"


@dataclass(frozen=True)
class PreferencePairs:
    """Log-probability sums of B pairs under policy and reference. The reference is data: detached where
    used.
    """

    chosen_logprobs_B: Float[Tensor, "B"]
    rejected_logprobs_B: Float[Tensor, "B"]
    ref_chosen_logprobs_B: Float[Tensor, "B"]
    ref_rejected_logprobs_B: Float[Tensor, "B"]
    chosen_lengths_B: Float[Tensor, "B"]
    rejected_lengths_B: Float[Tensor, "B"]


@dataclass(frozen=True)
class ImplicitRewards:
    """beta (log pi - log ref) of each side, detached, and accuracy: the share of pairs ranked right, a tie
    counting half.
    """

    chosen_B: Float[Tensor, "B"]
    rejected_B: Float[Tensor, "B"]
    accuracy: float


@dataclass(frozen=True)
class KTOLoss:
    """Loss of each row, and the detached reference point z0 >= 0, nats."""

    losses_B: Float[Tensor, "B"]
    z0: Float[Tensor, ""]


def preference_loss(
    pairs: PreferencePairs,
    kind: PreferenceKind,
    beta: float,
    label_smoothing: float = 0.0,
    gamma: float = 0.0,
) -> Float[Tensor, "B"]:
    """Per-pair loss of one kind. `label_smoothing` serves cdpo and robust, `gamma` simpo; elsewhere non-zero
    raises.

    Raises ValueError then, and for beta <= 0. Example: h 2, beta .1, dpo -> softplus(-.2) = .598139.
    """
    kind = PreferenceKind(kind)
    if beta <= 0:
        raise ValueError(f"beta must be positive, got {beta}")
    if label_smoothing and kind not in (PreferenceKind.CDPO, PreferenceKind.ROBUST):
        raise ValueError(f"{kind} has no label_smoothing (got {label_smoothing}); use cdpo or robust")
    if gamma and kind != PreferenceKind.SIMPO:
        raise ValueError(f"{kind} has no margin gamma (got {gamma}); it belongs to simpo")
    match kind:
        case PreferenceKind.DPO:
            return dpo_loss(log_ratio_margin(pairs), beta)
        case PreferenceKind.CDPO:
            return dpo_loss(log_ratio_margin(pairs), beta, label_smoothing)
        case PreferenceKind.ROBUST:
            return robust_dpo_loss(log_ratio_margin(pairs), beta, label_smoothing)
        case PreferenceKind.HINGE:
            return torch.relu(1 - beta * log_ratio_margin(pairs))
        case PreferenceKind.IPO:
            return ipo_loss(log_ratio_margin(pairs), beta)
        case PreferenceKind.IPO_AVG:
            return ipo_loss(mean_log_ratio_margin(pairs), beta)
        case PreferenceKind.SIMPO:
            return simpo_loss(pairs, beta, gamma)
        case _:  # ORPO
            return orpo_loss(pairs, beta)


def log_ratio_margin(pairs: PreferencePairs) -> Float[Tensor, "B"]:
    """h = (chosen - ref_chosen) - (rejected - ref_rejected), sums, nats. Example: (-1 + 2) - (-3 + 2) = 2."""
    chosen_B, rejected_B = _log_ratios(pairs)
    return chosen_B - rejected_B


def mean_log_ratio_margin(pairs: PreferencePairs) -> Float[Tensor, "B"]:
    """h with each side's log-ratio divided by its length (the IPO authors' choice). Raises ValueError for
    length < 1.

    Example: log-ratios 2 over 4 tokens and -1 over 2 -> .5 + .5 = 1.
    """
    chosen_B, rejected_B = _log_ratios(pairs)
    chosen_lengths_B, rejected_lengths_B = _lengths(pairs)
    return chosen_B / chosen_lengths_B - rejected_B / rejected_lengths_B


def dpo_loss(margin_B: Float[Tensor, "B"], beta: float, label_smoothing: float = 0.0) -> Float[Tensor, "B"]:
    """(1 - e) softplus(-beta h) + e softplus(beta h); e = 0 is DPO 2305.18290 eq. 7, else cDPO.

    Raises ValueError for e outside [0, .5). Example: h 2, beta .1 -> .598139; with e .1: .618139.
    """
    _check_smoothing(label_smoothing)
    _require_rows("margin", margin_B)
    z_B = beta * margin_B
    plain_B = softplus(-z_B)
    return (
        plain_B if label_smoothing == 0 else (1 - label_smoothing) * plain_B + label_smoothing * softplus(z_B)
    )


def robust_dpo_loss(margin_B: Float[Tensor, "B"], beta: float, label_smoothing: float) -> Float[Tensor, "B"]:
    """((1 - e) softplus(-beta h) - e softplus(beta h)) / (1 - 2 e): unbiased under label noise e; may be
    negative.

    Chowdhury et al. 2403.00409. Raises ValueError for e outside [0, .5). Example: h 2, beta .1, e .1 ->
    .573139.
    """
    _check_smoothing(label_smoothing)
    _require_rows("margin", margin_B)
    z_B = beta * margin_B
    return ((1 - label_smoothing) * softplus(-z_B) - label_smoothing * softplus(z_B)) / (
        1 - 2 * label_smoothing
    )


def ipo_loss(margin_B: Float[Tensor, "B"], beta: float) -> Float[Tensor, "B"]:
    """(h - 1 / (2 beta))^2. Azar et al. 2310.12036 eq. 17; sums or means by the margin given. Example: h 2,
    beta .1 -> 9.
    """
    _require_rows("margin", margin_B)
    return (margin_B - 1 / (2 * beta)).square()


def simpo_loss(pairs: PreferencePairs, beta: float, gamma: float) -> Float[Tensor, "B"]:
    """softplus(-(beta (avg_c - avg_r) - gamma)), avg = log-probability per token; no reference. Meng et al.
    2405.14734.

    Raises ValueError for length < 1. Example: averages -1 and -1.5, beta 2, gamma .5 -> softplus(-.5) =
    .474077.
    """
    chosen_B, rejected_B = _averages(pairs)
    return softplus(-(beta * (chosen_B - rejected_B) - gamma))


def orpo_loss(pairs: PreferencePairs, beta: float) -> Float[Tensor, "B"]:
    """-avg_c + beta softplus(-(log odds(avg_c) - log odds(avg_r))), log odds(a) = a - log(1 - exp a). Hong
    2403.07691.

    The log-likelihood is over the completion alone. Raises ValueError for length < 1 or an average not below
    0. Example: both averages log .5, beta .1 -> .693147 + .1 * .693147 = .762462.
    """
    chosen_B, rejected_B = _averages(pairs)
    if not bool(((chosen_B < 0) & (rejected_B < 0)).all()):
        raise ValueError(
            "orpo needs average log-probabilities below 0: the odds of a certain answer are infinite"
        )
    log_odds_ratio_B = (chosen_B - _log1mexp(chosen_B)) - (rejected_B - _log1mexp(rejected_B))
    return -chosen_B + beta * softplus(-log_odds_ratio_B)


def kto_loss(
    log_ratios_B: Float[Tensor, "B"],
    desirable_B: Bool[Tensor, "B"],
    mismatched_log_ratios_N: Float[Tensor, "N"],
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> KTOLoss:
    """w (1 - sigma(+-beta (log ratio - z0))), + for desirable; z0 = max(0, mean mismatched log-ratio),
    detached.

    Ethayarajh et al. 2402.01306 eq. 7; log-ratio = sum(log pi - log ref), mismatched: answers of other
    prompts, so a batch needs two rows. Raises ValueError when there is none. Example: log-ratio 1, desirable,
    z0 0, beta .1 -> 1 - sigma(.1) = .475021.
    """
    _require_rows("log_ratios", log_ratios_B)
    _require_rows("mismatched_log_ratios", mismatched_log_ratios_N)
    if not len(mismatched_log_ratios_N):
        raise ValueError("kto needs mismatched answers for its reference point: use a batch of two or more")
    z0 = full_precision(mismatched_log_ratios_N).detach().mean().clamp(min=0)
    margin_B = beta * (full_precision(log_ratios_B) - z0)
    signed_B = torch.where(desirable_B, margin_B, -margin_B)
    weights_B = torch.where(
        desirable_B, torch.full_like(z0, desirable_weight), torch.full_like(z0, undesirable_weight)
    )
    return KTOLoss(weights_B * torch.sigmoid(-signed_B), z0)


def kto_weights(
    num_desirable: int, num_undesirable: int, low: float = 1.0, high: float = 4 / 3
) -> tuple[float, float]:
    """The undesirable weight range (for desirable weight 1) that keeps w_d n_d / (w_u n_u) in [low, high].
    KTO eq. 8.

    Raises ValueError for counts below 1. Example: 30 desirable, 10 undesirable -> (2.25, 3).
    """
    if num_desirable < 1 or num_undesirable < 1:
        raise ValueError(f"kto needs both kinds of rows, got {num_desirable} and {num_undesirable}")
    return num_desirable / (high * num_undesirable), num_desirable / (low * num_undesirable)


def implicit_rewards(pairs: PreferencePairs, beta: float) -> ImplicitRewards:
    """beta (log pi - log ref) of each side, detached, and the accuracy. DPO 2305.18290 section 4.

    Watch the chosen side: it may fall while the margin rises. Example: log-ratios 1 and -1, beta .1 -> .1,
    -.1, 1.
    """
    chosen_B, rejected_B = (beta * x_B.detach() for x_B in _log_ratios(pairs))
    if not len(chosen_B):
        raise ValueError("implicit rewards of no pairs")
    wins_B = (chosen_B > rejected_B).double() + 0.5 * (chosen_B == rejected_B).double()
    return ImplicitRewards(chosen_B, rejected_B, float(wins_B.mean()))


def _log_ratios(pairs: PreferencePairs) -> tuple[Tensor, Tensor]:
    for name in (
        "chosen_logprobs_B",
        "rejected_logprobs_B",
        "ref_chosen_logprobs_B",
        "ref_rejected_logprobs_B",
    ):
        _require_rows(name.removesuffix("_B"), pairs.__dict__[name])
    chosen_B = full_precision(pairs.chosen_logprobs_B) - full_precision(pairs.ref_chosen_logprobs_B).detach()
    rejected_B = (
        full_precision(pairs.rejected_logprobs_B) - full_precision(pairs.ref_rejected_logprobs_B).detach()
    )
    return chosen_B, rejected_B


def _averages(pairs: PreferencePairs) -> tuple[Tensor, Tensor]:
    _require_rows("chosen_logprobs", pairs.chosen_logprobs_B)
    _require_rows("rejected_logprobs", pairs.rejected_logprobs_B)
    chosen_lengths_B, rejected_lengths_B = _lengths(pairs)
    chosen_B, rejected_B = full_precision(pairs.chosen_logprobs_B), full_precision(pairs.rejected_logprobs_B)
    return chosen_B / chosen_lengths_B, rejected_B / rejected_lengths_B


def _lengths(pairs: PreferencePairs) -> tuple[Tensor, Tensor]:
    if not bool(((pairs.chosen_lengths_B >= 1) & (pairs.rejected_lengths_B >= 1)).all()):
        raise ValueError("an average log-probability needs at least one completion token on each side")
    return pairs.chosen_lengths_B, pairs.rejected_lengths_B


def _log1mexp(x_B: Tensor) -> Tensor:
    """log(1 - exp x) for x < 0, exact at both ends (Maechler 2012)."""
    near_B = x_B > -0.6931471805599453
    near_zero_B = torch.log(-torch.expm1(torch.where(near_B, x_B, -1.0)))
    far_B = torch.log1p(-torch.exp(torch.where(near_B, -1.0, x_B)))
    return torch.where(near_B, near_zero_B, far_B)


def _require_rows(name: str, x_B: Tensor) -> None:
    require_finite(name, x_B, torch.ones_like(x_B, dtype=torch.bool))


def _check_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must lie in [0, .5), got {label_smoothing}")
