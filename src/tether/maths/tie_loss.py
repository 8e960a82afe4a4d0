"""Bradley-Terry with ties as losses. Axes: B pairs. `log_parameter` is learned or set: its exponential is positive for every value."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from .masked import full_precision
from .reward_loss import smoothed_labels


def rao_kupper_loss(
    gap_B: Float[Tensor, B], labels_B: Float[Tensor, B], log_eta: float | Float[Tensor, ""], label_smoothing: float = 0.0
) -> Float[Tensor, B]:
    """-log P of what was said, per pair; eta = exp(log_eta). Rao & Kupper 1967, as `rao_kupper` has it.

    log P(i) = logsigmoid(d - eta), log P(j) = logsigmoid(-d - eta), log P(tie) = log(e^(2 eta) - 1) + log P(i) + log P(j), d = s_i - s_j:
    no difference of near probabilities. A label of exactly .5 is a tie; any other mixes the two wins: -q log P(i) - (1 - q) log P(j),
    q smoothed as in `bt_loss`. Example: gap 0, eta log 2 -> 1.098612 for a win and for a tie.
    """
    gap_B, eta = full_precision(gap_B), _exponential(gap_B, log_eta)
    first_B, second_B = logsigmoid(gap_B - eta), logsigmoid(-gap_B - eta)
    tie_B = 2 * eta + torch.log(-torch.expm1(-2 * eta)) + first_B + second_B
    return _chosen(first_B, second_B, tie_B, labels_B, label_smoothing)


def davidson_loss(
    gap_B: Float[Tensor, B], labels_B: Float[Tensor, B], log_nu: float | Float[Tensor, ""], label_smoothing: float = 0.0
) -> Float[Tensor, B]:
    """-log P of what was said, per pair: log_softmax of [d / 2, -d / 2, log_nu]. Davidson 1970, as `davidson` has it.

    Labels as in `rao_kupper_loss`. Example: gap 0, nu 1 -> 1.098612 for a win and for a tie.
    """
    gap_B = full_precision(gap_B)
    log_nu_B = gap_B.new_zeros(gap_B.shape) + log_nu
    first_B, second_B, tie_B = torch.stack([gap_B / 2, -gap_B / 2, log_nu_B]).log_softmax(0)
    return _chosen(first_B, second_B, tie_B, labels_B, label_smoothing)


def _exponential(gap_B: Tensor, log_parameter: float | Tensor) -> Tensor:
    return (gap_B.new_zeros(()) + log_parameter).exp()


def _chosen(first_B: Tensor, second_B: Tensor, tie_B: Tensor, labels_B: Tensor, label_smoothing: float) -> Tensor:
    q_B = smoothed_labels(labels_B, label_smoothing, first_B)
    return -torch.where(labels_B == 0.5, tie_B, q_B * first_B + (1 - q_B) * second_B)
