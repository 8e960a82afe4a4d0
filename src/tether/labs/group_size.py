"""How large must a group be when it is its own baseline? Axes: S seeds (one policy each), G draws, A actions, M possible groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tether.labs._tabular import group_gradient, group_ids, pick_actions, streams
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import EpsMode, StdKind, grpo_advantages, rloo_advantages

__all__ = ["run"]

REWARDS_A = torch.tensor([2.0, 5.0, 1.0, 3.0], dtype=torch.float64)
START_A = torch.tensor([0.5, 0.3, -0.2, 0.1], dtype=torch.float64)
BETA, LEARNING_RATE = 0.1, 0.3

NOTES = (
    "Rewards 2 5 1 3 plus uniform noise of width 1, as in grpo-bandit, but with the gradient of the loss: ratio 1 (the policy that "
    "sampled), k2 as a loss (the gradient of KL(pi || ref)), advantages (r - mean) / sqrt(variance + 1e-8).",
    "The error of the group mean is sd(reward) / sqrt(G): the baseline is as noisy as the group is small, and so is the result.",
    "The mean that includes the answer itself shrinks the gradient to (G - 1) / G of the true one, in the right direction; "
    "leaving the answer out of its own baseline repairs it exactly. Both are enumerated over every possible group, not sampled.",
)


@dataclass(frozen=True)
class _Training:
    """Expected reward of every seed after each step, and root mean square of (group mean - exact expectation) over all groups."""

    expected_TS: Tensor
    rms_gap: float


def run(group_sizes: tuple[int, ...] = (2, 6, 32), seeds: int = 400, steps: int = 20, seed: int = 0) -> LabResult:
    """GRPO on four noisy actions for each group size, and the exact expected gradient of two baselines."""
    trained = {size: _train(size, seeds, steps, seed) for size in group_sizes}
    final = {size: training.expected_TS[-1] for size, training in trained.items()}
    exact = {size: _gradient_shares(size) for size in (2, 3, 6)}
    return LabResult(
        name="group-size",
        question="How does the size of the group change what GRPO learns?",
        tables=(
            Table(
                f"After {steps} steps, {seeds} seeds",
                ("G", "E[R]", "sd over seeds", "rms of group mean - exact"),
                tuple((size, float(final[size].mean()), float(final[size].std()), trained[size].rms_gap) for size in group_sizes),
                ("d", ".2f", ".2f", ".2f"),
            ),
            Table(
                "Expected gradient as a multiple of the true one (every group enumerated)",
                ("G", "mean of the group", "(G-1)/G", "mean of the others"),
                tuple((size, mean, (size - 1) / size, others) for size, (mean, others) in exact.items()),
                ("d", ".6f", ".6f", ".6f"),
            ),
        ),
        panels=(_panel(trained, steps),),
        notes=NOTES,
        figures={
            "group_size": list(group_sizes),
            "expected_reward": [float(final[size].mean()) for size in group_sizes],
            "expected_reward_sd": [float(final[size].std()) for size in group_sizes],
            "rms_gap": [trained[size].rms_gap for size in group_sizes],
            "gradient_share_mean_baseline": {str(size): mean for size, (mean, _) in exact.items()},
            "gradient_share_leave_one_out": {str(size): others for size, (_, others) in exact.items()},
        },
    )


def _train(group_size: int, seeds: int, steps: int, seed: int) -> _Training:
    uniforms_S2TG = streams(range(seed, seed + seeds), steps, 2, group_size).transpose(1, 2)
    reference_A = torch.zeros(4, dtype=torch.float64)
    logits_SA = reference_A.repeat(seeds, 1)
    expected, gaps = [logits_SA.softmax(-1) @ REWARDS_A], []
    for step in range(steps):
        actions_SG = pick_actions(logits_SA, uniforms_S2TG[:, 0, step])
        rewards_SG = REWARDS_A[actions_SG] + uniforms_S2TG[:, 1, step] - 0.5
        gaps.append(rewards_SG.mean(-1) - expected[-1])
        advantages_B = grpo_advantages(rewards_SG.flatten(), group_ids(seeds, group_size), eps=1e-8, eps_mode=EpsMode.VAR)
        gradient_SA = group_gradient(logits_SA, actions_SG, advantages_B.view_as(actions_SG), reference_A, BETA)
        logits_SA = logits_SA - LEARNING_RATE * gradient_SA
        expected.append(logits_SA.softmax(-1) @ REWARDS_A)
    return _Training(torch.stack(expected), float(torch.stack(gaps).square().mean().sqrt()))


def _gradient_shares(group_size: int) -> tuple[float, float]:
    """Expected gradient over all A^G groups / true gradient, for the mean of the group and for the mean of the others.

    Raises AssertionError where an expected gradient is no multiple of the true one.
    """
    actions_MG = torch.cartesian_prod(*[torch.arange(4)] * group_size)
    num_groups = len(actions_MG)
    probability_M = START_A.softmax(-1)[actions_MG].prod(-1)
    rewards_B, ids_B = REWARDS_A[actions_MG].flatten(), group_ids(num_groups, group_size)
    leaf_A = START_A.clone().requires_grad_()
    true_A = torch.autograd.grad(-(leaf_A.softmax(-1) @ REWARDS_A), leaf_A)[0]
    shares = []
    for advantages_B in (grpo_advantages(rewards_B, ids_B, StdKind.NONE), rloo_advantages(rewards_B, ids_B)):
        gradient_MA = group_gradient(START_A.repeat(num_groups, 1), actions_MG, advantages_B.view_as(actions_MG))
        expected_A = probability_M @ gradient_MA
        share = float(expected_A @ true_A / (true_A @ true_A))
        assert torch.allclose(expected_A, share * true_A, atol=1e-12)
        shares.append(share)
    return shares[0], shares[1]


def _panel(trained: dict[int, _Training], steps: int) -> Panel:
    x = tuple(float(step) for step in range(steps + 1))
    curves = tuple(Curve(f"G = {size}", x, tuple(training.expected_TS.mean(-1).tolist())) for size, training in trained.items())
    return Panel("Expected reward, mean over seeds", "step", "E[R]", curves)
