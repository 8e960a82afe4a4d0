"""The PPOTrainer of the newest TRL that has one: policy, reference, value model and reward model, all of the same size.

Its accelerator is built without mixed precision, and generation, value and reward passes go around it in any case. The setting
``autocast`` therefore puts each model's own forward pass under autocast, as someone who knows this would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from driver import Channel, Clock, Turnstile, versions
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer
from trl_common import Steps, arguments, causal, classifier, tokenizer

_FILLER = "<jupyter_script>"  # rows are told from filler by its id alone, so it must be a token that no answer has


def main() -> None:
    """Serve steps until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes, settings = channel.setup, channel.setup["sizes"], channel.setup["settings"]
    encoder = tokenizer(setup)
    natural = encoder.eos_token_id
    encoder.pad_token = _FILLER
    encoder.padding_side = "left"
    rows = sizes["prompts"] * sizes["samples"]
    frozen = settings.get("frozen_weights", settings["weights"])
    policy, reference = causal(setup), causal(setup, frozen)
    value, reward = classifier(setup), classifier(setup, frozen)
    policy.generation_config.pad_token_id = encoder.pad_token_id
    if settings["autocast"]:
        for model in (policy, reference):
            _autocast(model)
        for model in (value, reward):
            _autocast(model.model)
            _autocast(model.score)
    prompts = [[{"role": "user", "content": text}] for text in setup["prompts"]]
    rendered = encoder.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    trainer = PPOTrainer(
        args=PPOConfig(
            **{**arguments(setup, rows), "bf16": False},
            total_episodes=1_000_000 * rows,
            num_ppo_epochs=1,
            num_mini_batches=1,
            local_rollout_forward_batch_size=min(settings.get("rollout_rows", rows), rows),
            num_sample_generations=0,
            response_length=sizes["response_tokens"],
            stop_token_id=setup["silent_token"],
            temperature=1.0,
            kl_coef=setup["beta"],
        ),
        processing_class=encoder,
        model=policy,
        ref_model=reference,
        reward_model=reward,
        value_model=value,
        train_dataset=Dataset.from_list([{"input_ids": ids} for ids in rendered for _ in range(sizes["samples"])]),
    )
    seen = {"prompt": sum(map(len, rendered)) * sizes["samples"], "response": 0}
    _watch(trainer, clock, seen)

    def obey(command: Mapping[str, Any]) -> None:
        end = natural if command.get("lengths", "forced") == "natural" else setup["silent_token"]
        trainer.stop_token_id = end
        policy.generation_config.eos_token_id = end

    trainer.add_callback(Steps(Turnstile(channel, clock), lambda: dict(seen), obey))
    channel.say(
        ready=True,
        prompt_tokens=[len(ids) for ids in rendered],
        versions=versions("torch", "transformers", "trl", "accelerate"),
        threads=torch.get_num_threads(),
        attention=policy.config._attn_implementation,
    )
    trainer.train()


def _autocast(model: torch.nn.Module) -> None:
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)


def _watch(trainer: Any, clock: Clock, seen: dict[str, int]) -> None:
    """Phases by the functions of the loop; what it does between them (losses, masks, its entropy) stays in "other"."""

    def count(generated: Any) -> None:
        answers = generated[0][:, -generated[1].shape[1] :]
        ended = (answers == trainer.stop_token_id).int().cumsum(1)
        seen["response"] = int((ended - (answers == trainer.stop_token_id).int() == 0).sum())

    def whose(model: Any, *args: Any, **kwargs: Any) -> str:
        if model is trainer.ref_model:
            return "reference"
        return "update" if torch.is_grad_enabled() else "old"

    clock.wrap(ppo_trainer, "batch_generation", "generate", count)
    clock.wrap(ppo_trainer, "forward", whose)
    clock.wrap(ppo_trainer, "get_reward", lambda model, *_, **__: "score" if model is trainer.reward_model else "old")
    clock.wrap(trainer.accelerator, "backward", "update")


if __name__ == "__main__":
    main()
