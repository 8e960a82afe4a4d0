"""Write quickstart_prompts_train.jsonl and quickstart_prompts_heldout.jsonl from the hand-written topics. Own
work, CC0-1.0.

PYTHONPATH=src python recipes/data/make_prompts.py [OUTPUT_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jsonl import data_folder, write_jsonl
from quickstart_topics import HELDOUT, NUM_ASKED_TWICE, TEMPLATES, TRAIN, topics

Row = dict[str, Any]


def prompt_rows(blocks: dict[str, str], side: str, num_asked_twice: int) -> list[Row]:
    """One row per question: templates rotate within a kind, so that no template owns a kind."""
    rows: list[Row] = []
    for kind, block in blocks.items():
        templates = TEMPLATES[kind]
        for index, topic in enumerate(topics(block)):
            twice = kind == "how" and index < num_asked_twice
            for shift in (0, 2) if twice else (0,):
                question = templates[(index + shift) % len(templates)].format(topic=topic)
                rows.append({"prompt": [{"role": "user", "content": question}], "kind": kind, "topic": topic})
    return [{"id": f"quickstart-{side}-{index:03d}", **row} for index, row in enumerate(rows)]


def check_disjoint(train: list[Row], heldout: list[Row]) -> None:
    """No question twice, no topic on both sides."""
    questions = [row["prompt"][0]["content"].casefold() for row in train + heldout]
    if len(set(questions)) != len(questions):
        raise SystemExit("a question appears twice")
    shared = {row["topic"].casefold() for row in train} & {row["topic"].casefold() for row in heldout}
    if shared:
        raise SystemExit(f"topics on both sides: {sorted(shared)}")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder()
    train = prompt_rows(TRAIN, "train", NUM_ASKED_TWICE)
    heldout = prompt_rows(HELDOUT, "heldout", 0)
    check_disjoint(train, heldout)
    write_jsonl(folder / "quickstart_prompts_train.jsonl", train)
    write_jsonl(folder / "quickstart_prompts_heldout.jsonl", heldout)


if __name__ == "__main__":
    main()
