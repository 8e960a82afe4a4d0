"""Does a recipe improve its held-out score for every seed, and does a larger beta hold the policy nearer?

    python -m bench.seeds recipes/grpo-arithmetic.toml --seeds 0 1 2 [--beta 0.02 0.2] [key.path=value ...]

Runs the recipe once per (seed, beta), reuses finished runs, and prints one Markdown table: held-out score before and after, the paired
gain with its bootstrap interval, KL(policy || reference) on held-out answers in nats per token and per sequence, and wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from tether.config import RunConfig, load_config
from tether.events import read_events

_HEADER = (
    "| run | stage | before | after | gain [95 % interval] | excludes 0 | KL nats/token | KL nats/sequence | minutes |\n"
    "|---|---|--:|--:|---|---|--:|--:|--:|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, then print the table; exit code 1 when some gain does not exclude zero."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--beta", type=float, nargs="*", default=[])
    parser.add_argument("--output", default="runs/seeds")
    # By their "=", wherever they stand: after `--seeds 0 1` or `--beta 0.2` argparse would read them as one more number.
    given = list(sys.argv[1:] if arguments is None else arguments)
    overrides = [word for word in given if "=" in word and not word.startswith("-")]
    options = parser.parse_args([word for word in given if word not in overrides])
    options.overrides = overrides
    print(_HEADER, flush=True)
    improved = True
    for overrides in _variants(options):
        config = load_config(options.recipe, overrides)
        if not (config.folder / "evaluation.json").exists():
            subprocess.run([sys.executable, "-m", "tether", "run", options.recipe, *overrides], check=True, stdout=sys.stderr)
        for row, gains in _rows(config):
            print(row, flush=True)
            improved &= gains
    return 0 if improved else 1


def _variants(options: argparse.Namespace) -> Iterator[list[str]]:
    base = load_config(options.recipe, options.overrides)
    for seed in options.seeds:
        for beta in options.beta or [None]:
            name = f"{base.name}-seed{seed}" + ("" if beta is None else f"-beta{beta:g}")
            tether = [] if beta is None else [f"rl.{stage}.kl.beta={beta}" for stage in base.rl]
            yield [*options.overrides, f"seed={seed}", f"name={name}", f"output={options.output}", *tether]


def _rows(config: RunConfig) -> Iterator[tuple[str, bool]]:
    evaluation = json.loads((config.folder / "evaluation.json").read_text())
    policies = {policy["name"]: policy for policy in evaluation["policies"]}
    minutes = _minutes(config.folder)
    for gain in evaluation["gains"]:
        before, after = policies[gain["before"]], policies[gain["after"]]
        cells = [
            config.name, gain["after"], f"{before['mean']:.3f}", f"{after['mean']:.3f}",
            f"{gain['difference']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]", "yes" if gain["excludes_zero"] else "NO",
            f"{after['kl_token_mean_nats']:.4f}", f"{after['kl_sequence_sum_nats']:.3f}", f"{minutes:.1f}",
        ]  # fmt: skip
        yield "| " + " | ".join(cells) + " |", gain["low"] > 0


def _minutes(folder: Path) -> float:
    times = [datetime.fromisoformat(event["time"]) for event in read_events(folder / "events.jsonl")]
    return (times[-1] - times[0]).total_seconds() / 60


if __name__ == "__main__":
    sys.exit(main())
