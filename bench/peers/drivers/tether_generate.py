"""Tether's sampler alone: answers to the prompts, and what it costs to publish new weights to it."""

from __future__ import annotations

import torch
from driver import Channel, Clock, Turnstile, versions

import tether
from tether.backends.compute import resolve_compute
from tether.config import ComputeConfig
from tether.rollout.local import LocalSampler
from tether.types import Request


def main() -> None:
    """Serve generations until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes = channel.setup, channel.setup["sizes"]
    policy = tether.Policy.load(setup["model"])
    format = policy.format
    compute = resolve_compute(ComputeConfig.model_validate(setup["settings"].get("compute", {})))
    endings = {"natural": frozenset(format.eos_ids), "forced": frozenset([setup["silent_token"]])}
    rows = sizes["prompts"] * sizes["samples"]
    sampler = LocalSampler(policy.model, format.eos_ids, format.pad_id, compute.dtype, rows)
    prompts = [tuple(format.prompt_ids((tether.Message("user", text),))) for text in setup["prompts"]]
    sampling = tether.Sampling(sizes["response_tokens"], 1.0)
    channel.say(
        ready=True,
        prompt_tokens=[len(ids) for ids in prompts],
        versions=versions("torch", "transformers", "tether"),
        threads=torch.get_num_threads(),
        dtype=str(compute.dtype),
    )
    turnstile = Turnstile(channel, clock)
    command = turnstile.turn()
    for number in range(1, 1_000_000):
        sampler.eos_ids = endings[command.get("lengths", "forced")]
        requests = [Request(f"prompt-{n}", ids, sizes["samples"], number * 1000 + n) for n, ids in enumerate(prompts)]
        with clock.phase("generate"):
            answers = list(sampler.generate(requests, sampling))
        with clock.phase("publish"):
            sampler.refresh(number)
        tokens = {
            "prompt": sum(len(ids) for ids in prompts) * sizes["samples"],
            "response": sum(len(answer.token_ids) for answer in answers),
        }
        command = turnstile.turn(tokens)


if __name__ == "__main__":
    main()
