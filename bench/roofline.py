"""What this machine could do at best: rates of matrix products at the model's shapes, rate of reading memory, and floors that follow.

    python -m bench.roofline [--model DIR] [--seconds 0.4] [--json]

A product counts 2 M K N operations. The roof of a phase is the larger of its operations over the best rate that any shape reached, and of
the bytes that it must read over the rate of reading. The floor of a phase at that roof, over the measured time, is its share.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tether.plan.model import Dims, dims_of

__all__ = ["Roof", "forward_flop", "generate_floor_s", "linear_weights", "main", "measure", "read_dims", "update_floor_s"]

_BF16, _FP32 = 2, 4  # bytes
_HOPELESS = 0.25  # of the other precision at a few rows: one that is slower is not measured at more


@dataclass(frozen=True)
class Roof:
    """Best rates: products in TFLOP/s, reading in GB/s; ``shapes``: the rate of every shape. Floors are those of the quicker precision."""

    bf16_tflops: float
    fp32_tflops: float
    read_gbs: float
    copy_gbs: float
    shapes: dict[str, float]

    @property
    def flops(self) -> float:
        """Operations a second in the quicker precision."""
        return max(self.bf16_tflops, self.fp32_tflops) * 1e12

    @property
    def number_bytes(self) -> int:
        """Of a number in it."""
        return _BF16 if self.bf16_tflops > self.fp32_tflops else _FP32


def read_dims(folder: Path) -> Dims:
    """Of the model in that folder. Raises ValueError where its files do not tell."""
    if (dims := dims_of(folder)) is None:
        raise ValueError(f"{folder} holds no decoder of known sizes: expected config.json and safetensors of a Llama-like model")
    return dims


def linear_weights(dims: Dims) -> int:
    """Of all layers, without norms, embedding and head."""
    attention = dims.hidden * dims.head_size * (2 * dims.heads + 2 * dims.kv_heads)
    return dims.layers * (attention + 3 * dims.hidden * dims.intermediate)


def forward_flop(dims: Dims, tokens: int, heads: int, context: float) -> float:
    """Operations of a forward pass: ``tokens`` positions that see ``context`` each on average, ``heads`` of them with logits."""
    attention = 4 * dims.layers * dims.heads * dims.head_size * context
    return tokens * (2 * linear_weights(dims) + attention) + heads * 2 * dims.embedding


def update_floor_s(dims: Dims, roof: Roof, prompts: int, samples: int, prompt_tokens: int, response_tokens: int) -> float:
    """Forward and backward of a group update (three forward passes' worth), each group's prompt counted once, logits at answers alone."""
    answers = prompts * samples * response_tokens
    forward = forward_flop(dims, prompts * prompt_tokens, 0, prompt_tokens / 2)
    forward += forward_flop(dims, answers, answers, prompt_tokens + response_tokens / 2)
    return 3 * forward / roof.flops


def generate_floor_s(dims: Dims, roof: Roof, prompts: int, samples: int, prompt_tokens: int, response_tokens: int) -> float:
    """One prompt pass, then a step a token: its products, or reading all weights, every prompt's keys and values once and each answer's."""
    rows = prompts * samples
    start = forward_flop(dims, prompts * prompt_tokens, rows, prompt_tokens / 2) / roof.flops
    weights = roof.number_bytes * (linear_weights(dims) + dims.embedding)
    position = roof.number_bytes * dims.cached_numbers
    total = start
    for step in range(1, response_tokens):
        flop = forward_flop(dims, rows, rows, prompt_tokens + step)
        read = weights + position * (prompts * prompt_tokens + rows * step)
        total += max(flop / roof.flops, read / (roof.read_gbs * 1e9))
    return total


def measure(dims: Dims, seconds: float = 0.4) -> Roof:
    """The rates of this machine now, each the best of repeats over ``seconds``. Takes about half a minute."""
    import torch

    torch.manual_seed(0)
    shapes: dict[str, float] = {}
    best = {"bf16": 0.0, "fp32": 0.0}
    with torch.inference_mode():
        for rows in (64, 1024, 2048, 8192):
            hopeful = [name for name in best if best[name] >= _HOPELESS * max(best.values())]
            for inner, outer in _products(dims):
                if rows * outer > 2**28:  # logits of a whole batch are never made at once
                    continue
                for name in hopeful:
                    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[name]
                    left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(outer, inner, dtype=dtype)
                    rate = 2 * rows * inner * outer / _fastest(_product(left, right), seconds) / 1e12
                    shapes[f"{name} {rows} x {inner} x {outer}"] = rate
                    best[name] = max(best[name], rate)
        line = torch.ones(2**28)  # 1 GiB, far outside every cache
        target = torch.empty_like(line)
        read = line.nbytes / _fastest(line.sum, 3 * seconds) / 1e9
        copy = 2 * line.nbytes / _fastest(lambda: target.copy_(line), 3 * seconds) / 1e9
    return Roof(best["bf16"], best["fp32"], read, copy, shapes)


def _products(dims: Dims) -> Sequence[tuple[int, int]]:
    """(inner, outer) of the model's linear layers, each once."""
    query, key = dims.heads * dims.head_size, dims.kv_heads * dims.head_size
    found = [(dims.hidden, query), (dims.hidden, key), (dims.hidden, dims.intermediate), (dims.intermediate, dims.hidden)]
    return list(dict.fromkeys([*found, (dims.hidden, dims.vocabulary)]))


def _product(left: Any, right: Any) -> Callable[[], Any]:
    from torch.nn.functional import linear

    return lambda: linear(left, right)


def _fastest(call: Callable[[], Any], seconds: float) -> float:
    call()
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache" / "tether" / "smollm2")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    roof = measure(read_dims(options.model), options.seconds)
    if options.json:
        print(json.dumps(asdict(roof)))
        return 0
    for shape, rate in roof.shapes.items():
        print(f"{shape:28} {rate:6.2f} TFLOP/s")
    print(f"best: bf16 {roof.bf16_tflops:.2f}, fp32 {roof.fp32_tflops:.2f} TFLOP/s")
    print(f"memory: read {roof.read_gbs:.1f}, copy {roof.copy_gbs:.1f} GB/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
