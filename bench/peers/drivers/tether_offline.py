"""Tether on rows that are given: reward model, DPO, SFT. One optimiser step of the stage's own loop is one measurement.

DPO reads the start's log-probabilities once for a whole training; here that pass is made again for every step and counted, as if each
pair were seen once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from driver import Channel, Clock, Turnstile, versions

import tether
from tether.backends.compute import Compute, resolve_compute
from tether.backends.local import LocalWorker
from tether.config import ComputeConfig, DirectConfig, RewardModelConfig, SFTConfig
from tether.data.groups import JudgedPair, TokenizedGroup
from tether.data.judged import JudgedUnits
from tether.events import EventLog
from tether.run.direct import start_sums, train_direct
from tether.run.observer import Quiet
from tether.run.recorder import Recorder
from tether.run.reward_model import train_reward_model
from tether.run.sft import sft
from tether.text.chat import TokenizedExample

_STEPS = 1_000_000


class Steps(Quiet):
    """An observer that is the turnstile; ``before`` is done, and counted, at the start of every measurement."""

    def __init__(self, turnstile: Turnstile, tokens: Mapping[str, int]) -> None:
        self.turnstile, self.tokens = turnstile, dict(tokens)
        self.before: Callable[[], Any] = lambda: None

    def open(self) -> None:
        """Wait for the first command."""
        self.turnstile.turn()
        self.before()

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done: what the clock has not seen of it is the update."""
        self.turnstile.turn(self.tokens, rest="update")
        self.before()


def main() -> None:
    """Serve steps until told to stop."""
    channel, clock = Channel(), Clock()
    setup = channel.setup
    compute = resolve_compute(ComputeConfig.model_validate(setup["settings"].get("compute", {})))
    steps = Steps(Turnstile(channel, clock), tokens_of(setup))
    clock.wrap(LocalWorker, "step", "optimiser")
    train = {"sft": _sft, "reward-model": _reward_model, "dpo": _dpo}[setup["what"]](setup, compute, steps, clock)
    channel.say(ready=True, versions=versions("torch", "transformers", "tether"), threads=torch.get_num_threads(), dtype=str(compute.dtype))
    steps.open()
    log = EventLog(Path(mkdtemp()) / "events.jsonl")
    train(Recorder(log, steps, setup["what"], _STEPS))


def tokens_of(setup: Mapping[str, Any]) -> dict[str, int]:
    """Prompt and answer tokens of one step: both sides of every pair."""
    pairs = setup["pairs"]
    return {
        "prompt": 2 * sum(len(pair["prompt"]) for pair in pairs),
        "response": sum(len(pair["chosen"]) + len(pair["rejected"]) for pair in pairs),
    }


def _example(prompt: list[int], answer: list[int]) -> TokenizedExample:
    return TokenizedExample((*prompt, *answer), (*[False] * len(prompt), *[True] * len(answer)))


def _sides(setup: Mapping[str, Any]) -> tuple[list[TokenizedExample], list[TokenizedExample]]:
    pairs = setup["pairs"]
    return [_example(p["prompt"], p["chosen"]) for p in pairs], [_example(p["prompt"], p["rejected"]) for p in pairs]


def _given(setup: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    optim = {"learning_rate": setup["learning_rate"]}
    return {"data": {"path": "(given)"}, "epochs": _STEPS, "batch_size": batch_size, "optim": optim}


def _sft(setup: Mapping[str, Any], compute: Compute, steps: Steps, clock: Clock) -> Callable[[Recorder], Any]:
    policy = tether.Policy.load(setup["model"])
    chosen, rejected = _sides(setup)
    config = SFTConfig.model_validate(_given(setup, 2 * len(chosen)))
    return lambda recorder: sft(policy, chosen + rejected, config, compute, recorder, 0)


def _reward_model(setup: Mapping[str, Any], compute: Compute, steps: Steps, clock: Clock) -> Callable[[Recorder], Any]:
    model = tether.RewardModel.load(setup["model"], new_head=True)
    pairs = [TokenizedGroup((one, two), (JudgedPair(0, 1),)) for one, two in zip(*_sides(setup), strict=True)]
    config = RewardModelConfig.model_validate({**_given(setup, len(pairs)), "centering": 0.0})
    return lambda recorder: train_reward_model(model, pairs, pairs, config, compute, recorder, 0)


def _dpo(setup: Mapping[str, Any], compute: Compute, steps: Steps, clock: Clock) -> Callable[[Recorder], Any]:
    policy = tether.Policy.load(setup["model"])
    chosen, rejected = _sides(setup)
    units = JudgedUnits(tuple(chosen), tuple(rejected), tuple(map(str, range(len(chosen)))))
    config = DirectConfig.model_validate({**_given(setup, len(chosen)), "kind": "dpo", "beta": 0.1})

    def reference() -> None:
        with clock.phase("reference"):
            start_sums(policy, units, config.batch_size, compute, 0)

    steps.before = reference
    return lambda recorder: train_direct(policy, units, None, config, compute, recorder, 0)


if __name__ == "__main__":
    main()
