"""Divide by the standard deviation or not? Axes: S runs (one policy each), G draws, A actions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tether.labs._tabular import draw_actions, group_gradient, group_ids
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import StdKind, grpo_advantages

__all__ = ["run"]

REWARDS_A = torch.tensor([2.0, 5.0, 1.0, 3.0], dtype=torch.float64)
BEST = 1
GROUP_SIZE, LEARNING_RATE = 8, 0.3
KINDS = {"without std": StdKind.NONE, "with std": StdKind.SAMPLE}

NOTES = (
    "Rewards 2 5 1 3 times the scale, without noise and without a tether; G = 8, step 0.3, sample standard deviation (1 / (n - 1)).",
    "Without the division the scale of the reward is a learning rate: too small and nothing is learned in the time, too large and the "
    "first lucky group decides, for ever.",
    "Two prompts that share one policy of two actions and want opposite ones: without the division the prompt with the larger rewards "
    "takes all. With it both count the same, which is fair here and wrong where the scale carries meaning (Dr. GRPO leaves it out: "
    "a prompt of nearly equal answers is blown up).",
)


@dataclass(frozen=True)
class _Outcome:
    """Mean probability of the best action after each step, and the share of runs that end on another action."""

    best_T: tuple[float, ...]
    wrong_share: float


def run(scales: tuple[float, ...] = (0.01, 1.0, 100.0), seeds: int = 1000, steps: int = 60, seed: int = 0) -> LabResult:
    """The same bandit at three scales of the reward, and two prompts of different scale on one policy, with and without the std."""
    outcomes = {label: [_one_prompt(scale, kind, seeds, steps, seed) for scale in scales] for label, kind in KINDS.items()}
    shares = {label: _two_prompts(kind, seeds, steps, seed) for label, kind in KINDS.items()}
    without, with_std = outcomes.values()
    return LabResult(
        name="no-std",
        question="What is lost when group advantages are not divided by the standard deviation?",
        tables=(
            Table(
                f"After {steps} steps, {seeds} runs",
                ("reward scale", "without std: P(best)", "runs on a wrong action", "with std: P(best)", "wrong action"),
                tuple(
                    (scale, a.best_T[-1], a.wrong_share, b.best_T[-1], b.wrong_share)
                    for scale, a, b in zip(scales, without, with_std, strict=True)
                ),
                ("g", ".3f", ".1%", ".3f", ".1%"),
            ),
            Table(
                "Two prompts, one policy, opposite wishes, reward scales 1 and 10",
                ("advantage", "P(wish of scale 1)", "P(wish of scale 10)"),
                tuple((label, 1 - share, share) for label, share in shares.items()),
                ("", ".3f", ".3f"),
            ),
        ),
        panels=(_panel(outcomes, scales, steps),),
        notes=NOTES,
        figures={
            "scale": list(scales),
            "best": {label: [outcome.best_T[-1] for outcome in line] for label, line in outcomes.items()},
            "wrong_share": {label: [outcome.wrong_share for outcome in line] for label, line in outcomes.items()},
            "share_of_large_prompt": dict(shares),
        },
    )


def _one_prompt(scale: float, kind: StdKind, seeds: int, steps: int, seed: int) -> _Outcome:
    generator = torch.Generator().manual_seed(seed)
    logits_SA = torch.zeros(seeds, len(REWARDS_A), dtype=torch.float64)
    best = [float(logits_SA.softmax(-1)[:, BEST].mean())]
    for _ in range(steps):
        logits_SA = logits_SA - LEARNING_RATE * _gradient(logits_SA, scale * REWARDS_A.expand(seeds, -1), kind, generator)
        best.append(float(logits_SA.softmax(-1)[:, BEST].mean()))
    wrong = (logits_SA.argmax(-1) != BEST).double().mean()
    return _Outcome(tuple(best), float(wrong))


def _two_prompts(kind: StdKind, seeds: int, steps: int, seed: int) -> float:
    """Mean probability of the action that the prompt with the rewards of scale 10 wants."""
    generator = torch.Generator().manual_seed(seed)
    wishes_2A = torch.tensor([[1.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    logits_SA = torch.zeros(seeds, 2, dtype=torch.float64)
    for _ in range(steps):
        # Each run asks both prompts: twice the tables, the same policy, the mean of the two gradients.
        gradient_NA = _gradient(logits_SA.repeat(2, 1), wishes_2A.repeat_interleave(seeds, 0), kind, generator)
        logits_SA = logits_SA - LEARNING_RATE * gradient_NA.view(2, seeds, 2).mean(0)
    return float(logits_SA.softmax(-1)[:, 1].mean())


def _gradient(logits_SA: Tensor, rewards_SA: Tensor, kind: StdKind, generator: torch.Generator) -> Tensor:
    actions_SG = draw_actions(logits_SA, GROUP_SIZE, generator)
    rewards_SG = rewards_SA.gather(-1, actions_SG)
    advantages_B = grpo_advantages(rewards_SG.flatten(), group_ids(*rewards_SG.shape), kind)
    return group_gradient(logits_SA, actions_SG, advantages_B.view_as(actions_SG))


def _panel(outcomes: dict[str, list[_Outcome]], scales: tuple[float, ...], steps: int) -> Panel:
    x = tuple(float(step) for step in range(steps + 1))
    curves = tuple(
        Curve(f"{label}, scale {scale:g}", x, outcome.best_T)
        for label, line in outcomes.items()
        for scale, outcome in zip(scales, line, strict=True)
    )
    return Panel("Probability of the best action, mean over runs", "step", "P(best)", curves)
