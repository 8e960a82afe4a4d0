"""Tether's online step, the whole loop of ``tether.rl``: GRPO with a reward of noise, PPO with a reward model.

The loop stands in the turnstile each time it reports a step to its observer. Phases come from the step's own metrics where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from driver import Channel, Clock, Turnstile, noise, versions

import tether
from tether.backends.local import LocalWorker
from tether.config import ComputeConfig
from tether.models.reference import Reference
from tether.rollout.local import LocalSampler
from tether.rollout.proof import WeightProof
from tether.run.observer import Quiet


class Steps(Quiet):
    """An observer that is the turnstile."""

    def __init__(self, turnstile: Turnstile, endings: Mapping[str, frozenset[int]], sizes: Mapping[str, int]) -> None:
        self.turnstile, self.endings, self.sizes = turnstile, endings, sizes
        self.ends = endings["natural"]

    def stage_started(self, stage: str, num_steps: int) -> None:
        """Before the first step: wait to be asked for it."""
        self._turn()

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        rows = self.sizes["prompts"] * self.sizes["samples"]
        tokens = {"prompt": rows * self.sizes["prompt_tokens"], "response": round(metrics["response_length"] * rows)}
        self._turn(tokens, phases_of(metrics, self.turnstile.clock))

    def _turn(self, *ended: Any) -> None:
        self.ends = self.endings[self.turnstile.turn(*ended).get("lengths", "forced")]


def phases_of(metrics: Mapping[str, float], clock: Clock) -> dict[str, float]:
    """Seconds by phase: the metrics of the step, less what the clock has seen inside of them."""
    seen = clock.seconds
    reference, optimiser = seen.get("reference", 0.0), seen.get("optimiser", 0.0)
    told = {
        "generate": metrics.get("generate_seconds"),
        "score": metrics.get("score_seconds"),
        "old": metrics["annotate_seconds"] - reference if "annotate_seconds" in metrics else None,
        "update": metrics["update_seconds"] - optimiser if "update_seconds" in metrics else None,
    }
    return {name: seconds for name, seconds in told.items() if seconds is not None}


def watch_parts(clock: Clock) -> None:
    """Time the parts that the metrics of a step do not tell apart. What a later version no longer has is left out."""
    for name in [name for name in vars(Reference) if "logprobs" in name and not name.startswith("_")]:
        clock.wrap(Reference, name, "reference")
    clock.wrap(LocalWorker, "step", "optimiser")


def main() -> None:
    """Serve steps until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes, settings = channel.setup, channel.setup["sizes"], channel.setup["settings"]
    policy = tether.Policy.load(setup["model"])
    steps = Steps(
        Turnstile(channel, clock),
        {"natural": frozenset(policy.format.eos_ids), "forced": frozenset([setup["silent_token"]])},
        sizes,
    )
    watch_parts(clock)
    clock.wrap(LocalSampler, "refresh", "publish")
    clock.wrap(WeightProof, "check", "publish")
    generate = LocalSampler.generate

    def with_endings(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.eos_ids = steps.ends
        return generate(self, *args, **kwargs)

    LocalSampler.generate = with_endings
    prompts = [tether.Prompt(f"prompt-{n}", (tether.Message("user", text),)) for n, text in enumerate(setup["prompts"])]
    reward: Any = lambda prompt, answer: noise(answer)  # noqa: E731
    if setup["what"] == "ppo":
        reward = tether.RewardModel.load(setup["model"], new_head=True)
    channel.say(
        ready=True,
        prompt_tokens=[len(policy.format.prompt_ids(prompt.text)) for prompt in prompts],
        versions=versions("torch", "transformers", "tether"),
        threads=torch.get_num_threads(),
        compute=ComputeConfig.model_validate(settings.get("compute", {})).model_dump(mode="json"),
    )
    tether.rl(
        policy,
        prompts,
        reward,
        algorithm=setup["what"],
        observer=steps,
        steps=1_000_000,
        prompts_per_step=sizes["prompts"],
        samples_per_prompt=sizes["samples"],
        sampling={"max_new_tokens": sizes["response_tokens"]},
        optim={"learning_rate": setup["learning_rate"]},
        **{"kl": {"beta": setup["beta"]}, **settings},
    )


if __name__ == "__main__":
    main()
