"""Write quickstart_comparisons.jsonl: real SmolLM2-135M-Instruct answers, judged by the simulated rater
Plainspoken v1.

    OMP_NUM_THREADS=2 PYTHONPATH=src python recipes/data/make_comparisons.py [FOLDER]     after `tether fetch
    smollm2`

For every training prompt the model answers four times at temperature 1 with at most 48 new tokens: once to
the question as it stands and three times to the question followed by "Answer in one short sentence." The
plain answers alone are nearly all cut by the budget, and a reward model could not learn from them what a
finished answer is. The hint is not part of the comparison's prompt. Pairs: 1-2, 2-3, 3-4.

The rater chooses by its rule with noise (temperature 1 point, 5 % flips, seed 0). No person was asked.
Licence: questions and judgements CC0-1.0; the answers come from SmolLM2-135M-Instruct (Apache-2.0).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from jsonl import data_folder, read_jsonl, write_jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tether.models.resolve import resolve_model
from tether.rewards.simulated_rater import RATER_NAME, RaterSettings, choose, noiseless
from tether.rollout.local import LocalSampler
from tether.rollout.randomness import request_key
from tether.text.chat import ChatFormat
from tether.types import Completion, Message, Request, Sampling, StopReason

HINTS = (
    "",
    " Answer in one short sentence.",
    " Answer in one short sentence.",
    " Answer in one short sentence.",
)
PAIRS = ((0, 1), (1, 2), (2, 3))
SAMPLING = Sampling(max_new_tokens=48, temperature=1.0)
RATER = RaterSettings(temperature=1.0, flip_rate=0.05, seed=0)
RUN_SEED = 0

Answer = tuple[str, bool]  # text, finished


def sample_answers(questions: dict[str, str]) -> dict[str, list[Answer]]:
    """Four answers per prompt id, in the order of HINTS."""
    path = resolve_model("smollm2")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    chat = ChatFormat(tokenizer, generation_config=GenerationConfig.from_pretrained(path))
    sampler = LocalSampler(model, chat.eos_ids, chat.pad_id, torch.bfloat16, max_rows=64)
    drawn: dict[tuple[str, int], Completion] = {}
    requests = [request for prompt_id, question in questions.items() for request in requests_of(chat, prompt_id, question)]
    for completion in sampler.generate(requests, SAMPLING):
        prompt_id, _, hint = completion.prompt_id.partition("#")
        slot = HINTS.index(hint and HINTS[1]) + completion.sample_index
        drawn[prompt_id, slot] = completion
        if len(drawn) % 96 == 0:
            print(f"{len(drawn)} of {len(questions) * len(HINTS)} answers", flush=True)
    return {
        prompt_id: [
            (chat.decode(c.token_ids).strip(), c.stop_reason is StopReason.STOP)
            for c in (drawn[prompt_id, slot] for slot in range(len(HINTS)))
        ]
        for prompt_id in questions
    }


def requests_of(chat: ChatFormat, prompt_id: str, question: str) -> list[Request]:
    """One plain answer, and three to the question with the hint."""
    result = []
    for name, hint, count in ((prompt_id, "", 1), (f"{prompt_id}#short", HINTS[1], 3)):
        ids = tuple(chat.prompt_ids((Message("user", question + hint),)))
        result.append(Request(name, ids, count, request_key(RUN_SEED, 0, name)))
    return result


def compare(row: dict[str, Any], answers: list[Answer]) -> list[dict[str, Any]]:
    """The judged pairs of one prompt; equal and empty answers give none."""
    question, rows = row["prompt"][0]["content"], []
    for one, other in PAIRS:
        (first, first_finished), (second, second_finished) = answers[one], answers[other]
        if first == second or not first or not second:
            continue
        choice = choose(
            question,
            first,
            second,
            first_finished=first_finished,
            second_finished=second_finished,
            settings=RATER,
        )
        better, worse = (first, second) if choice.first_wins else (second, first)
        rows.append(
            {
                "prompt": row["prompt"],
                "chosen": [{"role": "assistant", "content": better}],
                "rejected": [{"role": "assistant", "content": worse}],
                "prompt_id": row["id"],
                "rater": RATER_NAME,
                "rater_agrees_with_rule": choice.first_wins == (choice.first_points > choice.second_points),
            }
        )
    return rows


def report(questions: dict[str, str], answers: dict[str, list[Answer]]) -> None:
    """Rule scores of the sampled answers, plain and hinted apart."""
    for name, slots in (("plain", (0,)), ("hinted", (1, 2, 3))):
        chosen = [(questions[key], *answers[key][slot]) for key in questions for slot in slots]
        points = sorted(noiseless(*item).points for item in chosen)
        cuts = [round(points[int(q * len(points))], 1) for q in (0.1, 0.25, 0.5, 0.75, 0.9)]
        print(
            f"{name}: {len(points)} answers, mean {statistics.mean(points):.2f} of 10, "
            f"quantiles 10/25/50/75/90 % {cuts}, finished {statistics.mean(item[2] for item in chosen):.0%}"
        )


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder()
    prompts = read_jsonl(folder / "quickstart_prompts_train.jsonl")
    questions = {row["id"]: row["prompt"][0]["content"] for row in prompts}
    started = time.perf_counter()
    answers = sample_answers(questions)
    print(f"sampled in {time.perf_counter() - started:.0f} s")
    report(questions, answers)
    rows = [pair for row in prompts for pair in compare(row, answers[row["id"]])]
    agreed = statistics.mean(row["rater_agrees_with_rule"] for row in rows)
    print(f"the noisy rater agrees with its own rule in {agreed:.1%} of pairs")
    write_jsonl(folder / "quickstart_comparisons.jsonl", rows)


if __name__ == "__main__":
    main()
