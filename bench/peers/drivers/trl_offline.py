"""TRL's RewardTrainer, DPOTrainer and SFTTrainer on rows that are given as token ids. One optimiser step is one measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from driver import Channel, Clock, Turnstile, versions
from trl_common import Steps, arguments, causal, classifier, tokenizer, watch_trainer

_EPOCHS_OF_ROWS = 50  # the same rows again and again, so that no epoch ends between two measurements


def main() -> None:
    """Serve steps until told to stop."""
    channel, clock = Channel(), Clock()
    setup = channel.setup
    trainer = {"sft": _sft, "reward-model": _reward_model, "dpo": _dpo}[setup["what"]](setup)
    watch_trainer(trainer, clock)
    if setup["what"] == "dpo":
        clock.wrap(trainer.ref_model, "forward", "reference")
    pairs = setup["pairs"]
    tokens = {
        "prompt": 2 * sum(len(pair["prompt"]) for pair in pairs),
        "response": sum(len(pair["chosen"]) + len(pair["rejected"]) for pair in pairs),
    }
    trainer.add_callback(Steps(Turnstile(channel, clock), lambda: tokens))
    channel.say(
        ready=True,
        versions=versions("torch", "transformers", "trl", "accelerate"),
        threads=torch.get_num_threads(),
        attention=trainer.model.config._attn_implementation,
    )
    trainer.train()


def _given(setup: Mapping[str, Any], rows: int) -> dict[str, Any]:
    return arguments(setup, rows, num_train_epochs=1_000, max_length=None)


def _sft(setup: Mapping[str, Any]) -> Any:
    from trl import SFTConfig, SFTTrainer

    rows = [
        {"input_ids": pair["prompt"] + pair[side], "labels": [-100] * len(pair["prompt"]) + pair[side]}
        for side in ("chosen", "rejected")
        for pair in setup["pairs"]
    ]
    return SFTTrainer(
        causal(setup),
        SFTConfig(**_given(setup, len(rows))),
        train_dataset=Dataset.from_list(rows * _EPOCHS_OF_ROWS),
        processing_class=tokenizer(setup),
    )


def _reward_model(setup: Mapping[str, Any]) -> Any:
    from trl import RewardConfig, RewardTrainer

    rows = [{"chosen_ids": pair["prompt"] + pair["chosen"], "rejected_ids": pair["prompt"] + pair["rejected"]} for pair in setup["pairs"]]
    return RewardTrainer(
        classifier(setup),
        RewardConfig(**_given(setup, len(rows))),
        train_dataset=Dataset.from_list(rows * _EPOCHS_OF_ROWS),
        processing_class=tokenizer(setup),
    )


def _dpo(setup: Mapping[str, Any]) -> Any:
    from trl import DPOConfig, DPOTrainer

    class Tokenised(DPOTrainer):
        """Rows are token ids already."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

    rows = [
        {
            "prompt": "",
            "chosen": "",
            "rejected": "",
            "prompt_ids": pair["prompt"],
            "chosen_ids": pair["chosen"],
            "rejected_ids": pair["rejected"],
        }
        for pair in setup["pairs"]
    ]
    return Tokenised(
        causal(setup),
        args=DPOConfig(**_given(setup, len(rows)), beta=0.1),
        train_dataset=Dataset.from_list(rows * _EPOCHS_OF_ROWS),
        processing_class=tokenizer(setup),
    )


if __name__ == "__main__":
    main()
