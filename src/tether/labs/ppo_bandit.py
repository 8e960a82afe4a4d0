"""Lab ppo-bandit: why the ratio is there, on four actions with known rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import policy_stats, ppo_surrogate

__all__ = ["run"]

REWARDS = (2.0, 5.0, 1.0, 3.0)
START = (0.5, 0.3, -0.2, 0.1)  # logits
BEST = 1
EPS, LEARNING_RATE, OUTER, INNER = 0.2, 0.1, 10, 4


@dataclass(frozen=True)
class _Step:
    """One outer step: probabilities after it, ratios outside the interval on either side, extreme ratios, the ratio-weighted pushes
    on actions whose clip was active."""

    probs: tuple[float, ...]
    clips_low: int
    clips_high: int
    ratio_min: float
    ratio_max: float
    pushed_while_cut: int = 0


def run() -> LabResult:
    """No options: the textbook's constants, and its idea done with the gradient."""
    replay = _replay()
    correct = {f"lr {lr:g}, {inner} inner": _correct(lr, inner) for lr, inner in ((0.1, INNER), (1.0, INNER), (0.1, 1), (1.0, 1))}
    gradients = _one_push()
    return LabResult(
        name="ppo-bandit",
        question="What does the clipped ratio do on four actions, when a rule steps by the value of the surrogate?",
        tables=(_replay_table(replay), _correct_table(replay, correct), _push_table(gradients)),
        panels=_panels(replay, correct),
        notes=_notes(replay, correct, gradients),
        figures=_figures(replay, correct, gradients),
    )  # fmt: skip


# --- the replay ---


def _softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(z - top) for z in logits]
    return [w / sum(weights) for w in weights]


def _replay() -> list[_Step]:
    logits, steps = list(START), []
    for _ in range(OUTER):
        old = _softmax(logits)
        baseline = sum(p * r for p, r in zip(old, REWARDS, strict=True))
        ratios: list[float] = []
        cut = 0
        for _ in range(INNER):
            new = _softmax(logits)  # at the start of the inner step: the four actions share it
            for i, reward in enumerate(REWARDS):
                ratio, advantage = new[i] / (old[i] + 1e-8), reward - baseline
                clipped = min(max(ratio, 1 - EPS), 1 + EPS)
                logits[i] += LEARNING_RATE * min(ratio * advantage, clipped * advantage) * (1 - new[i])
                ratios.append(ratio)
                cut += _is_cut(ratio, advantage)
        low, high = sum(r < 1 - EPS for r in ratios), sum(r > 1 + EPS for r in ratios)
        steps.append(_Step(tuple(_softmax(logits)), low, high, min(ratios), max(ratios), cut))
    return steps


def _is_cut(ratio: float, advantage: float) -> bool:
    """Whether the clipped surrogate has gradient 0 here; the rule moves the logit all the same."""
    return (advantage > 0 and ratio > 1 + EPS) or (advantage < 0 and ratio < 1 - EPS)


# --- the correct version ---


def _correct(lr: float, inner: int) -> list[_Step]:
    """Ascent of sum_a old_a min(ratio A, clip(ratio) A) by its gradient in all four logits, through ppo_surrogate."""
    logits_A, rewards_A = torch.tensor(START, dtype=torch.float64), torch.tensor(REWARDS, dtype=torch.float64)
    mask_BT, steps = torch.ones(1, len(REWARDS), dtype=torch.bool), []
    for _ in range(OUTER):
        old_A = logits_A.log_softmax(-1)
        advantages_A = rewards_A - old_A.exp() @ rewards_A
        low, high, ratios = 0, 0, []
        for _ in range(inner):
            logits_A.requires_grad_()
            logprobs_BT = logits_A.log_softmax(-1)[None]
            surrogate = ppo_surrogate(logprobs_BT, old_A[None], advantages_A[None], mask_BT, EPS, EPS)
            gradient_A = torch.autograd.grad((old_A.exp() * surrogate.losses_BT[0]).sum(), logits_A)[0]
            stats = policy_stats(logprobs_BT, old_A[None], advantages_A[None], mask_BT, EPS, EPS)
            logits_A = (logits_A - lr * gradient_A).detach()
            above = int((surrogate.ratio_BT > 1 + EPS).sum())
            low, high = low + int(stats.clip_any) - above, high + above
            ratios += [stats.ratio_min, stats.ratio_max]
        steps.append(_Step(tuple(logits_A.softmax(-1).tolist()), low, high, min(ratios), max(ratios)))
    return steps


def _one_push() -> list[tuple[int, float, float, float]]:
    """The first inner step from the start, where every ratio is 1: action, advantage, push of the rule, push of the gradient."""
    logits_A = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    rewards_A = torch.tensor(REWARDS, dtype=torch.float64)
    old_A = logits_A.detach().log_softmax(-1)
    advantages_A = rewards_A - old_A.exp() @ rewards_A
    mask_BT = torch.ones(1, len(REWARDS), dtype=torch.bool)
    losses_A = ppo_surrogate(logits_A.log_softmax(-1)[None], old_A[None], advantages_A[None], mask_BT, EPS, EPS).losses_BT[0]
    gradient_A = -torch.autograd.grad((old_A.exp() * losses_A).sum(), logits_A)[0]
    rule_A = advantages_A * (1 - old_A.exp())
    return [(i, float(advantages_A[i]), float(rule_A[i]), float(gradient_A[i])) for i in range(len(REWARDS))]


# --- results ---


def _replay_table(replay: list[_Step]) -> Table:
    rows = tuple((n, *s.probs, s.ratio_min, s.ratio_max, s.clips_low, s.clips_high) for n, s in enumerate(replay, 1))
    columns = ("step", "P(0)", "P(1)", "P(2)", "P(3)", "ratio min", "ratio max", "clips low", "clips high")
    return Table("Replay: after each outer step; clips of 16", columns, rows, ("d", *(".3f",) * 6, "d", "d"))


def _correct_table(replay: list[_Step], correct: dict[str, list[_Step]]) -> Table:
    runs = {"replay, lr 0.1, 4 inner": replay} | {f"gradient, {name}": steps for name, steps in correct.items()}
    rows = tuple(
        (name, steps[-1].probs[BEST], _low(steps), _high(steps), OUTER * len(REWARDS) * (1 if name.endswith("1 inner") else INNER))
        for name, steps in runs.items()
    )
    return Table("The rule against the gradient of the surrogate", ("update", "P(1) at the end", "clips low", "clips high", "of"),
                 rows, ("", ".3f", "d", "d", "d"))  # fmt: skip


def _push_table(gradients: list[tuple[int, float, float, float]]) -> Table:
    return Table("The very first push on each logit, before the learning rate", ("action", "advantage", "rule", "gradient"),
                 tuple(gradients), ("d", ".3f", ".3f", ".3f"))  # fmt: skip


def _panels(replay: list[_Step], correct: dict[str, list[_Step]]) -> tuple[Panel, ...]:
    steps = tuple(float(n) for n in range(1, OUTER + 1))
    named = {"replay": replay} | {f"gradient, {name}": run for name, run in correct.items() if name.endswith("4 inner")}
    return (
        Panel("Probability of the best action", "outer step", "P(1)",
              tuple(Curve(name, steps, tuple(s.probs[BEST] for s in run)) for name, run in named.items())),
        Panel("Both ends of the ratio (replay)", "outer step", "ratio new / old", (
            Curve("largest", steps, tuple(s.ratio_max for s in replay)), Curve("smallest", steps, tuple(s.ratio_min for s in replay)))),
    )  # fmt: skip


def _low(steps: list[_Step]) -> int:
    return sum(step.clips_low for step in steps)


def _high(steps: list[_Step]) -> int:
    return sum(step.clips_high for step in steps)


def _notes(replay: list[_Step], correct: dict[str, list[_Step]], gradients: list[tuple[int, float, float, float]]) -> tuple[str, ...]:
    slow, fast = correct["lr 0.1, 4 inner"], correct["lr 1, 4 inner"]
    cut, total = sum(step.pushed_while_cut for step in replay), OUTER * INNER * len(REWARDS)
    return (
        f"The largest ratio falls towards 1 ({replay[0].ratio_max:.2f} to {replay[-1].ratio_max:.2f}), which reads as if the clip "
        f"stopped mattering. The smallest says the opposite: {replay[0].ratio_min:.3f} to {replay[-1].ratio_min:.3f}, and from step 3 "
        "on every one of the clips is on the low side. Report both sides.",
        "The rule is no gradient. It weights a step by the value of the surrogate and moves logit i for action i alone; the terms by "
        "which one action's probability takes from the others are missing, and no action is weighted by how often it is drawn (the "
        f"pushes of the rule add to {sum(g[2] for g in gradients):.2f}, those of a softmax gradient to "
        f"{abs(sum(g[3] for g in gradients)):.0f}).",
        f"In {cut} of {total} pushes the clipped surrogate is flat: its gradient is 0. The rule still moves the logit, by the clipped "
        "value.",
        f"With the gradient (ppo_surrogate) at lr 0.1 nothing is clipped in {total} ratios; at lr 1, {_low(fast) + _high(fast)} are, "
        f"and P(1) is {fast[-1].probs[BEST]:.3f} (lr 0.1: {slow[-1].probs[BEST]:.3f}). With one inner step every ratio is 1 and the "
        "clip never binds: it is there for the second and later steps on the same data.",
    )


def _figures(replay: list[_Step], correct: dict[str, list[_Step]], gradients: list[tuple[int, float, float, float]]) -> dict:
    return {
        "replay": {
            "probs": [list(step.probs) for step in replay],
            "clips_low": [step.clips_low for step in replay],
            "clips_high": [step.clips_high for step in replay],
            "clips": [step.clips_low + step.clips_high for step in replay],
            "clips_total": _low(replay) + _high(replay),
            "ratio_min": [step.ratio_min for step in replay],
            "ratio_max": [step.ratio_max for step in replay],
            "pushed_while_cut": sum(step.pushed_while_cut for step in replay),
        },
        "correct": {
            name: {"p_best": steps[-1].probs[BEST], "clips_low": _low(steps), "clips_high": _high(steps),
                   "ratio_min": min(s.ratio_min for s in steps), "ratio_max": max(s.ratio_max for s in steps)}
            for name, steps in correct.items()
        },
        "first_push": {"rule": [g[2] for g in gradients], "gradient": [g[3] for g in gradients]},
    }  # fmt: skip
