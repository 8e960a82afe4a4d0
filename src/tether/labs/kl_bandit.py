"""Where does a tether lead? Both directions of the KL on four actions, closed forms against gradients.

Axis: A actions. Rewards without unit, beta in reward per nat, KL in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import (
    KLEstimator,
    forward_kl_optimum,
    grpo_loss,
    grpo_loss_ratio_corrected,
    ppo_surrogate,
    reverse_kl_optimum,
    shaped_rewards,
)

__all__ = ["run"]

REWARDS_A = torch.tensor([2.0, 5.0, 1.0, 3.0], dtype=torch.float64)
START_A = torch.tensor([0.5, 0.3, -0.2, 0.1], dtype=torch.float64)
BETAS = (0.25, 0.5, 1.0, 2.0, 5.0)
EPS, LEARNING_RATE, INNER_STEPS = 0.2, 0.1, 2

NOTES = (
    "KL(ref || pi) cannot afford to forget an action: its optimum beta ref / (lambda - R) has heavy tails. "
    "KL(pi || ref) tilts the reference by exp(R / beta) and gives up bad actions exponentially fast.",
    "The name of an estimator says nothing about where its gradient leads: k1 in the reward, k2 as a loss and k3 times the importance "
    "ratio reach the optimum of KL(pi || ref); plain k3 as a loss reaches that of KL(ref || pi).",
    "k1 as a loss tethers nothing: its expected gradient is 0 for every policy.",
    "Each gradient is exact (all four actions, weighted by the old policy) and divided by the old policy, the natural gradient of a "
    "table of logits, because a plain one crawls where an action has lost its probability. Two inner steps, clip 0.2. "
    "Stops when an outer step moves no probability by more than 1e-8; the optimum is not used.",
)


@dataclass(frozen=True)
class _Placement:
    """Where the tether acts, and the optimum that it leads to."""

    name: str
    label: str
    loss: Callable[[Tensor, Tensor, float], Tensor]
    optimum: Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class _Path:
    """A trained policy, its distance to the optimum, and the outer steps it took."""

    policy_A: Tensor
    error: float
    steps: int


def run(betas: tuple[float, ...] = BETAS, max_steps: int = 400) -> LabResult:
    """Closed-form optima of both directions for each beta, and exact-gradient PPO and GRPO that must reach them."""
    reference_A = START_A.softmax(-1)
    optima = {beta: (forward_kl_optimum(REWARDS_A, reference_A, beta), reverse_kl_optimum(REWARDS_A, reference_A, beta)) for beta in betas}
    expected = {beta: tuple(float(policy_A @ REWARDS_A) for policy_A in pair) for beta, pair in optima.items()}
    paths = {place.name: [_train(place, beta, max_steps) for beta in betas] for place in _PLACEMENTS}
    return LabResult(
        name="kl-bandit",
        question="Where do the two directions of the KL lead a policy, and which way of computing it leads to which?",
        tables=(
            _optima_table(expected),
            Table(
                "Exact gradients: largest |P - closed-form optimum|",
                ("tether", "optimum of", *(f"beta {beta:g}" for beta in betas)),
                tuple((p.label, _direction(p), *(path.error for path in paths[p.name])) for p in _PLACEMENTS),
                ("", "", *[".0e"] * len(betas)),
            ),
        ),
        panels=(_panel(expected),),
        notes=NOTES,
        figures={
            "beta": list(betas),
            "expected_forward": [expected[beta][0] for beta in betas],
            "expected_reverse": [expected[beta][1] for beta in betas],
            "error": {name: [path.error for path in line] for name, line in paths.items()},
            "outer_steps": {name: [path.steps for path in line] for name, line in paths.items()},
            "k1_loss_gradient": _largest_k1_gradient(),
        },
    )


def _train(place: _Placement, beta: float, max_steps: int) -> _Path:
    """Outer steps from the reference until nothing moves; each is ``INNER_STEPS`` steps on the same old policy."""
    logits_A, steps, moved = START_A.clone(), 0, 1.0
    while steps < max_steps and moved > 1e-8:
        old_A = logits_A.log_softmax(-1)
        for _ in range(INNER_STEPS):
            logits_A = logits_A - LEARNING_RATE * _gradient(place.loss, logits_A, old_A, beta) / old_A.exp()
        moved = float((logits_A.softmax(-1) - old_A.exp()).abs().max())
        steps += 1
    policy_A = logits_A.softmax(-1)
    return _Path(policy_A, float((policy_A - place.optimum(REWARDS_A, START_A.softmax(-1), beta)).abs().max()), steps)


def _gradient(loss: Callable[[Tensor, Tensor, float], Tensor], logits_A: Tensor, old_A: Tensor, beta: float) -> Tensor:
    """Exact: the four actions are four one-token answers, weighted by the probability that the old policy draws them."""
    leaf_A = logits_A.detach().requires_grad_()
    losses_A1 = loss(leaf_A.log_softmax(-1)[:, None], old_A[:, None], beta)
    return torch.autograd.grad((old_A.exp() * losses_A1[:, 0]).sum(), leaf_A)[0]


def _advantages(rewards_A1: Tensor, old_A1: Tensor) -> Tensor:
    """Reward minus its exact expectation under the old policy."""
    return rewards_A1 - (old_A1.exp() * rewards_A1).sum()


def _k1_in_reward(logprobs_A1: Tensor, old_A1: Tensor, beta: float) -> Tensor:
    mask_A1 = torch.ones_like(old_A1, dtype=torch.bool)
    rewards_A1 = shaped_rewards(REWARDS_A, old_A1, START_A.log_softmax(-1)[:, None], mask_A1, beta)
    return ppo_surrogate(logprobs_A1, old_A1, _advantages(rewards_A1, old_A1), mask_A1, EPS, EPS).losses_BT


def _as_loss(estimator: KLEstimator) -> Callable[[Tensor, Tensor, float], Tensor]:
    def loss(logprobs_A1: Tensor, old_A1: Tensor, beta: float) -> Tensor:
        ref_A1, advantages_A1 = START_A.log_softmax(-1)[:, None], _advantages(REWARDS_A[:, None], old_A1)
        mask_A1 = torch.ones_like(old_A1, dtype=torch.bool)
        return grpo_loss(logprobs_A1, old_A1, ref_A1, advantages_A1, mask_A1, EPS, EPS, beta, estimator).losses_BT

    return loss


def _k3_corrected(logprobs_A1: Tensor, old_A1: Tensor, beta: float) -> Tensor:
    ref_A1, advantages_A1 = START_A.log_softmax(-1)[:, None], _advantages(REWARDS_A[:, None], old_A1)
    mask_A1 = torch.ones_like(old_A1, dtype=torch.bool)
    return grpo_loss_ratio_corrected(logprobs_A1, old_A1, ref_A1, advantages_A1, mask_A1, EPS, EPS, beta).losses_BT


_PLACEMENTS = (
    _Placement("k1_reward", "k1 in the reward (PPO)", _k1_in_reward, reverse_kl_optimum),
    _Placement("k2_loss", "k2 as a loss", _as_loss(KLEstimator.K2), reverse_kl_optimum),
    _Placement("k3_corrected_loss", "ratio x k3 as a loss", _k3_corrected, reverse_kl_optimum),
    _Placement("k3_loss", "k3 as a loss (GRPO)", _as_loss(KLEstimator.K3), forward_kl_optimum),
)


def _direction(place: _Placement) -> str:
    return "KL(ref || pi)" if place.optimum is forward_kl_optimum else "KL(pi || ref)"


def _largest_k1_gradient() -> float:
    """Largest entry of the expected gradient that k1 as a loss adds, at a policy far from the reference."""
    far_A = START_A.flip(0) * 3
    old_A, loss = far_A.log_softmax(-1), _as_loss(KLEstimator.K1)
    return float((_gradient(loss, far_A, old_A, 1.0) - _gradient(loss, far_A, old_A, 0.0)).abs().max())


def _optima_table(expected: dict[float, tuple[float, ...]]) -> Table:
    return Table(
        f"Closed form: expected reward at the optimum (start {float(START_A.softmax(-1) @ REWARDS_A):.3f})",
        ("beta", "KL(ref || pi)", "KL(pi || ref)"),
        tuple((beta, *pair) for beta, pair in expected.items()),
        ("g", ".3f", ".3f"),
    )


def _panel(expected: dict[float, tuple[float, ...]]) -> Panel:
    betas = tuple(expected)
    curves = tuple(
        Curve(label, betas, tuple(pair[i] for pair in expected.values())) for i, label in enumerate(("KL(ref || pi)", "KL(pi || ref)"))
    )
    return Panel("Expected reward at the optimum", "beta (reward per nat)", "E[R]", curves, log_x=True)
