"""Lab reward-model: Bradley-Terry on four named features, and what contradicting pairs do to a weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.errors import ConfigError
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import bt_loss, linear_bt_fit, pair_metrics

__all__ = ["BETTER_ELSEWHERE", "FEATURES", "PAIRS", "SAFETY_ALONE", "contradicting_pairs", "run"]

Features = tuple[float, float, float, float]
Pair = tuple[Features, Features]  # chosen, rejected

FEATURES = ("helpfulness", "accuracy", "conciseness", "safety")
PAIRS: tuple[Pair, ...] = (
    ((0.9, 0.8, 0.7, 1.0), (0.3, 0.2, 0.5, 0.8)),
    ((0.7, 0.9, 0.6, 1.0), (0.8, 0.1, 0.9, 0.3)),
    ((0.8, 0.7, 0.8, 0.9), (0.2, 0.6, 0.3, 1.0)),
    ((0.6, 0.8, 0.5, 1.0), (0.9, 0.7, 0.8, 0.1)),
    ((0.8, 0.9, 0.7, 0.9), (0.4, 0.3, 0.6, 0.7)),
)
# The textbook prints the weights that its contradicting pairs lead to, not the pairs. These two cycles lead to the same weights to
# three decimals; they were found by search over tenths (first) and hundredths (second), and others would do as well.
BETTER_ELSEWHERE: tuple[Pair, ...] = (
    ((0.9, 0.9, 0.8, 0.0), (0.5, 0.2, 0.2, 1.0)),
    ((1.0, 0.8, 0.7, 0.0), (0.0, 0.4, 0.5, 1.0)),
    ((0.8, 0.9, 0.9, 0.1), (0.7, 0.1, 0.2, 1.0)),
    ((0.9, 0.8, 1.0, 0.1), (0.1, 0.3, 0.0, 0.9)),
    ((0.7, 0.8, 0.9, 0.2), (0.6, 0.3, 0.4, 1.0)),
)
SAFETY_ALONE: tuple[Pair, ...] = (
    ((0.7, 0.7, 0.7, 0.10), (0.7, 0.7, 0.7, 0.9)),
    ((0.7, 0.7, 0.7, 0.12), (0.7, 0.7, 0.7, 0.9)),
    ((0.7, 0.7, 0.7, 0.14), (0.7, 0.7, 0.7, 0.9)),
)

EPOCHS, LEARNING_RATE, FLOOR = 200, 0.1, 1e-8
LONG_RUN = (200, 2_000, 20_000)  # epochs
PRINTED_EPOCHS = (50, 100, 150, 200)
RIDGES = (0.1, 0.01, 0.001)
CONTRADICTED_RIDGES = (0.01, 0.001)
CONTRADICTIONS = (0, 1, 2, 3, 5, 10, 20)
MAX_CONTRADICTIONS = 500
FAR_MARGIN = -800.0  # a score difference so wrong that sigmoid of it is 0


@dataclass(frozen=True)
class _Fit:
    """Weights after the last epoch, loss of every epoch (nats per pair), |w| after the epochs of ``LONG_RUN`` that were reached."""

    weights: tuple[float, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]


@dataclass(frozen=True)
class _Regime:
    """One kind of contradicting pairs at every number of them: weights and share of pairs in order (replay), weight of safety by fit."""

    name: str
    label: str
    weights: list[tuple[float, ...]]
    safety: dict[str, list[float]]
    accuracy: list[float]


def run(contradict: int | None = None) -> LabResult:
    """``contradict``: as many extra pairs that prefer the less safe answer, in two regimes; None replays the five pairs."""
    if contradict is None:
        return _five_pairs()
    if not 0 <= contradict <= MAX_CONTRADICTIONS:
        raise ConfigError(f"lab.reward-model.contradict: {contradict}; expected a number of extra pairs from 0 to {MAX_CONTRADICTIONS}")
    return _contradicted(contradict)


def contradicting_pairs(cycle: Sequence[Pair], count: int) -> list[Pair]:
    """The first ``count`` pairs of a cycle repeated without end."""
    return [cycle[i % len(cycle)] for i in range(count)]


# --- the replay: plain Python, rule for rule ---


def _replay(pairs: Sequence[Pair], epochs: int) -> _Fit:
    differences = [[c - r for c, r in zip(chosen, rejected, strict=True)] for chosen, rejected in pairs]
    weights, losses, norms = [0.0] * len(FEATURES), [], []
    for epoch in range(1, epochs + 1):
        loss = 0.0
        for difference in differences:
            p = 1 / (1 + math.exp(-sum(w * d for w, d in zip(weights, difference, strict=True))))
            loss -= math.log(p + FLOOR)
            weights = [w + LEARNING_RATE * (1 - p) * d for w, d in zip(weights, difference, strict=True)]
        losses.append(loss / len(pairs))
        if epoch in LONG_RUN:
            norms.append(math.hypot(*weights))
    return _Fit(tuple(weights), tuple(losses), tuple(norms))


# --- the correct version: functions of tether.maths ---


def _sides(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    chosen_BF, rejected_BF = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return chosen_BF, rejected_BF


def _ridge_fit(pairs: Sequence[Pair], ridge: float) -> list[float]:
    chosen_BF, rejected_BF = _sides(pairs)
    return linear_bt_fit(chosen_BF - rejected_BF, ridge).tolist()


def _bias_gradient(weights: Sequence[float]) -> float:
    chosen_BF, rejected_BF = _sides(PAIRS)
    weights_F, bias = torch.tensor(weights, dtype=torch.float64), torch.zeros((), dtype=torch.float64, requires_grad=True)
    loss = bt_loss(chosen_BF @ weights_F + bias, rejected_BF @ weights_F + bias).mean()
    return float(torch.autograd.grad(loss, bias)[0])


def _at_margin(margin: float) -> tuple[float, float, float, float]:
    """At one score difference: loss with the floor and its slope, softplus loss and its slope."""
    values = []
    for loss_of in (lambda s_B: -torch.log(torch.sigmoid(s_B) + FLOOR), lambda s_B: bt_loss(s_B, torch.zeros_like(s_B))):
        score_B = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
        loss = loss_of(score_B).sum()
        values += [float(loss.detach()), float(torch.autograd.grad(loss, score_B)[0])]
    return values[0], values[1], values[2], values[3]


def _judged_three_to_one() -> float:
    """The score difference fitted to one comparison that three of four raters settled one way; hardly any ridge is needed."""
    return float(linear_bt_fit(torch.tensor([[1.0], [1.0], [1.0], [-1.0]], dtype=torch.float64), 1e-9))


# --- results ---


def _five_pairs() -> LabResult:
    fit, long = _replay(PAIRS, EPOCHS), _replay(PAIRS, LONG_RUN[-1])
    ridge = {text: _ridge_fit(PAIRS, float(text)) for text in map(str, RIDGES)}
    chosen_BF, rejected_BF = _sides(PAIRS)
    weights_F = torch.tensor(fit.weights, dtype=torch.float64)
    metrics = pair_metrics(chosen_BF @ weights_F, rejected_BF @ weights_F)
    margins = {str(margin): _at_margin(margin) for margin in (0.0, -10.0, -20.0, FAR_MARGIN)}
    three_to_one = _judged_three_to_one()
    return LabResult(
        name="reward-model",
        question="What do five comparisons teach a Bradley-Terry model with four named features, and what do they not teach?",
        tables=(
            _weight_table(fit, long, ridge),
            Table("Replay: loss before each step, nats per pair", ("epoch", "loss"),
                  tuple((epoch, fit.losses[epoch - 1]) for epoch in PRINTED_EPOCHS), ("d", ".6f")),
            Table("A score difference that is wrong: -log(p + 1e-8) against softplus(-d)",
                  ("difference d", "floored loss", "its slope", "softplus loss", "its slope"),
                  tuple((float(margin), *row) for margin, row in margins.items()), (".0f", ".4f", ".6f", ".4f", ".6f")),
        ),
        panels=(
            Panel("Loss of the replay", "epoch", "loss (nats per pair)",
                  (Curve("five pairs", tuple(map(float, range(1, EPOCHS + 1))), fit.losses),)),
            Panel("Nothing stops the weights", "epochs", "|w|", (Curve("replay", tuple(map(float, LONG_RUN)), long.norms),), log_x=True),
        ),
        notes=_notes_five(fit, long, metrics.accuracy, three_to_one),
        figures={
            "loss": {str(epoch): fit.losses[epoch - 1] for epoch in PRINTED_EPOCHS},
            "accuracy": metrics.accuracy, "nll": metrics.nll,
            "weights": list(fit.weights), "bias": 0.0, "bias_gradient": _bias_gradient(fit.weights),
            "norm": {str(epochs): norm for epochs, norm in zip(LONG_RUN, long.norms, strict=True)},
            "ridge_weights": {text: list(weights) for text, weights in ridge.items()},
            "ridge_norm": {text: math.hypot(*weights) for text, weights in ridge.items()},
            "margin": {margin: list(row) for margin, row in margins.items()},
            "three_to_one": three_to_one,
        },
    )  # fmt: skip


def _weight_table(fit: _Fit, long: _Fit, ridge: dict[str, list[float]]) -> Table:
    rows = [("replay, 200 epochs", *fit.weights, fit.norms[0]), ("replay, 20,000 epochs", *long.weights, long.norms[-1])]
    rows += [(f"linear_bt_fit, l2 {text}", *weights, math.hypot(*weights)) for text, weights in ridge.items()]
    return Table("Weights", ("fit", *FEATURES, "|w|"), tuple(rows), ("", *(".6f",) * 4, ".3f"))


def _notes_five(fit: _Fit, long: _Fit, accuracy: float, three_to_one: float) -> tuple[str, ...]:
    return (
        f"The replay puts {accuracy * len(PAIRS):.0f} of {len(PAIRS)} pairs in order. They can all be put in order by a line, so every "
        f"longer w fits them better: |w| is {fit.norms[0]:.2f} after 200 epochs and {long.norms[-1]:.1f} after 20,000. Only a penalty "
        "(l2) gives w a size; the correct version minimises bt_loss with one.",
        "The bias cancels in a difference of scores: its gradient is exactly 0, so no amount of data finds the zero of the scale.",
        "The size of w has a meaning once raters disagree. One comparison settled three to one has score difference log 3 = "
        f"{three_to_one:.4f}, whatever the penalty, as long as it is small: scores are log-odds.",
        f"The floor inside the logarithm caps the loss at -log(1e-8) = {-math.log(FLOOR):.2f}, and the slope dies with it: the worst "
        "pair teaches nothing. softplus(-d) needs no floor and keeps slope -1.",
    )


def _contradicted(contradict: int) -> LabResult:
    counts = tuple(sorted({*CONTRADICTIONS, contradict}))
    regimes = [_regime(label, cycle, counts) for label, cycle in (("(a)", BETTER_ELSEWHERE), ("(b)", SAFETY_ALONE))]
    columns = {f"{regime.label} {fit}": column for regime in regimes for fit, column in regime.safety.items()}
    here = counts.index(contradict)
    return LabResult(
        name="reward-model",
        question=f"How many comparisons that prefer the less safe answer turn the weight of safety? Here: {contradict}.",
        tables=(
            Table("Weight of safety after 200 epochs (replay), and by linear_bt_fit with a penalty l2",
                  ("extra pairs", *columns), tuple((n, *(column[i] for column in columns.values())) for i, n in enumerate(counts)),
                  ("d", *(".3f",) * len(columns))),
            Table(f"The replay at {contradict} extra pairs", ("regime", *FEATURES, "pairs in order"),
                  tuple((regime.label, *regime.weights[here], regime.accuracy[here]) for regime in regimes), ("", *(".3f",) * 4, ".1%")),
        ),
        panels=(Panel("Weight of safety", "extra pairs that prefer the less safe answer", "weight",
                      tuple(Curve(label, tuple(map(float, counts)), tuple(column)) for label, column in columns.items())),),
        notes=_notes_contradicted(regimes[0], counts.index(CONTRADICTIONS[-1])),
        figures={
            "contradict": contradict, "counts": list(counts),
            "safety": {regime.name: list(regime.safety["replay"]) for regime in regimes},
            "safety_l2": {regime.name: {str(l2): list(regime.safety[f"l2 {l2}"]) for l2 in CONTRADICTED_RIDGES} for regime in regimes},
            "weights": {regime.name: list(regime.weights[here]) for regime in regimes},
            "accuracy": {regime.name: list(regime.accuracy) for regime in regimes},
        },
    )  # fmt: skip


def _regime(label: str, cycle: Sequence[Pair], counts: Sequence[int]) -> _Regime:
    data = [[*PAIRS, *contradicting_pairs(cycle, count)] for count in counts]
    weights = [_replay(pairs, EPOCHS).weights for pairs in data]
    safety = {"replay": [row[3] for row in weights]}
    safety |= {f"l2 {l2}": [_ridge_fit(pairs, l2)[3] for pairs in data] for l2 in CONTRADICTED_RIDGES}
    accuracy = []
    for pairs, row in zip(data, weights, strict=True):
        chosen_BF, rejected_BF = _sides(pairs)
        weights_F = torch.tensor(row, dtype=torch.float64)
        accuracy.append(pair_metrics(chosen_BF @ weights_F, rejected_BF @ weights_F).accuracy)
    name = "better_elsewhere" if cycle is BETTER_ELSEWHERE else "safety_alone"
    return _Regime(name, label, weights, safety, accuracy)


def _notes_contradicted(elsewhere: _Regime, twenty: int) -> tuple[str, ...]:
    firm, loose = (elsewhere.safety[f"l2 {l2}"][twenty] for l2 in CONTRADICTED_RIDGES)
    return (
        "(a) The preferred answer is less safe but better in everything else, so the other weights can explain the choice: with "
        f"{len(PAIRS)} pairs against {CONTRADICTIONS[-1]} the weight of safety is still {elsewhere.safety['replay'][twenty]:.2f} in "
        "the replay. A positive weight is no proof that raters asked for safety.",
        "(b) Nothing but safety differs, so nothing else can explain the choice: two such pairs turn the sign.",
        f"The replay still puts {elsewhere.accuracy[twenty]:.0%} of the pairs in order in (a): nothing contradicts, w is free to grow, "
        f"and its size is that of the stopping time. With a penalty the weight at {CONTRADICTIONS[-1]} extra pairs is {firm:.2f} (l2 "
        f"{CONTRADICTED_RIDGES[0]}) or {loose:.2f} (l2 {CONTRADICTED_RIDGES[1]}): these pairs do not settle even its sign.",
        "The pairs: (a) repeats BETTER_ELSEWHERE, (b) repeats SAFETY_ALONE, both in labs/reward_model.py. They were fitted to weights "
        "printed in the textbook, which does not print its pairs; the regimes matter, not these numbers.",
    )
