"""One self-contained HTML file: no request leaves it, and nothing a model wrote can become markup or script.

Every value goes through Jinja2's autoescape; the only trusted text is our own page.css and page.js, and the
Content-Security-Policy of the page admits nothing but their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tether.errors import RunError
from tether.files import write_atomic
from tether.metrics import UnknownMetricError, describe
from tether.report.charts import HEIGHT, WIDTH, Chart, chart, number
from tether.report.read import RunRecord, Sample, StageRecord, read_run
from tether.report.words import POLICY_COLUMNS, band, hashes, policy_rows, score_meaning, summary

__all__ = ["LARGEST_PAGE", "render", "write_report"]

LARGEST_PAGE = 5 * 10**6  # bytes

_MOST_MESSAGES = 50  # the latest are shown
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
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]"
)  # not allowed in HTML, or not encodable


@dataclass(frozen=True, slots=True)
class _Limits:
    """How much is shown: held-out prompts, training samples per stage, characters per text, points per
    curve.
    """

    prompts: int
    samples: int
    characters: int
    points: int


# Tried in turn until the page is small enough.
_LIMITS = (
    _Limits(400, 60, 4000, 240),
    _Limits(200, 40, 1500, 160),
    _Limits(60, 20, 800, 80),
    _Limits(15, 6, 300, 40),
    _Limits(3, 2, 100, 16),
)


@dataclass(frozen=True, slots=True)
class _Family:
    """Charts of stages of one kind, by group of metrics; stages of one family share a chart."""

    title: str
    groups: tuple[tuple[str, tuple[Chart, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A text as shown: cut to the limit, with what was left out in words."""

    name: str
    text: str
    note: str


@dataclass(frozen=True, slots=True)
class _SampleRow:
    """One prompt with its answers side by side."""

    prompt: _Answer
    answers: tuple[_Answer, ...]


def write_report(folder: str | Path) -> Path:
    """Read the run in ``folder`` and write ``folder/report.html``, whole or not at all. Raises RunError
    where there is no run, or no report may be written.
    """
    target = Path(folder) / "report.html"
    page = render(read_run(folder))
    try:
        write_atomic(target, page)
    except OSError as error:
        raise RunError(f"{target} cannot be written ({error.strerror or error}); make room, or allow writing there") from error
    return target


def render(run: RunRecord) -> str:
    """The page. Long runs show fewer texts and points, so that it stays under ``LARGEST_PAGE`` bytes."""
    page = ""
    for limits in _LIMITS:
        page = _render(run, limits)
        if len(page.encode("utf-8")) <= LARGEST_PAGE:
            break
    return page


def _render(run: RunRecord, limits: _Limits) -> str:
    environment = Environment(
        loader=PackageLoader("tether.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    files = resources.files("tether.report") / "templates"
    css, script = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    page = environment.get_template("page.html").render(
        run=run,
        css=Markup(css),
        script=Markup(script),
        policy=_policy(css, script),
        width=WIDTH,
        height=HEIGHT,
        summary=summary(run),
        columns=POLICY_COLUMNS,
        policies=policy_rows(run),
        families=list(_families(run, limits)),
        tradeoffs=list(_tradeoffs(run, limits)),
        held_out=_held_out(run, limits),
        training=list(_training(run, limits)),
        hashes=hashes(run),
        config=_cut(_pretty(run.config), 50 * limits.characters).text,
        environment=list(_flat(run.environment)),
        messages=[_cut(text, limits.characters).text for text in run.messages[-_MOST_MESSAGES:]],
        earlier=max(0, len(run.messages) - _MOST_MESSAGES),
    )
    return _UNSAFE.sub("\ufffd", page)


def _policy(css: str, script: str) -> str:
    """Content-Security-Policy: nothing is loaded, and only our own inline style and script run."""

    def allowed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    own = f"style-src {allowed(css)}; script-src {allowed(script)}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


# -- curves ----------------------------------------------------------------------------------------


def _families(run: RunRecord, limits: _Limits) -> Iterator[_Family]:
    """Online stages share their charts, so that they can be compared, and so do direct ones; every other stage has its own."""
    shared = {"direct preference stages": run.direct_stages, "online stages": run.rl_stages}
    families = [(stage.name, (stage,)) for stage in run.stages if not any(stage in stages for stages in shared.values())]
    families += [(f"{title}: {', '.join(_short(s) for s in stages)}", stages) for title, stages in shared.items()]
    for title, stages in families:
        charts: dict[str, list[Chart]] = {group: [] for group in _GROUPS}
        for metric in dict.fromkeys(name for stage in stages for name in stage.curves):
            charts[_group_of(metric)].append(_metric_chart(metric, stages, limits))
        if any(charts.values()):
            yield _Family(title, tuple((group, tuple(found)) for group, found in charts.items() if found))


def _metric_chart(metric: str, stages: Sequence[StageRecord], limits: _Limits) -> Chart:
    try:
        entry = describe(metric)
        unit, meaning, healthy = (
            "" if entry.unit == "1" else entry.unit,
            f"{entry.meaning} {_measured(entry.mask, entry.aggregation)}".rstrip(),
            band(entry.healthy),
        )
    except UnknownMetricError:
        unit, meaning, healthy = "unknown unit", "Not in the metric registry of this version of Tether.", ""
    series = {_short(stage): stage.curves.get(metric, ()) for stage in stages}
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


def _tradeoffs(run: RunRecord, limits: _Limits) -> Iterator[Chart]:
    """What was gained for how much distance from the reference."""
    training = {
        _short(stage): _against_kl(stage) for stage in run.rl_stages if "kl_k1_sequence" in stage.curves
    }
    if training:
        yield chart(
            "Reward against KL, step by step",
            "reward",
            "Training reward (y) at the summed k1 of the same step (x); a good run goes up "
            "faster than right.",
            training,
            x_label="KL(policy || reference), nats per sequence",
            most_points=limits.points,
        )
    if run.evaluation and len(run.evaluation.policies) > 1:
        start, *trained = run.evaluation.policies  # the start last, so that stages keep their colours
        points = {policy.name: ((policy.kl_sequence, policy.mean),) for policy in (*trained, start)}
        yield chart(
            "Held-out score against KL",
            score_meaning(run.evaluation.policies[0].score),
            "Independent score (y) of each policy at its "
            "distance from the reference (x), on held-out prompts.",
            points,
            x_label="KL(policy || reference), nats per sequence",
            scatter=True,
        )


def _against_kl(stage: StageRecord) -> tuple[tuple[float, float], ...]:
    kl = dict(stage.curves["kl_k1_sequence"])
    return tuple((kl[step], reward) for step, reward in stage.curves.get("reward", ()) if step in kl)


# -- texts -----------------------------------------------------------------------------------------


def _held_out(run: RunRecord, limits: _Limits) -> list[_SampleRow]:
    """Held-out prompts with the answers of every policy side by side, the start first."""
    policies = run.evaluation.policies if run.evaluation else ()
    rows = zip_longest(*(policy.samples for policy in policies))
    return [
        _held_out_row([policy.name for policy in policies], row, limits)
        for row in list(rows)[: limits.prompts]
    ]


def _held_out_row(names: Sequence[str], row: Sequence[Sample | None], limits: _Limits) -> _SampleRow:
    prompt = next(sample.prompt for sample in row if sample is not None)
    answers = [
        _answer(name, sample, "score", limits)
        for name, sample in zip(names, row, strict=True)
        if sample is not None
    ]
    return _SampleRow(_cut(prompt, limits.characters), tuple(answers))


def _training(run: RunRecord, limits: _Limits) -> Iterator[tuple[str, list[_SampleRow]]]:
    """Per stage, samples of evenly spaced steps, the first and the last included."""
    for stage in run.stages:
        steps = sorted({sample.step for sample in stage.samples})
        most = max(limits.samples // 3, 2)
        kept = (
            {steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)}
            if len(steps) > most
            else set(steps)
        )
        chosen = [sample for sample in stage.samples if sample.step in kept][: limits.samples]
        if chosen:
            yield (
                stage.name,
                [
                    _SampleRow(
                        _cut(s.prompt, limits.characters), (_answer(f"step {s.step}", s, "reward", limits),)
                    )
                    for s in chosen
                ],
            )


def _answer(name: str, sample: Sample, what: str, limits: _Limits) -> _Answer:
    cut = _cut(sample.completion, limits.characters)
    ending = {"length": "cut by the token budget", "stop": "ended by itself"}.get(
        sample.stop_reason, sample.stop_reason
    )
    return _Answer(
        name,
        cut.text,
        "; ".join(part for part in (f"{what} {number(sample.score)}", ending, cut.note) if part),
    )


def _cut(text: str, characters: int) -> _Answer:
    left_out = len(text) - characters
    return (
        _Answer("", text, "")
        if left_out <= 0
        else _Answer("", text[:characters] + " …", f"{left_out} more characters not shown")
    )


# -- small pieces ----------------------------------------------------------------------------------


def _pretty(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False) if config else ""


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in list(value.items())[:100]:
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, "unknown" if value is None else _cut(str(value), 500).text


def _short(stage: StageRecord) -> str:
    return stage.name.removeprefix("rl.").removeprefix("direct.")
