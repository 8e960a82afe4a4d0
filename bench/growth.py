"""Does the time of a GRPO step grow with its tokens and no faster, and does its memory stay?

    python -m bench.growth [--steps 2] [--tokens 32 64 128 256 512] [--groups 2 4 8 16 32] [--json]

Two prompts, SmolLM2, beta > 0, answers of forced length (no token ends one). First the answers grow (2 x 4 of them), then the groups (64
tokens each). Every point is a process of its own, so that its peak memory is its own; seconds are those of the fastest step after the
first. Exponents are slopes of least squares on log seconds against log tokens that pass through the model: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bench.peers.texts import SILENT_TOKEN

_PROMPTS = ("What is the difference between steam and smoke?", "Why does metal feel cold to the touch?")
_PHASES = ("generate_seconds", "annotate_seconds", "update_seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every point and print two tables, or be one point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2, help="steps that are timed, after one that is not")
    parser.add_argument("--tokens", type=int, nargs="*", default=[32, 64, 128, 256, 512], help="tokens of an answer, groups of 4")
    parser.add_argument("--groups", type=int, nargs="*", default=[2, 4, 8, 16, 32], help="answers to a prompt, of 64 tokens")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--point", type=int, nargs=2, metavar=("TOKENS", "GROUP"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps: expected at least 1, got {options.steps}")
    if options.point:
        tokens, group = options.point
        print(json.dumps(_point(tokens, group, options.steps)))
        return 0
    series = {
        "tokens of an answer": [_measure(tokens, 4, options.steps) for tokens in options.tokens],
        "answers to a prompt": [_measure(64, group, options.steps) for group in options.groups],
    }
    if options.json:
        print(json.dumps(series))
        return 0
    for name, points in series.items():
        print(_table(name, points), flush=True)
    return 0


def _measure(tokens: int, group: int, steps: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.growth", "--point", str(tokens), str(group), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _point(tokens: int, group: int, steps: int) -> dict[str, float]:
    import tether
    from tether.models.resolve import resolve_model
    from tether.rollout.local import LocalSampler
    from tether.run.observer import Quiet

    seen: list[dict[str, float]] = []

    class Keep(Quiet):
        def step(self, stage: str, step: int, metrics: Any) -> None:
            seen.append(dict(metrics))

    generate = LocalSampler.generate

    def without_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.eos_ids = frozenset([SILENT_TOKEN])
        return generate(self, *args, **kwargs)

    LocalSampler.generate = without_end
    policy = tether.Policy.load(resolve_model("smollm2"))
    prompts = [(tether.Message("user", text),) for text in _PROMPTS]
    tether.grpo(
        policy, prompts, lambda prompt, answer: float(len(answer) % 7), observer=Keep(), steps=steps + 1, prompts_per_step=2,
        samples_per_prompt=group, sampling={"max_new_tokens": tokens}, optim={"learning_rate": 1e-6},
        kl={"where": "loss", "estimator": "k3_corrected", "beta": 0.05},
    )  # fmt: skip
    prompt_tokens = sum(len(policy.format.prompt_ids(prompt)) for prompt in prompts)
    best = min(seen[1:], key=lambda metrics: sum(metrics[phase] for phase in _PHASES))
    return {
        "answer_tokens": tokens,
        "group": group,
        "tokens": prompt_tokens + 2 * group * tokens,
        **{phase: best[phase] for phase in _PHASES},
        "seconds": sum(best[phase] for phase in _PHASES),
        "peak_mib": _peak_mib(),
    }


def _peak_mib() -> float:
    with open("/proc/self/status") as file:
        found = re.search(r"VmHWM:\s+(\d+)", file.read())
    assert found is not None
    return int(found.group(1)) / 1024


def _table(name: str, points: Sequence[dict[str, float]]) -> str:
    key = "answer_tokens" if name.startswith("tokens") else "group"
    columns = (name, "tokens through the model", "generate s", "reference s", "update s", "step s", "ms per token", "peak MiB")
    lines = [f"| {' | '.join(columns)} |", "|--:" * len(columns) + "|"]
    for p in points:
        seconds = " | ".join(f"{p[phase]:.2f}" for phase in (*_PHASES, "seconds"))
        lines.append(f"| {p[key]:.0f} | {p['tokens']:.0f} | {seconds} | {1000 * p['seconds'] / p['tokens']:.1f} | {p['peak_mib']:.0f} |")
    named = zip(("generate", "reference", "update", "step"), (*_PHASES, "seconds"), strict=True)
    slopes = ", ".join(f"{name} {_slope(points, phase):.2f}" for name, phase in named)
    return "\n".join([*lines, "", f"Exponent of seconds in tokens: {slopes}.", ""])


def _slope(points: Sequence[dict[str, float]], phase: str) -> float:
    x, y = ([math.log(p[name]) for p in points] for name in ("tokens", phase))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


if __name__ == "__main__":
    raise SystemExit(main())
