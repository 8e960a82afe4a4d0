"""How fast the sampler's own decoder is beside the model's own forward pass, by family, with adapters and without.

    python -m bench.sampler [--rows 16] [--tokens 32] [--rounds 3]

SmolLM2 has its weights; models of other families have the sizes of Qwen2.5-0.5B and Qwen3-0.6B and random ones, since only the time counts.
One prompt of 64 tokens, ``rows`` answers of ``tokens`` tokens (no token ends one), bfloat16 where the CPU multiplies it. Rounds go A B A B,
and a ratio is taken within each.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

PROMPT = tuple(range(100, 164))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=16, help="answers side by side")
    parser.add_argument("--tokens", type=int, default=32, help="of every answer")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if min(options.rows, options.tokens, options.rounds) < 1:
        parser.error("--rows, --tokens and --rounds are at least 1")
    logging.getLogger("tether").setLevel(logging.ERROR)
    print("| model | own decoder, tokens/s | own forward pass, tokens/s | ratio: median [lowest, highest] |\n|---|--:|--:|--:|")
    for name, make in _models().items():
        fast, plain = _measure(make(), options.rows, options.tokens, options.rounds)
        ratios = [a / b for a, b in zip(fast, plain, strict=True)]
        told = f"{statistics.median(ratios):.1f} [{min(ratios):.1f}, {max(ratios):.1f}]"
        print(f"| {name} | {statistics.median(fast):,.0f} | {statistics.median(plain):,.0f} | {told} |", flush=True)
    return 0


def _models() -> dict[str, Callable[[], Any]]:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    from tether import Policy
    from tether.models.adapters import LoraSpec
    from tether.models.resolve import resolve_model

    def smollm2(lora: LoraSpec | None = None) -> Any:
        return Policy.load(resolve_model("smollm2"), lora=lora).model

    def qwen2() -> Any:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=151_936, hidden_size=896, intermediate_size=4_864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
        return Qwen2ForCausalLM(config)

    def qwen3() -> Any:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=151_936, hidden_size=1_024, intermediate_size=3_072, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        )  # fmt: skip
        return Qwen3ForCausalLM(config)

    return {
        "SmolLM2-135M": smollm2,
        "SmolLM2-135M, LoRA of rank 16": lambda: smollm2(LoraSpec(rank=16)),
        "the sizes of Qwen2.5-0.5B": qwen2,
        "the sizes of Qwen3-0.6B": qwen3,
    }


def _measure(model: Any, rows: int, tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """Tokens a second of every round: by the decoder, by the model's own forward pass."""
    from tether.backends.compute import resolve_compute
    from tether.config import ComputeConfig
    from tether.rollout import local
    from tether.rollout.local import LocalSampler
    from tether.types import Request, Sampling

    dtype = resolve_compute(ComputeConfig()).dtype
    fast = LocalSampler(model, [], 0, dtype, rows)
    served, local.why_not_llama = local.why_not_llama, lambda model: "it is measured"
    try:
        plain = LocalSampler(model, [], 0, dtype, rows)
    finally:
        local.why_not_llama = served
    assert (fast.plain, plain.plain) == (False, True)

    def rate(sampler: LocalSampler, asked: int = tokens) -> float:
        started = time.perf_counter()
        answers = list(sampler.generate([Request("p", PROMPT, rows, 1)], Sampling(asked)))
        return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - started)

    for sampler in (fast, plain):
        rate(sampler, 4)  # the first products of a shape are slow
    found = [(rate(fast), rate(plain)) for _ in range(rounds)]
    return [a for a, _ in found], [b for _, b in found]


if __name__ == "__main__":
    raise SystemExit(main())
