"""Write arithmetic_{train,heldout,demonstrations}.jsonl: sums of two numbers from 1 to 30. Own work, CC0-1.0.

    python recipes/data/make_arithmetic.py [FOLDER]

A pair and its mirror (7 + 5 and 5 + 7) lie on the same side, so that a held-out sum was never seen in either
order.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from jsonl import data_folder, write_jsonl

LARGEST, NUM_TRAIN, NUM_HELDOUT, NUM_DEMONSTRATIONS, SEED = 30, 400, 128, 150, 20
QUESTION = 'What is {a} + {b}? End with "Answer: N".'
WORKING = "{a} + {b} = {c}. Answer: {c}"


def sums(pairs: list[tuple[int, int]], count: int, random_: random.Random) -> list[tuple[int, int]]:
    """``count`` ordered pairs drawn from unordered ones and their mirrors, without repetition."""
    ordered = sorted({pair for a, b in pairs for pair in ((a, b), (b, a))})
    return random_.sample(ordered, count)


def row(side: str, index: int, a: int, b: int) -> dict:
    prompt = [{"role": "user", "content": QUESTION.format(a=a, b=b)}]
    return {"id": f"arithmetic-{side}-{index:03d}", "prompt": prompt, "answer": a + b}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder()
    random_ = random.Random(SEED)
    unordered = [(a, b) for a in range(1, LARGEST + 1) for b in range(a, LARGEST + 1)]
    random_.shuffle(unordered)
    cut = len(unordered) // 4
    heldout = sums(unordered[:cut], NUM_HELDOUT, random_)
    train = sums(unordered[cut:], NUM_TRAIN, random_)
    write_jsonl(folder / "arithmetic_train.jsonl", [row("train", i, a, b) for i, (a, b) in enumerate(train)])
    write_jsonl(
        folder / "arithmetic_heldout.jsonl", [row("heldout", i, a, b) for i, (a, b) in enumerate(heldout)]
    )
    demonstrations = [
        {
            "prompt": row("train", i, a, b)["prompt"],
            "completion": [{"role": "assistant", "content": WORKING.format(a=a, b=b, c=a + b)}],
            "prompt_id": f"arithmetic-train-{i:03d}",
        }
        for i, (a, b) in enumerate(train[:NUM_DEMONSTRATIONS])
    ]
    write_jsonl(folder / "arithmetic_demonstrations.jsonl", demonstrations)


if __name__ == "__main__":
    main()
