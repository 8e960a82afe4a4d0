"""How long the store takes at 100,000 comparisons: the next item, a judgement, progress, the export. Command: python bench/collect_scale.py

Measures on a temporary SQLite file and prints a table; a PostgreSQL URL as first argument measures there (an empty database).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tether.collect.entries import Answer
from tether.collect.exchange.dump import dump
from tether.collect.exchange.export import export_file
from tether.collect.exchange.rule import Rule
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.order import uniform
from tether.collect.settings import Settings, Strategy
from tether.collect.store import Store
from tether.types import Prompt

NUM_ITEMS = 100_000
NUM_JUDGED = NUM_ITEMS  # by the first annotator: what overlaps is left for the second, and the first has all of it to skip
NUM_CALLS = 200


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def fill(store: Store) -> None:
    """One item per prompt with texts of a usual length; two annotators."""
    store.add_prompts(Prompt(f"p{i}", f"Question {i}: {'why is it so? ' * 8}") for i in range(NUM_ITEMS))
    text = "because of this and that. " * 20
    store.add_answers(Answer(f"a{i}.{k}", f"p{i}", f"Answer {k}: {text}") for i in range(NUM_ITEMS) for k in (0, 1))
    store.add_items(Item(f"i{i}", f"p{i}", (f"a{i}.0", f"a{i}.1")) for i in range(NUM_ITEMS))
    store.add_annotator("Ann")
    store.add_annotator("Bo")


def judgement(number: int, item: str, shown: tuple[str, ...], annotator: str) -> Judgement:
    choice = (Choice.FIRST, Choice.SECOND, Choice.TIE, Choice.SKIP)[min(int(uniform(number) * 3.3), 3)]
    reason = "unclear" if choice is Choice.SKIP else ""
    return Judgement(f"j{annotator}.{number}", item, annotator, choice, shown, reason=reason, seconds=9.5)


def measure(store: Store) -> dict[str, list[float]]:
    """Seconds of every kind of call."""
    found: dict[str, list[float]] = {"next item": [], "record": [], "progress": []}
    for number in range(NUM_CALLS):
        seconds, shown = timed(lambda: store.next_item("a2"))
        found["next item"].append(seconds)
        made = judgement(number, shown.item.item_id, shown.shown, "a2")
        found["record"].append(timed(lambda: store.record(made))[0])  # noqa: B023  called at once
        found["progress"].append(timed(lambda: store.progress("a2"))[0])
    return found


def main(place: str) -> None:
    with Store.create(place, Settings(strategy=Strategy.UNCERTAINTY, overlap=0.2, seed=1)) as store:
        print(f"fill {NUM_ITEMS:,} items: {timed(lambda: fill(store))[0]:.1f} s")
        scores = {f"a{i}.{k}": 4 * uniform("score", i, k) for i in range(NUM_ITEMS) for k in (0, 1)}
        print(f"set 200,000 scores and put the items in order: {timed(lambda: store.set_scores('rm', scores))[0]:.1f} s")
        made = [judgement(i, f"i{i}", (f"a{i}.0", f"a{i}.1"), "a1") for i in range(NUM_JUDGED)]
        print(f"record {NUM_JUDGED:,} judgements in one transaction: {timed(lambda: store.record_all(made))[0]:.1f} s")
        for name, seconds in measure(store).items():
            print(f"{name}: median {1000 * median(seconds):.1f} ms, largest {1000 * max(seconds):.1f} ms")
        worst = timed(lambda: store.next_item("a1"))[0]
        again = timed(lambda: store.next_item("a1"))[0]
        print(f"next item of the one who judged {NUM_JUDGED:,}: {1000 * worst:.1f} ms, and again {1000 * again:.1f} ms")
        print(f"read all judgements: {timed(lambda: sum(1 for _ in store.judgements()))[0]:.1f} s")
        with tempfile.TemporaryDirectory() as folder:
            for ending in (".jsonl", ".parquet", ".csv"):
                seconds, report = timed(lambda: export_file(store, Path(folder) / f"out{ending}", Rule(split="all")))  # noqa: B023
                print(f"export {ending} ({report.rows:,} rows): {seconds:.1f} s")
            print(f"dump: {timed(lambda: dump(store, Path(folder) / 'all.jsonl'))[0]:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(str(Path(folder) / "scale.db"))
