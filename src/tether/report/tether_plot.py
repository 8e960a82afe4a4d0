"""What was gained for how much distance from the reference, and whether an independent score agrees with the reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tether.report.charts import Callout, Chart, chart, number
from tether.report.limits import Limits
from tether.report.plain import nested
from tether.report.read import RunRecord, StageRecord
from tether.report.words import score_meaning

__all__ = ["Trail", "tradeoffs", "trail_of"]

_KL = "KL(policy || reference), nats per sequence"
_WINDOW = 3  # steps that the reward is averaged over before one is called the best: a single batch is noisy


@dataclass(frozen=True, slots=True)
class Trail:
    """A stage as a path through the plane, one point a step. ``best``: index of the step that stands highest."""

    name: str
    steps: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    best: int


def tradeoffs(run: RunRecord, limits: Limits) -> Iterator[Chart]:
    """Reward against KL by step, the held-out score against KL, and proxy against independent score."""
    trails = [trail for stage in run.rl_stages if (trail := trail_of(stage)) is not None]
    if trails:
        yield _reward_against_kl(trails, limits)
    if run.evaluation and len(run.evaluation.policies) > 1:
        yield _score_against_kl(run)
    yield from _panel_charts(run, limits)


def trail_of(stage: StageRecord) -> Trail | None:
    """The steps that have both numbers; None where no step has two finite ones."""
    kl = dict(stage.curves.get("kl_k1_sequence", ()))
    return _trail(stage.short, kl, stage.curves.get("reward", ()), _WINDOW)


def _trail(name: str, across: Mapping[int, float], up: Sequence[tuple[int, float]], window: int) -> Trail | None:
    points = [(step, across[step], value) for step, value in up if step in across]
    if not any(math.isfinite(x) and math.isfinite(y) for _, x, y in points):
        return None
    steps, x, y = (tuple(column) for column in zip(*points, strict=True))
    means = [_mean(y[max(0, i + 1 - window) : i + 1]) for i in range(len(y))]
    best = max(range(len(means)), key=lambda i: means[i] if math.isfinite(means[i]) else -math.inf)
    return Trail(name, steps, x, y, best)


def _reward_against_kl(trails: list[Trail], limits: Limits) -> Chart:
    return _paths(
        "Reward against KL, by step",
        "reward",
        f"The tether plot: training reward (y) at the summed k1 of the same step (x), joined in the order of the steps; a good run goes up "
        f"faster than right. Circled: the step at which the mean reward of the last {_WINDOW} steps was highest. It is the reward that is "
        "optimised: whether the answers are better, the held-out score says.",
        trails,
        limits,
        x_label=_KL,
        words=("reward", "KL"),
    )


def _panel_charts(run: RunRecord, limits: Limits) -> Iterator[Chart]:
    """What the held-out panel of the checks said while the stage trained; nothing without looks that have an independent score."""
    unit = str(nested(run.config, "checks", "score") or nested(run.config, "evaluate", "score") or "score")
    stages = [(stage, {name: dict(points) for name, points in stage.looks.items()}) for stage in run.rl_stages]
    pairs = {key: [t for stage, looks in stages if (t := _trail(stage.short, looks.get(key, {}), stage.looks.get("score", ()), 1))]
             for key in ("proxy", "kl_sequence")}  # fmt: skip
    if pairs["proxy"]:
        yield _paths(
            "Gold against proxy, by step",
            score_meaning(unit),
            "Independent score (y) at the training reward (x) of the same look at the held-out panel. Up and to the right: both rise. "
            "To the right and down: the reward rises at the cost of what it stands for.",
            pairs["proxy"],
            limits,
            x_label="training reward on the panel",
            words=("score", "reward"),
        )
    if pairs["kl_sequence"]:
        yield _paths(
            "Independent score against KL, by step",
            score_meaning(unit),
            "Independent score (y) of each look at the held-out panel at its KL (x). Circled: the look with the highest score.",
            pairs["kl_sequence"],
            limits,
            x_label=_KL,
            words=("score", "KL"),
        )


def _paths(title: str, unit: str, meaning: str, trails: list[Trail], limits: Limits, *, x_label: str, words: tuple[str, str]) -> Chart:
    """Stages as paths; ``words``: what y and x are called when a point is pointed at."""
    return chart(
        title,
        unit,
        meaning,
        {trail.name: tuple(zip(trail.x, trail.y, strict=True)) for trail in trails},
        x_label=x_label,
        most_points=limits.points,
        callouts=[callout for index, trail in enumerate(trails) for callout in _callouts(trail, index)],
        names={trail.name: _named(trail, *words) for trail in trails},
    )


def _named(trail: Trail, y_word: str, x_word: str) -> list[str]:
    told = zip(trail.steps, trail.x, trail.y, strict=True)
    return [f"{trail.name}, step {step}: {y_word} {number(y)} at {x_word} {number(x)}" for step, x, y in told]


def _callouts(trail: Trail, colour: int) -> Iterator[Callout]:
    """The first, the best and the last step by their numbers; the best one is circled and wins over the others."""
    labels = {index: f"step {trail.steps[index]}" for index in (0, len(trail.steps) - 1)}
    labels[trail.best] = f"best: step {trail.steps[trail.best]}"
    for index, label in labels.items():
        yield Callout(trail.x[index], trail.y[index], label, index == trail.best, colour % 8)


def _score_against_kl(run: RunRecord) -> Chart:
    assert run.evaluation is not None
    start, *trained = run.evaluation.policies  # the start last, so that stages keep their colours
    return chart(
        "Held-out score against KL",
        score_meaning(start.score),
        "Independent score (y) of each policy at its distance from the reference (x), on held-out prompts.",
        {policy.name: ((policy.kl_sequence, policy.mean),) for policy in (*trained, start)},
        x_label=_KL,
        scatter=True,
    )


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
