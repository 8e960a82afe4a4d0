"""TRL's GRPOTrainer: the whole step (``grpo``), or the update alone on answers that are given (``update``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from driver import Channel, Clock, Turnstile, noise, versions
from trl import GRPOConfig, GRPOTrainer
from trl_common import Steps, arguments, causal, tokenizer, watch_trainer

_TIMES = 50  # the same prompts again and again, in order, so that no epoch ends between two measurements


def main() -> None:
    """Serve steps until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes = channel.setup, channel.setup["sizes"]
    encoder = tokenizer(setup)
    rows = sizes["prompts"] * sizes["samples"]
    seen = {"prompt": 0, "response": 0}
    prompts = [[{"role": "user", "content": text}] for text in setup["prompts"]]
    given = {"rollout_func": _given(setup)} if setup["what"] == "update" else {}
    trainer = GRPOTrainer(
        causal(setup),
        reward_funcs=_reward,
        args=GRPOConfig(
            **arguments(setup, rows, max_steps=1_000_000),
            num_generations=sizes["samples"],
            max_completion_length=sizes["response_tokens"],
            cache_implementation=setup["settings"].get("cache"),
            temperature=1.0,
            beta=setup["beta"],
            loss_type="grpo",
            scale_rewards="group",
            use_bias_correction_kl=True,
            shuffle_dataset=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts] * _TIMES),
        processing_class=encoder,
        **given,
    )
    _watch(trainer, clock, seen)
    natural = list(trainer.eos_token_ids)

    def obey(command: Mapping[str, Any]) -> None:
        ends = natural if command.get("lengths", "forced") == "natural" else [setup["silent_token"]]
        trainer.eos_token_ids = ends
        trainer.generation_config.eos_token_id = ends
        trainer.generation_kwargs["eos_token_id"] = ends

    trainer.add_callback(Steps(Turnstile(channel, clock), lambda: dict(seen), obey))
    rendered = encoder.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    channel.say(
        ready=True,
        prompt_tokens=[len(ids) for ids in (setup["prompt_ids"] if given else rendered)],
        versions=versions("torch", "transformers", "trl", "accelerate"),
        threads=torch.get_num_threads(),
        attention=trainer.model.config._attn_implementation,
    )
    trainer.train()


def _reward(completions: Sequence[Any], **_: Any) -> list[float]:
    return [noise(completion[0]["content"] if isinstance(completion, list) else completion) for completion in completions]


def _given(setup: Mapping[str, Any]) -> Any:
    """A rollout function that hands out the answers that are given, group after group."""
    samples = setup["sizes"]["samples"]

    def rollout(prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        responses = setup["responses"]
        return {
            "prompt_ids": [setup["prompt_ids"][row // samples] for row in range(len(responses))],
            "completion_ids": responses,
            "logprobs": None,
        }

    return rollout


def _watch(trainer: Any, clock: Clock, seen: dict[str, int]) -> None:
    def count(generated: Any) -> None:
        seen["prompt"] = sum(len(ids) for ids in generated[0])
        seen["response"] = sum(len(ids) for ids in generated[1])

    def whose(model: Any, *args: Any, **kwargs: Any) -> str:
        if model is trainer.ref_model:
            return "reference"
        return "update" if torch.is_grad_enabled() else "old"

    watch_trainer(trainer, clock)
    clock.wrap(trainer, "_generate", "generate", count)
    clock.wrap(trainer, "_calculate_rewards", "score")
    clock.wrap(trainer, "_get_per_token_logps_and_entropies", whose)


if __name__ == "__main__":
    main()
