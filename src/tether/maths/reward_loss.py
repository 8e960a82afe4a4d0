"""Reward model losses and metrics. Axes: B pairs, K ranked answers, F features. Scores are log-odds: without
unit.

Adding a constant per prompt to the scores changes nothing; their scale is identified unless the data are
separable.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from .masked import full_precision, require_finite


@dataclass(frozen=True)
class TieProbabilities:
    """P(i wins), P(j wins), P(tie); they sum to 1."""

    first: Float[Tensor, "*S"]
    second: Float[Tensor, "*S"]
    tie: Float[Tensor, "*S"]


@dataclass(frozen=True)
class PairMetrics:
    """Accuracy (a tie counts half), negative log-likelihood (nats), Brier score, calibration error, mean
    score margin.
    """

    accuracy: float
    nll: float
    brier: float
    ece: float
    mean_margin: float


def bt_loss(
    chosen_scores_B: Float[Tensor, "B"],
    rejected_scores_B: Float[Tensor, "B"],
    margin: float | Float[Tensor, "B"] = 0.0,
    center_coef: float = 0.0,
    label_smoothing: float = 0.0,
    labels: float | Float[Tensor, "B"] = 1.0,
) -> Float[Tensor, "B"]:
    """Per pair, z = s_c - s_r - m: q softplus(-z) + (1 - q) softplus(z) + c (s_c + s_r)^2, q = (1 - e) l + e (1 - l).
    Divide the sum by pairs.

    Bradley-Terry; margin m: Llama 2 eq. 2; centering c: Eisenstein et al. 2312.09244 eq. 2. Label l in [0, 1]: the
    probability that the chosen answer is the better one. Exact at |z| = 800. Raises NonFiniteError naming the row,
    ValueError for e outside [0, .5) or a label outside [0, 1]. Example: scores 1 and 0 -> .313262; label .75 -> .563262.
    """
    _require_rows("chosen_scores", chosen_scores_B)
    _require_rows("rejected_scores", rejected_scores_B)
    if isinstance(margin, Tensor):
        _require_rows("margin", margin)
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must lie in [0, .5), got {label_smoothing}")
    chosen_B, rejected_B = full_precision(chosen_scores_B), full_precision(rejected_scores_B)
    z_B = chosen_B - rejected_B - margin
    losses_B = softplus(-z_B)
    if isinstance(labels, Tensor) or labels != 1:
        q_B = smoothed_labels(labels, label_smoothing, z_B)
        losses_B = q_B * losses_B + (1 - q_B) * softplus(z_B)
    elif label_smoothing:
        losses_B = (1 - label_smoothing) * losses_B + label_smoothing * softplus(z_B)
    return losses_B + center_coef * (chosen_B + rejected_B).square() if center_coef else losses_B


def smoothed_labels(labels: float | Float[Tensor, "B"], label_smoothing: float, like_B: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    """q = (1 - e) l + e (1 - l), in the precision of `like_B`. Raises ValueError for labels outside [0, 1]. Example: l .9, e .1 -> .82."""
    labels_B = labels.to(like_B) if isinstance(labels, Tensor) else torch.full_like(like_B, labels)
    if not bool(((labels_B >= 0) & (labels_B <= 1)).all()):
        raise ValueError(f"labels must lie in [0, 1], got {labels_B.min():g} to {labels_B.max():g}")
    return (1 - label_smoothing) * labels_B + label_smoothing * (1 - labels_B)


def rao_kupper(
    first_scores: Float[Tensor, "*S"], second_scores: Float[Tensor, "*S"], eta: float
) -> TieProbabilities:
    """P(i) = sigma(s_i - s_j - eta), P(j) = sigma(s_j - s_i - eta), P(tie) the rest. Rao & Kupper 1967, eta =
    log theta.

    Raises ValueError for eta < 0. Example: equal scores, eta log 2 -> 1/3, 1/3, 1/3.
    """
    if eta < 0:
        raise ValueError(f"eta must not be negative, got {eta}")
    gap = full_precision(first_scores) - full_precision(second_scores)
    first, second = torch.sigmoid(gap - eta), torch.sigmoid(-gap - eta)
    # 1 - first = sigma(eta - gap), without its cancellation
    return TieProbabilities(first, second, torch.sigmoid(eta - gap) - second)


def davidson(
    first_scores: Float[Tensor, "*S"], second_scores: Float[Tensor, "*S"], nu: float
) -> TieProbabilities:
    """Weights exp(s_i), exp(s_j), nu exp((s_i + s_j) / 2), normalised. Davidson 1970.

    Raises ValueError for nu < 0. Example: equal scores, nu 1 -> 1/3, 1/3, 1/3.
    """
    if nu < 0:
        raise ValueError(f"nu must not be negative, got {nu}")
    first, second = full_precision(first_scores), full_precision(second_scores)
    log_nu = torch.full_like(first, nu).log()
    weights = torch.stack([first, second, log_nu + (first + second) / 2]).softmax(0)
    return TieProbabilities(weights[0], weights[1], weights[2])


def plackett_luce_nll(scores_K: Float[Tensor, "K"], ranking_K: Int[Tensor, "K"]) -> Float[Tensor, ""]:
    """sum_k logsumexp(s_k, s_k+1, ...) - s_k along `ranking`, indices best first. K = 2 is Bradley-Terry.
    Nats.

    Raises ValueError when `ranking` is not a permutation. Example: scores [0, 0, 0] -> log 6 = 1.791759.
    """
    _require_rows("scores", scores_K)
    if sorted(ranking_K.tolist()) != list(range(len(scores_K))):
        raise ValueError(f"ranking must be a permutation of 0..{len(scores_K) - 1}, got {ranking_K.tolist()}")
    ordered_K = full_precision(scores_K)[ranking_K]
    return (ordered_K.flip(0).logcumsumexp(0).flip(0) - ordered_K).sum()


def instructgpt_rm_loss(ranked_scores: list[Float[Tensor, "_"]]) -> Float[Tensor, ""]:
    """Mean over prompts of 1 / C(K, 2) sum over pairs softplus(-(s_w - s_l)). InstructGPT eq. 1.

    One tensor of scores per prompt, best answer first; every prompt weighs the same, whatever its K. Raises
    ValueError for a prompt with fewer than two answers, or none. Example: [[1, 0], [0, 0, 0]] -> (.313262 +
    .693147) / 2 = .503204.
    """
    return torch.stack([softplus(-gaps_N).mean() for gaps_N in _ranked_gaps(ranked_scores)]).mean()


def flattened_pair_loss(ranked_scores: list[Float[Tensor, "_"]]) -> Float[Tensor, ""]:
    """The mean over ALL pairs: prompts with more answers weigh more; kept for comparison (InstructGPT section
    3.5).

    Raises as `instructgpt_rm_loss`. Example: [[1, 0], [0, 0, 0]] -> (.313262 + 3 * .693147) / 4 = .598176.
    """
    return softplus(-torch.cat(_ranked_gaps(ranked_scores))).mean()


def linear_bt_fit(
    feature_difference_BF: Float[Tensor, "B F"],
    l2: float,
    max_steps: int = 100,
    labels: float | Float[Tensor, "B"] = 1.0,
) -> Float[Tensor, "F"]:
    """argmin_w mean softplus(-D w) + l2 / 2 |w|^2, by Newton's method with halved steps; D = chosen -
    rejected features.

    With labels l, the probability that the chosen side won: l softplus(-D w) + (1 - l) softplus(D w), which is logistic
    regression of l on D. A bias cancels in D: its gradient is 0. Raises ValueError for l2 <= 0 (on separable data w would diverge)
    and for data without a row or with NaN, RuntimeError when it does not converge. Example: one pair D [[1]],
    l2 .25 -> w = 1.042597, where sigma(-w) = .25 w.
    """
    if l2 <= 0 or not len(feature_difference_BF):
        raise ValueError(f"linear_bt_fit needs pairs and l2 > 0 (separable data), got l2 {l2}")
    require_finite("feature_difference", feature_difference_BF, torch.ones_like(feature_difference_BF).bool())
    d_BF = feature_difference_BF.detach().double()
    q_B = smoothed_labels(labels, 0.0, d_BF[:, 0])

    def objective(w_F: Tensor) -> Tensor:
        z_B = d_BF @ w_F
        return (q_B * softplus(-z_B) + (1 - q_B) * softplus(z_B)).mean() + l2 / 2 * w_F.square().sum()

    def gradient(w_F: Tensor) -> Tensor:
        z_B = d_BF @ w_F
        return l2 * w_F - ((q_B * torch.sigmoid(-z_B) - (1 - q_B) * torch.sigmoid(z_B)) @ d_BF) / len(d_BF)

    w_F = d_BF.new_zeros(d_BF.shape[1])
    ridge_FF = l2 * torch.eye(len(w_F), dtype=d_BF.dtype, device=d_BF.device)
    for _ in range(max_steps):
        if float(gradient(w_F).abs().max()) < 1e-13:
            break
        p_B = torch.sigmoid(-d_BF @ w_F)
        curvature_FF = (d_BF.T * (p_B * (1 - p_B))) @ d_BF / len(d_BF) + ridge_FF
        step_F = torch.linalg.solve(curvature_FF, gradient(w_F))
        size, here = 1.0, float(objective(w_F))
        while float(objective(w_F - size * step_F)) > here + 1e-15 and size > 1e-6:
            size /= 2
        w_F = w_F - size * step_F
    if float(gradient(w_F).abs().max()) > 1e-9 * max(1.0, float(d_BF.abs().max())):
        raise RuntimeError(f"linear_bt_fit did not converge in {max_steps} steps; scale the features")
    return w_F.to(feature_difference_BF.dtype)


def pair_metrics(
    chosen_scores_B: Float[Tensor, "B"],
    rejected_scores_B: Float[Tensor, "B"],
    bins: int = 10,
    labels: float | Float[Tensor, "B"] = 1.0,
) -> PairMetrics:
    """Metrics of pairs whose chosen side won, or won with the probability `labels`. ECE on the confidence max(p, 1 - p), `bins`
    equal bins over [.5, 1].

    p = sigma(s_c - s_r). The calibration error on p over [0, 1] would mean nothing: the label is always "chosen". Accuracy is
    against the side that the label favours, over pairs whose label is not .5 (NaN where there is none); the other figures are
    expectations under the label. Raises NonFiniteError naming the row, ValueError without pairs. Example: scores 0 and 0 ->
    accuracy .5, nll .693147, brier .25, ece 0.
    """
    _require_rows("chosen_scores", chosen_scores_B)
    _require_rows("rejected_scores", rejected_scores_B)
    if not len(chosen_scores_B):
        raise ValueError("pair metrics of no pairs")
    gap_B = chosen_scores_B.detach().double() - rejected_scores_B.detach().double()
    label_B = smoothed_labels(labels, 0.0, gap_B)
    p_B = torch.sigmoid(gap_B)
    decided_B, level_B = label_B != 0.5, gap_B == 0
    right_B = ((gap_B > 0) == (label_B > 0.5)).double()
    confidence_B = torch.maximum(p_B, 1 - p_B)
    bin_B = ((confidence_B - 0.5) * 2 * bins).long().clamp(max=bins - 1)
    won_B = torch.where(level_B, 0.5, torch.where(gap_B > 0, label_B, 1 - label_B))
    miss_N = p_B.new_zeros(bins).index_add(0, bin_B, won_B - confidence_B)
    return PairMetrics(
        accuracy=float(torch.where(level_B, 0.5, right_B)[decided_B].mean()),
        nll=float((label_B * softplus(-gap_B) + (1 - label_B) * softplus(gap_B)).mean()),
        brier=float((label_B * (1 - p_B).square() + (1 - label_B) * p_B.square()).mean()),
        ece=float(miss_N.abs().sum() / len(gap_B)),
        mean_margin=float(gap_B.mean()),
    )


def _ranked_gaps(ranked_scores: list[Tensor]) -> list[Tensor]:
    """s_better - s_worse of every pair, one tensor per prompt."""
    if not ranked_scores:
        raise ValueError("a loss over no prompts")
    gaps = []
    for prompt, scores_K in enumerate(ranked_scores):
        if len(scores_K) < 2:
            raise ValueError(f"prompt {prompt} has {len(scores_K)} ranked answers; a comparison needs two")
        _require_rows(f"ranked_scores of prompt {prompt}", scores_K)
        better_N, worse_N = torch.triu_indices(len(scores_K), len(scores_K), 1, device=scores_K.device)
        gaps.append(full_precision(scores_K)[better_N] - full_precision(scores_K)[worse_N])
    return gaps


def _require_rows(name: str, x_B: Tensor) -> None:
    require_finite(name, x_B, torch.ones_like(x_B, dtype=torch.bool))
