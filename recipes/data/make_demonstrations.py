"""Write quickstart_demonstrations.jsonl: hand-written answers joined to their training questions. Own work,
CC0-1.0.

PYTHONPATH=src python recipes/data/make_demonstrations.py [FOLDER]     after make_prompts.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from jsonl import data_folder, read_jsonl, write_jsonl
from quickstart_answers import answers

from tether.rewards.simulated_rater import noiseless


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data_folder()
    first_asked: dict[str, dict] = {}
    for row in read_jsonl(folder / "quickstart_prompts_train.jsonl"):
        first_asked.setdefault(row["topic"], row)
    rows, points = [], []
    for topic, answer in answers().items():
        asked = first_asked[topic]
        rows.append(
            {
                "prompt": asked["prompt"],
                "completion": [{"role": "assistant", "content": answer}],
                "prompt_id": asked["id"],
            }
        )
        score = noiseless(asked["prompt"][0]["content"], answer, True)
        points.append(score.points)
        if score.points < 9:
            print(f"{score.points:4.1f} {topic}: {answer}\n     {score.parts()}")
    print(f"mean rule score of the demonstrations: {sum(points) / len(points):.2f} of 10")
    write_jsonl(folder / "quickstart_demonstrations.jsonl", rows)


if __name__ == "__main__":
    main()
