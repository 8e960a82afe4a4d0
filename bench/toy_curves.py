"""A measured curve for every page of docs/algorithms: each preset on one toy task, three seeds, the same number of answers per round.

    OMP_NUM_THREADS=1 python -m bench.toy_curves [--kinds grpo rloo] [--seeds 0 1 2] [--steps 30]

Task: the tiny model answers four prompts with up to four tokens; the reward is the share of tokens in the lower half of the vocabulary.
Writes docs/algorithms/img/KIND.svg and the table between the markers of docs/algorithms/README.md. The presets are as they are in
the configuration; the optimiser is the same for all. It shows that each works, not which is best: no preset was tuned for the task.
"""

from __future__ import annotations

import argparse
import html
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tether
from tether.config import rl_kind
from tether.config.presets import ACTOR_CRITIC, CRITIC_FREE, TITLES
from tether.events import read_events
from tether.models.resolve import resolve_model
from tether.report.charts import HEIGHT, WIDTH, Chart, chart
from tether.types import Rollout, Score

_FOLDER = Path(__file__).resolve().parents[1] / "docs" / "algorithms"
_BEGIN, _END = "<!-- measured: python -m bench.toy_curves -->", "<!-- end of measured -->"
_ANSWERS = 32  # per round
_BUDGET = 4  # tokens
_LAST = 5  # rounds that the table averages
_PROMPTS = ("one", "two", "three", "four")
_COLOURS = {"mean": "#1f5fa8", "seed": "#9dbfe3"}


@dataclass(frozen=True)
class LowerHalf:
    """Share of an answer's tokens whose id lies in the lower half of the tiny model's vocabulary."""

    name: str = "lower"

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        ids = [rollout.completion.token_ids for rollout in rollouts]
        return [Score(sum(token < 192 for token in row) / len(row)) for row in ids]


@dataclass(frozen=True)
class Curve:
    """One seed: the reward part and KL(policy || reference) in nats per token of each round, and the answers sampled in all."""

    reward: tuple[float, ...]
    kl: tuple[float, ...]
    answers: int


def train(kind: str, seed: int, steps: int) -> Curve:
    """One run of a preset from the tiny model."""
    samples = _samples_per_prompt(kind)
    settings = {
        "steps": steps,
        "samples_per_prompt": samples,
        "prompts_per_step": _ANSWERS // samples,
        "minibatches": 2,  # the second is off policy, so that surrogates differ
        "sampling": {"max_new_tokens": _BUDGET},
        "optim": {"learning_rate": 1e-2},
        "compute": {"dtype": "float32", "threads": 1, "device": "cpu"},
    }
    policy = tether.Policy.load(resolve_model("tiny"))
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "events.jsonl"
        tether.rl(policy, _PROMPTS, [LowerHalf()], algorithm=kind, seed=seed, log=log, **settings)
        rounds = [event["metrics"] for event in read_events(log) if event["kind"] == "step"]
    asked = sum(_ANSWERS * r.get("sampled_batches", 1) + (len(_PROMPTS) if "baseline_reward" in r else 0) for r in rounds)
    return Curve(tuple(r["reward/lower"] for r in rounds), tuple(r["kl_k1_token"] for r in rounds), int(asked))


def _samples_per_prompt(kind: str) -> int:
    config = rl_kind(kind).model_validate({"kind": kind, "prompts": {"path": "-"}, "rewards": [{"kind": "format"}]})
    return config.samples_per_prompt


def draw(kind: str, curves: Sequence[Curve]) -> str:
    """Two charts side by side, reward and KL by round: thin lines are seeds, the thick one their mean."""
    panels = (
        ("reward", "share of tokens", [curve.reward for curve in curves]),
        ("KL(policy || reference)", "nats per token, k1", [curve.kl for curve in curves]),
    )
    return draw_panels(f"{TITLES[kind][0]} on the toy task, {len(curves)} seeds", panels, "round")


def draw_panels(title: str, panels: Sequence[tuple[str, str, Sequence[Sequence[float]]]], x_label: str) -> str:
    """Charts side by side as one SVG; each is (name, unit, one series per seed)."""
    charts = [_chart(name, unit, series, x_label) for name, unit, series in panels]
    body = "".join(_panel(panel, WIDTH * number) for number, panel in enumerate(charts))
    width = len(charts) * WIDTH
    size = f'width="{width:g}" height="{HEIGHT + 26:g}" viewBox="0 0 {width:g} {HEIGHT + 26:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="11" fill="#333">\n'
        f"<title>{html.escape(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}</svg>\n'
    )


def _chart(name: str, unit: str, series: Sequence[Sequence[float]], x_label: str) -> Chart:
    mean = [statistics.fmean(values) for values in zip(*series, strict=True)]
    lines = {f"seed {number}": values for number, values in enumerate(series)} | {"mean": mean}
    return chart(name, unit, "", {name: list(enumerate(values, start=1)) for name, values in lines.items()}, x_label=x_label)


def _panel(panel: Chart, left: float) -> str:
    parts = [f'<text x="52" y="14" font-weight="bold">{html.escape(panel.title)}, {html.escape(panel.unit)}</text>']
    top = 22
    for x, label in panel.x_ticks:
        parts.append(f'<text x="{x:g}" y="{top + HEIGHT - 16:g}" text-anchor="middle">{label}</text>')
    for y, label in panel.y_ticks:
        parts.append(f'<path d="M52 {top + y:g}H{WIDTH - 8:g}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="47" y="{top + y + 4:g}" text-anchor="end">{label}</text>')
    for line in panel.lines:
        mean = line.name == "mean"
        stroke = f'stroke="{_COLOURS["mean" if mean else "seed"]}" stroke-width="{2.2 if mean else 1.1}"'
        parts.append(f'<path transform="translate(0 {top})" d="{line.path}" fill="none" {stroke}/>')
    parts.append(f'<text x="{WIDTH / 2:g}" y="{top + HEIGHT - 1:g}" text-anchor="middle">{panel.x_label}</text>')
    return f'<g transform="translate({left:g} 0)">\n' + "\n".join(parts) + "\n</g>\n"


def table(results: Mapping[str, Sequence[Curve]], steps: int) -> str:
    """First and last rounds of every preset: mean over seeds, with the lowest and the highest seed."""
    lines = [
        f"| kind | reward, round 1 | reward, last {_LAST} of {steps} rounds | KL, last {_LAST} rounds (nats per token) | answers sampled |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind, curves in results.items():
        start = statistics.fmean(curve.reward[0] for curve in curves)
        end = spread([statistics.fmean(curve.reward[-_LAST:]) for curve in curves])
        kl = spread([statistics.fmean(curve.kl[-_LAST:]) for curve in curves])
        lines.append(f"| [{kind}]({kind}.md) | {start:.2f} | {end} | {kl} | {statistics.fmean(c.answers for c in curves):.0f} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean [lowest, highest]."""
    return f"{statistics.fmean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def write_table(page: Path, text: str, markers: tuple[str, str] = (_BEGIN, _END)) -> None:
    """Replace what stands between the markers."""
    begin, end = markers
    head, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{page} lacks the markers {begin} and {end}")
    page.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, draw, and write the table when all kinds were run; exit code 1 when a reward did not rise for every seed."""
    kinds = [*ACTOR_CRITIC, *CRITIC_FREE, "online_dpo"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args(arguments)
    results: dict[str, list[Curve]] = {}
    for kind in options.kinds:
        results[kind] = [train(kind, seed, options.steps) for seed in options.seeds]
        (_FOLDER / "img").mkdir(parents=True, exist_ok=True)
        (_FOLDER / "img" / f"{kind}.svg").write_text(draw(kind, results[kind]), encoding="utf-8")
        print(table({kind: results[kind]}, options.steps).splitlines()[-1], flush=True)
    if list(results) == kinds:
        write_table(_FOLDER / "README.md", table(results, options.steps))
    risen = [math.fsum(c.reward[-_LAST:]) / _LAST > c.reward[0] + 0.1 for curves in results.values() for c in curves]
    return 0 if all(risen) else 1


if __name__ == "__main__":
    sys.exit(main())
