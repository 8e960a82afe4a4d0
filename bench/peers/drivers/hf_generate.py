"""``generate`` of transformers on the same prompts: every answer of every prompt as one batch."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from driver import Channel, Clock, Turnstile, versions
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def main() -> None:
    """Serve generations until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes, settings = channel.setup, channel.setup["sizes"], channel.setup["settings"]
    encoder = AutoTokenizer.from_pretrained(setup["model"], padding_side="left")
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings["weights"]]
    model = AutoModelForCausalLM.from_pretrained(setup["model"], dtype=dtype, attn_implementation=settings.get("attention", "sdpa")).eval()
    prompts = [[{"role": "user", "content": text}] for text in setup["prompts"]]
    inputs = encoder.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True, padding=True, return_tensors="pt"
    )
    width, lengths = inputs["input_ids"].shape[1], inputs["attention_mask"].sum(-1).tolist()
    natural = encoder.eos_token_id
    channel.say(
        ready=True,
        prompt_tokens=lengths,
        versions=versions("torch", "transformers"),
        threads=torch.get_num_threads(),
        attention=model.config._attn_implementation,
    )
    turnstile = Turnstile(channel, clock)
    command = turnstile.turn()
    while True:
        end = natural if command.get("lengths", "forced") == "natural" else setup["silent_token"]
        config = _config(sizes, settings, end, natural)
        autocast: Any = torch.autocast("cpu", torch.bfloat16) if settings["autocast"] else contextlib.nullcontext()
        with clock.phase("generate"), torch.inference_mode(), autocast:
            answers = model.generate(**inputs, generation_config=config)[:, width:]
        ended = (answers == end).int()
        tokens = int((ended.cumsum(1) - ended == 0).sum())
        command = turnstile.turn({"prompt": sum(lengths) * sizes["samples"], "response": tokens})


def _config(sizes: dict[str, int], settings: dict[str, Any], end: int, filler: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=sizes["response_tokens"],
        num_return_sequences=sizes["samples"],
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=end,
        pad_token_id=filler,
        cache_implementation=settings.get("cache"),
        disable_compile=not settings.get("compile", False),
    )


if __name__ == "__main__":
    main()
