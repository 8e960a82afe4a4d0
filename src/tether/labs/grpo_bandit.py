"""Lab grpo-bandit: the group as its own baseline, with the random numbers of the C library. Axes: S seeds, G draws, A actions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from tether.errors import ConfigError
from tether.labs.glibc import glibc_uniforms
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import EpsMode, KLEstimator, grpo_advantages, grpo_loss, kl_full, kl_k3

__all__ = ["run"]

REWARDS = (2.0, 5.0, 1.0, 3.0)
GROUP, STEPS, EPS, BETA, LEARNING_RATE = 6, 20, 0.2, 0.1, 0.3
STD_EPS, RATIO_EPS = 1e-8, 1e-8
PRINTED = (5, 10, 15, 20)

# Logits [S, A], drawn actions and their rewards [S, G] -> what the learning rate multiplies [S, A], ratios [S, G].
_Push = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Path:
    """Of every seed at every step, [S, steps]: the exact expected reward of the policy that is sampled from, the mean of its group
    with and without reward noise. ``logits_SA``: after the last step. ``ratios``: every importance ratio, [S, steps, G]."""

    expected: Tensor
    group: Tensor
    group_without_noise: Tensor
    logits_SA: Tensor
    ratios: Tensor


def run(seed: int = 42, seeds: int = 1000) -> LabResult:
    """``seed`` of the C library's rand(), ``seeds``: how many other streams (Python's random.Random(0), (1), ...) to average over."""
    if not 0 <= seed < 2**31:
        raise ConfigError(f"lab.grpo-bandit.seed: {seed}; expected a number from 0 to {2**31 - 1}")
    if seeds < 2:
        raise ConfigError(f"lab.grpo-bandit.seeds: {seeds}; a spread needs at least 2 seeds")
    one, many = _glibc_stream(seed), _other_streams(seeds)
    replay, correct = _walk(one, _textbook_push), _walk(one, _gradient_push)
    replays, corrects = _walk(many, _textbook_push), _walk(many, _gradient_push)
    pushes = _kl_pushes(replay.logits_SA[0])
    return LabResult(
        name="grpo-bandit",
        question="Can the mean of six draws stand in for a baseline, and what does a textbook rule do with it?",
        tables=(_step_table(replay, correct), _seed_table(replays, corrects), _kl_table(pushes)),
        panels=_panels(replay, correct, replays, corrects),
        notes=_notes(replay, replays, corrects, pushes),
        figures=_figures(replay, correct, replays, corrects, pushes),
    )


# --- uniforms, [S, steps, G, 2]: one for the action, one for the noise of its reward ---


def _glibc_stream(seed: int) -> Tensor:
    numbers = list(islice(glibc_uniforms(seed), STEPS * GROUP * 2))
    return torch.tensor(numbers, dtype=torch.float64).view(1, STEPS, GROUP, 2)


def _other_streams(seeds: int) -> Tensor:
    numbers = [[stream.random() for _ in range(STEPS * GROUP * 2)] for stream in map(random.Random, range(seeds))]
    return torch.tensor(numbers, dtype=torch.float64).view(seeds, STEPS, GROUP, 2)


def _walk(uniforms: Tensor, push: _Push) -> _Path:
    rewards_A = torch.tensor(REWARDS, dtype=torch.float64)
    logits_SA = torch.zeros(len(uniforms), len(REWARDS), dtype=torch.float64)
    columns: dict[str, list[Tensor]] = {"expected": [], "group": [], "clean": [], "ratios": []}
    for step in range(STEPS):
        probs_SA = logits_SA.softmax(-1)
        # The last action also takes a uniform of exactly 1.
        actions_SG = torch.searchsorted(probs_SA.cumsum(-1), uniforms[:, step, :, 0].contiguous(), right=True).clamp(max=len(REWARDS) - 1)
        rewards_SG = rewards_A[actions_SG] + uniforms[:, step, :, 1] - 0.5
        columns["expected"].append(probs_SA @ rewards_A)
        columns["group"].append(rewards_SG.mean(-1))
        columns["clean"].append(rewards_A[actions_SG].mean(-1))
        push_SA, ratios_SG = push(logits_SA, actions_SG, rewards_SG)
        columns["ratios"].append(ratios_SG)
        logits_SA = logits_SA + LEARNING_RATE * push_SA
    stacked = {name: torch.stack(column, 1) for name, column in columns.items()}
    return _Path(stacked["expected"], stacked["group"], stacked["clean"], logits_SA, stacked["ratios"])


# --- the replay ---


def _textbook_push(logits_SA: Tensor, actions_SG: Tensor, rewards_SG: Tensor) -> tuple[Tensor, Tensor]:
    """Each draw adds (objective - beta k) / G to the logit of its action; the ratio is to the REFERENCE."""
    probs_SG = logits_SA.softmax(-1).gather(-1, actions_SG)
    reference = 1 / len(REWARDS)
    std_S1 = (rewards_SG.var(-1, correction=0, keepdim=True) + STD_EPS).sqrt()
    advantages_SG = (rewards_SG - rewards_SG.mean(-1, keepdim=True)) / std_S1
    ratios_SG = probs_SG / (reference + RATIO_EPS)
    objective_SG = torch.minimum(ratios_SG * advantages_SG, ratios_SG.clamp(1 - EPS, 1 + EPS) * advantages_SG)
    inverse_SG = reference / (probs_SG + RATIO_EPS)
    k_SG = inverse_SG - inverse_SG.log() - 1
    return torch.zeros_like(logits_SA).scatter_add(-1, actions_SG, (objective_SG - BETA * k_SG) / GROUP), ratios_SG


# --- the correct version ---


def _gradient_push(logits_SA: Tensor, actions_SG: Tensor, rewards_SG: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of grpo_loss: group-standardised advantages, the ratio to the policy that sampled, k2 as the tether."""
    logits_SA = logits_SA.detach().requires_grad_()
    logprobs_SG = logits_SA.log_softmax(-1).gather(-1, actions_SG)
    groups_SG = torch.arange(len(logits_SA))[:, None].expand_as(actions_SG)
    advantages = grpo_advantages(rewards_SG.flatten(), groups_SG.flatten(), eps=STD_EPS, eps_mode=EpsMode.VAR)
    reference_SG = torch.full_like(logprobs_SG, 1 / len(REWARDS)).log()
    live_SG = torch.ones_like(actions_SG, dtype=torch.bool)
    loss = grpo_loss(
        logprobs_SG, logprobs_SG.detach(), reference_SG, advantages.view_as(rewards_SG), live_SG, EPS, EPS, BETA, KLEstimator.K2
    )
    # Seeds share nothing: the gradient of the sum over seeds is that of each seed's own mean over its group.
    return -torch.autograd.grad(loss.losses_BT.sum() / GROUP, logits_SA)[0], loss.ratio_BT


def _kl_pushes(logits_A: Tensor) -> list[tuple[int, float, float, float]]:
    """At one policy, per action: its probability, the expected push of the rule's -k, and -gradient of KL(policy || reference)."""
    probs_A, logprobs_A = logits_A.softmax(-1), logits_A.log_softmax(-1)
    rule_A = -probs_A * kl_k3(logprobs_A, torch.full_like(logprobs_A, 1 / len(REWARDS)).log())
    leaf_A = logits_A.detach().requires_grad_()
    gradient_A = -torch.autograd.grad(kl_full(leaf_A, torch.zeros_like(leaf_A)), leaf_A)[0]
    return [(a, float(probs_A[a]), float(rule_A[a]), float(gradient_A[a])) for a in range(len(REWARDS))]


# --- results ---


def _step_table(replay: _Path, correct: _Path) -> Table:
    columns = ("step", "E[R]", "group mean", "gap: which actions", "gap: noise", "E[R], gradient")
    rows = []
    for step in PRINTED:
        expected, group, clean = (float(x[0, step - 1]) for x in (replay.expected, replay.group, replay.group_without_noise))
        rows.append((step, expected, group, clean - expected, group - clean, float(correct.expected[0, step - 1])))
    return Table("One stream of rand(): the policy sampled from at each step", columns, tuple(rows), ("d", *(".2f",) * 5))


def _seed_table(replays: _Path, corrects: _Path) -> Table:
    columns = ("step", "E[R], rule", "sd", "E[R], gradient", "sd")
    rows = tuple((step, *_mean_sd(replays.expected, step), *_mean_sd(corrects.expected, step)) for step in PRINTED)
    return Table(f"{len(replays.expected)} other streams: mean and standard deviation over streams", columns, rows, ("d", *(".3f",) * 4))


def _kl_table(pushes: list[tuple[int, float, float, float]]) -> Table:
    return Table("The tether's push on each logit at the replay's last policy, per unit of beta",
                 ("action", "probability", "rule", "gradient of KL"), tuple(pushes), ("d", ".4f", ".4f", ".4f"))  # fmt: skip


def _mean_sd(column: Tensor, step: int) -> tuple[float, float]:
    return float(column[:, step - 1].mean()), float(column[:, step - 1].std())


def _panels(replay: _Path, correct: _Path, replays: _Path, corrects: _Path) -> tuple[Panel, ...]:
    steps = tuple(float(n) for n in range(1, STEPS + 1))

    def curve(label: str, column: Tensor) -> Curve:
        return Curve(label, steps, tuple(column.tolist()))

    return (
        Panel("One stream", "step", "reward", (
            curve("E[R], rule", replay.expected[0]), curve("group mean, rule", replay.group[0]),
            curve("E[R], gradient", correct.expected[0]))),
        Panel("Mean of the other streams", "step", "expected reward", (
            curve("rule", replays.expected.mean(0)), curve("gradient", corrects.expected.mean(0)))),
    )  # fmt: skip


def _rms(column: Tensor) -> float:
    return float(column.square().mean().sqrt())


def _outside(ratios: Tensor) -> float:
    return float(((ratios < 1 - EPS) | (ratios > 1 + EPS)).double().mean())


def _notes(replay: _Path, replays: _Path, corrects: _Path, pushes: list[tuple[int, float, float, float]]) -> tuple[str, ...]:
    rare = min(pushes, key=lambda row: row[1])
    (end, spread), (rule_end, rule_spread) = _mean_sd(corrects.expected, STEPS), _mean_sd(replays.expected, STEPS)
    return (
        "The figures of the first table are a property of one generator; the second says what to expect of any. Both columns of a row "
        "describe the same policy, the one that drew the group.",
        f"The rule's ratio is to the reference, so it drifts to {float(replay.ratios.max()):.2f} and "
        f"{100 * _outside(replay.ratios):.0f} % of draws lie outside [0.8, 1.2] although the data are fresh. It belongs to the policy "
        "that sampled: then it is exactly 1 here and nothing is clipped.",
        "The rule adds the VALUE of its KL estimate to the logit of the drawn action. A value is never negative, so it pushes every "
        f"action down: action {rare[0]} too (probability {rare[1]:.3f}), by {rare[2]:.3f}, where the gradient of KL(policy || "
        f"reference) lifts it by {rare[3]:.3f}. The correct version uses k2, whose expected gradient is that one.",
        "The gap between the columns is not one thing: over all streams and steps its rms is "
        f"{_rms(replays.group - replays.expected):.2f}, {_rms(replays.group_without_noise - replays.expected):.2f} from which actions "
        f"were drawn and {_rms(replays.group - replays.group_without_noise):.2f} from the noise of the rewards.",
        f"At the same learning rate the gradient ends at {end:.2f} with a spread of {spread:.2f} between streams, the rule at "
        f"{rule_end:.2f} with {rule_spread:.2f}.",
    )


def _figures(replay: _Path, correct: _Path, replays: _Path, corrects: _Path, pushes: list[tuple[int, float, float, float]]) -> dict:
    def at_printed(column: Tensor) -> list[float]:
        return [float(column[step - 1]) for step in PRINTED]

    return {
        "steps": list(PRINTED),
        "expected": at_printed(replay.expected[0]), "group_mean": at_printed(replay.group[0]),
        "group_mean_without_noise": at_printed(replay.group_without_noise[0]),
        "logits": replay.logits_SA[0].tolist(),
        "ratio_min": float(replay.ratios.min()), "ratio_max": float(replay.ratios.max()), "ratio_outside": _outside(replay.ratios),
        "other_seeds": {"count": len(replays.expected), "mean": [_mean_sd(replays.expected, step)[0] for step in PRINTED],
                        "sd": [_mean_sd(replays.expected, step)[1] for step in PRINTED]},
        "gap_rms": {"all": _rms(replays.group - replays.expected), "actions": _rms(replays.group_without_noise - replays.expected),
                    "noise": _rms(replays.group - replays.group_without_noise)},
        "correct": {"expected": at_printed(correct.expected[0]), "logits": correct.logits_SA[0].tolist(),
                    "ratio_min": float(correct.ratios.min()), "ratio_max": float(correct.ratios.max()),
                    "other_seeds": {"mean": [_mean_sd(corrects.expected, step)[0] for step in PRINTED],
                                    "sd": [_mean_sd(corrects.expected, step)[1] for step in PRINTED]}},
        "kl_push": {"rule": [row[2] for row in pushes], "gradient": [row[3] for row in pushes]},
    }  # fmt: skip
