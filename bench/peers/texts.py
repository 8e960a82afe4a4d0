"""What both sides are given: prompts of one length from the bundled data, and rows of token ids. No torch.

One length, so that a side which pads prompts has nothing to pad: where this favours someone it is the peer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.peers.workloads import Sizes

__all__ = ["SILENT_TOKEN", "fit", "given", "prompt_texts"]

SILENT_TOKEN = 16
"""``<empty_output>`` of SmolLM2: a token of the vocabulary that it was never taught to write. Where it is the only end token, on every
side, all answers have their full length, and no side pays for suppressing another one."""

_DATA = Path(__file__).parents[2] / "src" / "tether" / "recipes_data"
_FILLER = ("Answer in a friendly way", "and give one short example", "that a beginner could follow", "at home today")


def fit(sentences: Sequence[str], count: Callable[[str], int], target: int) -> str:
    """Sentences, then words, for as long as ``count`` stays within ``target``. Raises ValueError where the first is too long already.

    Example, counting words: ("How?", "Tell me why.", "What is it?") to 5 -> "How? Tell me why. Answer".
    """
    text = sentences[0]
    if count(text) > target:
        raise ValueError(f"the first sentence alone has {count(text)} tokens, more than {target}: {text!r}")
    for sentence in sentences[1:]:
        if count(f"{text} {sentence}") > target:
            break
        text = f"{text} {sentence}"
    for word in cycle(" ".join(_FILLER).split()):
        if count(text) >= target or count(f"{text} {word}") > target:
            return text
        text = f"{text} {word}"
    raise AssertionError("cycle has no end")


def prompt_texts(questions: Sequence[str], number: int, count: Callable[[str], int], target: int) -> list[str]:
    """``number`` different user turns of ``target`` tokens, each beginning with another question."""
    if number > len(questions):
        raise ValueError(f"{number} prompts, and only {len(questions)} questions")
    return [fit([questions[n], *islice(cycle(questions), n + 1, n + 10)], count, target) for n in range(number)]


def given(sizes: Sizes, model: Path) -> dict[str, Any]:
    """Prompts as text and as ids, answers of full length as ids, pairs as ids: what every driver finds in its setup."""
    from jinja2 import Template
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(model / "tokenizer.json"))
    template = Template((model / "chat_template.jinja").read_text())

    def ids(text: str) -> list[int]:
        rendered = template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)
        return encoder.encode(rendered, add_special_tokens=False).ids

    questions = [row["prompt"][-1]["content"] for row in _rows("quickstart_prompts_train.jsonl")]
    texts = prompt_texts(questions, sizes.prompts, lambda text: len(ids(text)), sizes.prompt_tokens)
    stream = _stream(encoder)
    answers = sizes.pair_tokens - sizes.prompt_tokens
    pair_prompts = [ids(text) for text in prompt_texts(questions, sizes.pairs, lambda text: len(ids(text)), sizes.prompt_tokens)]
    return {
        "prompts": texts,
        "prompt_ids": [ids(text) for text in texts],
        "responses": [list(islice(stream, sizes.response_tokens)) for _ in range(sizes.prompts * sizes.samples)],
        "pairs": [
            {"prompt": prompt, "chosen": list(islice(stream, answers)), "rejected": list(islice(stream, answers))}
            for prompt in pair_prompts
        ],
        "silent_token": SILENT_TOKEN,
    }


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_DATA / name).read_text().splitlines()]


def _stream(encoder: Any) -> Iterator[int]:
    """Token ids of the bundled demonstrations' answers, one after the other, without end."""
    answers = [row["completion"][-1]["content"] for row in _rows("quickstart_demonstrations.jsonl")]
    return cycle(encoder.encode(" ".join(answers), add_special_tokens=False).ids)
