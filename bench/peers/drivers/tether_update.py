"""Tether's update alone, on answers that are given: old and reference passes, loss, gradient, optimiser. No sampling."""

from __future__ import annotations

import torch
from driver import Channel, Clock, Turnstile, noise, versions
from tether_online import phases_of, watch_parts

import tether


def main() -> None:
    """Serve updates until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes, settings = channel.setup, channel.setup["sizes"], channel.setup["settings"]
    policy = tether.Policy.load(setup["model"])
    updater = tether.PolicyUpdater(
        policy,
        "grpo",
        settings={
            "samples_per_prompt": sizes["samples"],
            "sampling": {"max_new_tokens": sizes["response_tokens"]},
            "optim": {"learning_rate": setup["learning_rate"]},
            "kl": {"beta": setup["beta"]},
            **settings,
        },
    )
    watch_parts(clock)
    queries = [setup["prompt_ids"][row // sizes["samples"]] for row in range(len(setup["responses"]))]
    groups = [f"prompt-{row // sizes['samples']}" for row in range(len(setup["responses"]))]
    scores = [noise(ids) for ids in setup["responses"]]
    tokens = {"prompt": sum(map(len, queries)), "response": sum(map(len, setup["responses"]))}
    channel.say(
        ready=True,
        prompt_tokens=[len(ids) for ids in setup["prompt_ids"]],
        versions=versions("torch", "transformers", "tether"),
        threads=torch.get_num_threads(),
    )
    turnstile = Turnstile(channel, clock)
    turnstile.turn()
    while True:
        metrics = updater.update(queries, setup["responses"], scores, groups=groups, terminated=[False] * len(scores))
        turnstile.turn(tokens, phases_of(metrics, clock))


if __name__ == "__main__":
    main()
