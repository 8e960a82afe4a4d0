"""How long does a summary of 100,000 judgements take?

    python -m bench.collect_stats [--judgements 100000] [--repeat 3] [--json]

Simulated annotators: pairs of answers that three people judge, with ties, repeats, test questions and careless people. Reading (records to
columns) and the summary with its bootstraps are timed apart; seconds are of the processor, the least of the repeats, so that other work on
the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from tether.collect.simulate import SimulatedStudy, simulate
from tether.collect.stats.page import page
from tether.collect.stats.summary import summarise_votes
from tether.collect.stats.votes import read_votes
from tether.collect.stats.words import as_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--judgements", type=int, default=100_000, help="about so many")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    study = SimulatedStudy(
        num_prompts=max(1, options.judgements // 3), num_annotators=60, tie_threshold=0.3, repeat_share=0.02, gold_share=0.03,
        careless_share=0.1, position_bias=0.2, length_bias=0.4,
    )  # fmt: skip
    made = simulate(study)
    read_s, votes = _least(lambda: read_votes(made.judgements, made.items, made.lengths), options.repeat)
    summary_s, summary = _least(lambda: summarise_votes(votes), options.repeat)
    text_s, _ = _least(lambda: (as_text(summary), page(summary)), options.repeat)
    found = {"judgements": len(made.judgements), "read_s": read_s, "summary_s": summary_s, "text_and_page_s": text_s}
    print(json.dumps(found) if options.json else "\n".join(f"{name:16} {value:10.6g}" for name, value in found.items()))
    return 0


def _least(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """(least seconds of the processor, last result)."""
    times, result = [], None
    for _ in range(max(1, repeat)):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
    return min(times), result


if __name__ == "__main__":
    raise SystemExit(main())
