"""A rule as the reward: sums of two digits, 1 for the right answer and 0 for any other.

Axes: P sums (one row of logits each, for every seed), V answers 0..18, G draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tether.labs._tabular import draw_actions, group_gradient, group_ids
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import dynamic_sampling, grpo_advantages

__all__ = ["run"]

NUM_ANSWERS, LEARNING_RATE, SHOWN = 19, 5.0, (0, 10, 25, 50)

NOTES = (
    "A table of logits has one row per sum: nothing is shared, so this is memory, not arithmetic. "
    "Accuracy is the exact probability of the right answer, not a count of samples.",
    "A group whose answers are all wrong, or all right, teaches nothing: advantages are exactly 0. Its probability is p^G + (1 - p)^G. "
    "At first nearly all dead groups are all wrong, in the end all right.",
    "A sum that no draw has hit keeps its start: the last per cent waits for luck. Larger groups or sampling until groups are alive "
    "(dynamic sampling) are the remedies.",
)


@dataclass(frozen=True)
class _Course:
    """Per step: mean probability of the right answer, share of dead groups drawn, and its theory."""

    accuracy: tuple[float, ...]
    dead: tuple[float, ...]
    dead_theory: tuple[float, ...]


def run(seeds: int = 40, group_size: int = 8, steps: int = 50, seed: int = 0) -> LabResult:
    """GRPO on the hundred sums of two digits, ``seeds`` independent tables of them."""
    course = _train(seeds, group_size, steps, seed)
    shown = tuple(step for step in SHOWN if step <= steps)
    x = tuple(float(step) for step in range(steps + 1))
    return LabResult(
        name="rule-reward",
        question="What does a reward of right or wrong teach, and when does a group teach nothing?",
        tables=(
            Table(
                f"100 sums, 19 answers, G = {group_size}, {seeds} seeds",
                ("step", "accuracy", "dead groups", "p^G + (1-p)^G"),
                tuple((step, course.accuracy[step], course.dead[step], course.dead_theory[step]) for step in shown),
                ("d", ".3f", ".3f", ".3f"),
            ),
        ),
        panels=(
            Panel(
                "Learning and dead groups",
                "step",
                "share",
                (
                    Curve("accuracy", x, course.accuracy),
                    Curve("dead groups", x, course.dead),
                    Curve("p^G + (1-p)^G", x, course.dead_theory),
                ),
            ),
        ),
        notes=NOTES,
        figures={
            "step": list(shown),
            "accuracy": [course.accuracy[step] for step in shown],
            "dead_share": [course.dead[step] for step in shown],
            "dead_share_theory": [course.dead_theory[step] for step in shown],
            "largest_dead_gap": max(abs(a - b) for a, b in zip(course.dead, course.dead_theory, strict=True)),
        },
    )


def _train(seeds: int, group_size: int, steps: int, seed: int) -> _Course:
    generator = torch.Generator().manual_seed(seed)
    digits_N2 = torch.cartesian_prod(torch.arange(10), torch.arange(10))
    answers_P = digits_N2.sum(-1).repeat(seeds)
    num_sums = len(answers_P)
    logits_PV = torch.zeros(num_sums, NUM_ANSWERS)
    accuracy, dead, theory = [], [], []
    for step in range(steps + 1):
        right_P = logits_PV.softmax(-1).gather(-1, answers_P[:, None])[:, 0].double()
        actions_PG = draw_actions(logits_PV, group_size, generator)
        rewards_PG = (actions_PG == answers_P[:, None]).float()
        accuracy.append(float(right_P.mean()))
        dead.append(dynamic_sampling(rewards_PG).dead_fraction)
        theory.append(float((right_P**group_size + (1 - right_P) ** group_size).mean()))
        if step < steps:
            logits_PV = logits_PV - LEARNING_RATE * _gradient(logits_PV, actions_PG, rewards_PG)
    return _Course(tuple(accuracy), tuple(dead), tuple(theory))


def _gradient(logits_PV: Tensor, actions_PG: Tensor, rewards_PG: Tensor) -> Tensor:
    advantages_B = grpo_advantages(rewards_PG.flatten(), group_ids(*rewards_PG.shape))
    return group_gradient(logits_PV, actions_PG, advantages_B.view_as(rewards_PG))
