"""Every metric of a run as a chart, with its unit, meaning and healthy band from the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tether.metrics import UnknownMetricError, describe
from tether.report.charts import Chart, chart, number
from tether.report.limits import Limits
from tether.report.read import RunRecord, StageRecord
from tether.report.words import band

__all__ = ["LOOKS", "Family", "families"]

_GROUPS = ("Reward", "KL to the reference", "Update", "Texts", "Time")
_REWARD = {
    "reward",
    "reward_std",
    "reward_with_kl",
    "failure_share",
    "unscored_share",
    "filtered_group_share",
    "sampled_batches",
    "baseline_reward",
    "dead_group_share",
    "pair_accuracy",
    "pair_margin",
    "implied_reward_chosen",
    "implied_reward_rejected",
    "implied_margin",
    "implied_accuracy",
    "chosen_logprob",
    "rejected_logprob",
    "tie_share",
    "pair_gap",
    "score_mean",
}
_TEXTS = {"response_length", "response_length_max", "truncated_share", "distinct_share", "repeat_share"}


@dataclass(frozen=True, slots=True)
class Family:
    """Charts of stages of one kind, by group of metrics; stages of one family share a chart."""

    title: str
    groups: tuple[tuple[str, tuple[Chart, ...]], ...]


def families(run: RunRecord, limits: Limits) -> Iterator[Family]:
    """Online stages share their charts, so that they can be compared, and so do direct ones; every other stage has its own."""
    shared = {"online stages": run.rl_stages, "direct preference stages": run.direct_stages}
    found = [(f"{title}: {', '.join(s.short for s in stages)}", stages) for title, stages in shared.items()]
    found += [(stage.name, (stage,)) for stage in run.stages if not any(stage in stages for stages in shared.values())]
    for stage in run.rl_stages:
        if stage.looks:
            looks = tuple(_look_chart(name, points, stage.bands.get(name), limits) for name, points in stage.looks.items())
            yield Family(f"{stage.short}: looks at the held-out panel", (("Panel", looks),))
    for title, stages in found:
        charts: dict[str, list[Chart]] = {group: [] for group in _GROUPS}
        for metric in dict.fromkeys(name for stage in stages for name in stage.curves):
            charts[_group_of(metric)].append(_metric_chart(metric, stages, limits))
        if any(charts.values()):
            yield Family(title, tuple((group, tuple(drawn)) for group, drawn in charts.items() if drawn))


LOOKS = {
    "proxy": ("reward", "Training reward on the panel."),
    "score": ("score", "Independent score on the panel."),
    "length": ("tokens", "Mean length of the answers."),
    "length_p10": ("tokens", "Length that one answer in ten stays below."),
    "length_p50": ("tokens", "Median length of the answers."),
    "length_p90": ("tokens", "Length that nine answers in ten stay below."),
    "entropy": ("nats per token", "Entropy of the policy on its answers."),
    "repeat": ("share", "Share of repeated trigrams inside an answer, mean over answers."),
    "pooled": ("share", "Share of the commonest trigram among those of all answers."),
    "distinct": ("share", "Share of distinct answers; low means mode collapse."),
    "kl_token": ("nats per token", "KL(policy || reference), k1, mean over tokens."),
    "kl_sequence": ("nats per sequence", "KL(policy || reference), k1, summed over the answer, mean over answers."),
    "eos": ("share", "Answers that ended by themselves."),
    "truncated": ("share", "Answers cut by the token budget."),
    "reward_length": ("correlation", "Correlation of reward and length over the answers."),
}
"""Unit and meaning of what a look at the panel says; the names are those of tether.run.checks.look, which a test pins."""


def _look_chart(name: str, points: Sequence[tuple[int, float]], found: tuple[float, float] | None, limits: Limits) -> Chart:
    unit, meaning = LOOKS.get(name, ("unknown unit", "Not known to this version of Tether."))
    chance = f" By chance alone the start would read {number(found[0])} to {number(found[1])}." if found else ""
    return chart(name, unit, f"{meaning} Step 0: before training.{chance}", {"panel": points}, most_points=limits.points)


def _metric_chart(metric: str, stages: Sequence[StageRecord], limits: Limits) -> Chart:
    try:
        entry = describe(metric)
        unit, meaning, healthy = (
            "" if entry.unit == "1" else entry.unit,
            f"{entry.meaning} {_measured(entry.mask, entry.aggregation)}".rstrip(),
            band(entry.healthy),
        )
    except UnknownMetricError:
        unit, meaning, healthy = "unknown unit", "Not in the metric registry of this version of Tether.", ""
    series = {stage.short: stage.curves.get(metric, ()) for stage in stages}
    return chart(metric, unit, meaning, series, healthy=healthy, most_points=limits.points)


def _measured(mask: str, aggregation: str) -> str:
    """Example: "response tokens", "mean over tokens" -> "Over: response tokens; mean over tokens."; "" where nothing is to be said."""
    if mask not in {"none", "see stage"}:
        return f"Over: {mask}; {aggregation}."
    return "" if aggregation == "value" else f"{aggregation[:1].upper()}{aggregation[1:]}."


def _group_of(metric: str) -> str:
    if metric in _REWARD or metric.startswith("reward/"):
        return "Reward"
    if metric.startswith("kl_") or metric == "beta":
        return "KL to the reference"
    if metric in _TEXTS:
        return "Texts"
    return "Time" if metric.endswith(("_seconds", "_per_second")) else "Update"
