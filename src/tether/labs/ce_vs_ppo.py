"""Lab ce-vs-ppo: the gradient of cross-entropy inside that of the clipped policy objective."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import ppo_surrogate

__all__ = ["run"]

LOGITS, ACTION, EPS = (0.4, -0.2), 0, 0.2
CASES = ((1.0, 2.0), (1.0, -2.0), (1.0, 0.0), (1.4, 2.0), (1.4, -2.0))  # ratio new / old, advantage


@dataclass(frozen=True)
class _Case:
    """Losses, and their gradients in the two logits: by the textbook's formula and by differentiating ppo_surrogate."""

    ratio: float
    advantage: float
    loss: float
    by_formula: tuple[float, float]
    by_autograd: tuple[float, float]


def run() -> LabResult:
    """No options: two logits, one action, five pairs of ratio and advantage."""
    loss, gradient = _cross_entropy()
    cases = [_case(ratio, advantage) for ratio, advantage in CASES]
    multiples = [case.by_autograd[0] / gradient[0] for case in cases]
    return LabResult(
        name="ce-vs-ppo",
        question="How does one step of PPO on a token differ from one step of supervised learning on the same token?",
        tables=(_table(loss, gradient, cases, multiples),),
        panels=(_panel(gradient),),
        notes=_notes(cases, multiples),
        figures={
            "cross_entropy": {"loss": loss, "gradient": list(gradient)},
            "cases": [
                {"ratio": case.ratio, "advantage": case.advantage, "loss": case.loss, "gradient": list(case.by_autograd),
                 "by_formula": list(case.by_formula), "multiple": multiple}
                for case, multiple in zip(cases, multiples, strict=True)
            ],
            "largest_difference": _largest_difference(cases),
        },
    )  # fmt: skip


def _cross_entropy() -> tuple[float, tuple[float, float]]:
    logits_A = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits_A[None], torch.tensor([ACTION]))
    first, second = torch.autograd.grad(loss, logits_A)[0].tolist()
    return float(loss.detach()), (first, second)


def _case(ratio: float, advantage: float) -> _Case:
    loss, by_autograd = _differentiated(ratio, advantage)
    return _Case(ratio, advantage, loss, _by_formula(ratio, advantage), by_autograd)


def _by_formula(ratio: float, advantage: float) -> tuple[float, float]:
    """The textbook's: advantage x ratio x (p - one-hot), and 0 where the clip has taken over."""
    cut = (advantage > 0 and ratio > 1 + EPS) or (advantage < 0 and ratio < 1 - EPS)
    weight = 0.0 if cut else advantage * ratio
    total = sum(math.exp(z) for z in LOGITS)
    first, second = (weight * (math.exp(z) / total - (i == ACTION)) for i, z in enumerate(LOGITS))
    return first, second


def _differentiated(ratio: float, advantage: float) -> tuple[float, tuple[float, float]]:
    logits_A = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    logprobs_BT = logits_A.log_softmax(-1)[ACTION].view(1, 1)
    old_BT = logprobs_BT.detach() - math.log(ratio)
    advantages_BT, mask_BT = torch.full((1, 1), advantage, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    loss = ppo_surrogate(logprobs_BT, old_BT, advantages_BT, mask_BT, EPS, EPS).losses_BT.sum()
    first, second = torch.autograd.grad(loss, logits_A)[0].tolist()
    return float(loss.detach()), (first, second)


def _largest_difference(cases: list[_Case]) -> float:
    return max(abs(a - b) for case in cases for a, b in zip(case.by_formula, case.by_autograd, strict=True))


def _table(loss: float, gradient: tuple[float, float], cases: list[_Case], multiples: list[float]) -> Table:
    rows = [("cross-entropy", "", "", loss, *gradient, 1.0)]
    rows += [
        ("ppo_surrogate", f"{case.ratio:g}", f"{case.advantage:g}", case.loss, *(x + 0.0 for x in case.by_autograd), multiple + 0.0)
        for case, multiple in zip(cases, multiples, strict=True)
    ]
    columns = ("objective", "ratio", "advantage", "loss", "d/dz_0", "d/dz_1", "multiple of CE")
    return Table("Logits 0.4 -0.2, action 0, clip 0.2", columns, tuple(rows), ("", "", "", ".6f", ".6f", ".6f", ".4f"))


def _panel(gradient: tuple[float, float]) -> Panel:
    ratios = tuple(0.5 + 0.01 * i for i in range(101))
    curves = tuple(
        Curve(f"advantage {advantage:g}", ratios, tuple(_differentiated(ratio, advantage)[1][0] / gradient[0] for ratio in ratios))
        for advantage in (2.0, -2.0)
    )
    return Panel("The gradient as a multiple of that of cross-entropy", "ratio new / old", "multiple", curves)


def _notes(cases: list[_Case], multiples: list[float]) -> tuple[str, ...]:
    return (
        f"At ratio 1 the gradient is advantage x that of cross-entropy ({multiples[0]:g}, {multiples[1]:g}, {multiples[2] + 0.0:g} "
        "times): imitation of a good answer, the opposite for a bad one, silence at average. Supervised learning is the case in which "
        "every token has advantage 1.",
        f"At ratio 1.4 a good answer teaches no more ({multiples[3] + 0.0:g}): the clip has cut it. A bad answer that has become MORE "
        f"likely still does, with the ratio as a factor ({multiples[4]:g}): a clip is one-sided, and on this side it is open.",
        f"The loss says none of this. At ratio 1 it is minus the advantage, whatever the policy ({cases[0].loss:g}, "
        f"{cases[1].loss:g}), where cross-entropy is a distance from the data: a falling policy loss is no sign of learning.",
        f"The textbook's formula and autograd through ppo_surrogate agree to {_largest_difference(cases):.0e}. Exactly at the edge of "
        "the clip the gradient is kept: only beyond it is it 0.",
    )
