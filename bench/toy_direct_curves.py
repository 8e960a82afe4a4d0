"""A measured curve for the pages of the direct preference losses: each kind on one toy set of comparisons, three seeds.

    OMP_NUM_THREADS=1 python -m bench.toy_direct_curves [--kinds dpo kto] [--seeds 0 1 2]

Task: the tiny model prefers answers of words in e to answers of words in o; 96 comparisons, a quarter of the prompts held out. Writes
docs/algorithms/img/KIND.svg and the table between the markers of docs/algorithms/README.md. Presets as in the configuration, one optimiser
setting for all: it shows that each works and what it does to the chosen answers, not which is best.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tether
from bench.toy_curves import draw_panels, spread, write_table
from tether.config.presets import DIRECT_TITLES
from tether.events import read_events
from tether.models.resolve import resolve_model

_FOLDER = Path(__file__).resolve().parents[1] / "docs" / "algorithms"
_MARKERS = ("<!-- measured: python -m bench.toy_direct_curves -->", "<!-- end of measured direct -->")
_GOOD = ("bee", "tree", "ease", "sea", "green", "eel", "tea", "week")
_BAD = ("fog", "moon", "color", "dog", "solo", "root", "boot", "odd")


@dataclass(frozen=True)
class Course:
    """One seed: per step the margin of implied rewards and the change of the chosen answers (nats per sequence), and the held-out end."""

    margin: tuple[float, ...]
    chosen: tuple[float, ...]
    accuracy: float
    chosen_end: float
    rejected_end: float


def comparisons(seed: int) -> list[dict[str, str]]:
    """96 pairs over 24 prompts; the better answer is of words in e."""
    draws = random.Random(seed)
    answers = [(" ".join(draws.sample(_GOOD, 3)), " ".join(draws.sample(_BAD, 3))) for _ in range(96)]
    return [{"prompt": f"Say {index % 24}.", "chosen": good, "rejected": bad} for index, (good, bad) in enumerate(answers)]


def train(kind: str, seed: int) -> Course:
    """One run of a kind from the tiny model."""
    policy = tether.Policy.load(resolve_model("tiny"))
    settings = {
        "epochs": 4,
        "batch_size": 8,
        "held_out_share": 0.25,
        "optim": {"learning_rate": 1e-3},
        "compute": {"dtype": "float32", "threads": 1, "device": "cpu"},
    }
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "events.jsonl"
        rows = comparisons(seed)
        if kind == "kto":
            answers = [(row["prompt"], row[side], side == "chosen") for row in rows for side in ("chosen", "rejected")]
            rows = [{"prompt": prompt, "completion": text, "label": liked} for prompt, text, liked in answers]
        result = tether.dpo(policy, rows, kind=kind, seed=seed, log=log, **settings)
        steps = [event["metrics"] for event in read_events(log) if event["kind"] == "step"]
    held = result.held_out
    assert held is not None
    kept = [m for m in steps if "implied_margin" in m and "chosen_logprob" in m]  # a step of KTO may have one label only
    margins, chosen = tuple(m["implied_margin"] for m in kept), tuple(m["chosen_logprob"] for m in kept)
    return Course(margins, chosen, held.accuracy, held.chosen_change, held.rejected_change)


def draw(kind: str, courses: Sequence[Course]) -> str:
    """Two charts side by side: the margin and the chosen answers, by optimiser step."""
    shortest = min(len(course.margin) for course in courses)
    panels = (
        ("margin of implied rewards", "score", [course.margin[:shortest] for course in courses]),
        ("chosen log-probability", "nats per sequence against the start", [course.chosen[:shortest] for course in courses]),
    )
    return draw_panels(f"{DIRECT_TITLES[kind][0]} on toy comparisons, {len(courses)} seeds", panels, "step")


def table(results: Mapping[str, Sequence[Course]]) -> str:
    """Held-out pairs after training, mean over seeds with the lowest and the highest."""
    lines = [
        "| kind | held-out accuracy of implied rewards | chosen, nats per sequence | rejected, nats per sequence |",
        "|---|--:|--:|--:|",
    ]
    for kind, courses in results.items():
        cells = (spread([getattr(c, name) for c in courses]) for name in ("accuracy", "chosen_end", "rejected_end"))
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, draw, and write the table when all kinds were run; exit code 1 when a kind does not rank held-out pairs for every seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=list(DIRECT_TITLES), choices=list(DIRECT_TITLES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    results: dict[str, list[Course]] = {}
    for kind in options.kinds:
        results[kind] = [train(kind, seed) for seed in options.seeds]
        (_FOLDER / "img" / f"{kind}.svg").write_text(draw(kind, results[kind]), encoding="utf-8")
        print(table({kind: results[kind]}).splitlines()[-1], flush=True)
    if list(results) == list(DIRECT_TITLES):
        write_table(_FOLDER / "README.md", table(results), _MARKERS)
    return 0 if all(statistics.fmean([c.accuracy for c in courses]) > 0.9 for courses in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
