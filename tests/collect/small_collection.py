"""A small collection for tests: prompts p0, p1, ... with two answers and one item each."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tether.collect.entries import Answer, Shown
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.types import Prompt


def small_store(place: str | Path, num_items: int = 6, **settings: Any) -> Store:
    """One annotator, a1."""
    store = Store.create(place, Settings(**settings))
    store.add_prompts(Prompt(f"p{i}", f"Question {i}?") for i in range(num_items))
    store.add_answers(Answer(f"a{i}.{k}", f"p{i}", f"answer {k} to {i}") for i in range(num_items) for k in (0, 1))
    store.add_items(Item(f"i{i}", f"p{i}", (f"a{i}.0", f"a{i}.1")) for i in range(num_items))
    store.add_annotator("Ann")
    return store


def said(shown: Shown, annotator: str = "a1", choice: Choice = Choice.FIRST, **more: Any) -> Judgement:
    """A judgement of what was shown."""
    name = more.pop("judgement_id", f"{annotator} on {shown.item.item_id}")
    return Judgement(name, shown.item.item_id, annotator, choice, shown.shown, **more)


def judge_all(store: Store, annotator: str = "a1", choice: Choice = Choice.FIRST) -> list[str]:
    """Judge until nothing is left; the items in the order they came."""
    order = []
    while (shown := store.next_item(annotator)) is not None:
        store.record(said(shown, annotator, choice))
        order.append(shown.item.item_id)
    return order


def gives_different_items(url) -> None:
    """Eight annotators who ask at one moment get eight items."""
    with small_store(url, num_items=8, overlap=0.0) as store:
        names = ["a1", *(store.add_annotator(f"n{i}").id for i in range(7))]
        barrier, given = threading.Barrier(len(names)), {}

        def ask(annotator: str) -> None:
            with Store.open(url) as own:
                barrier.wait()
                given[annotator] = own.next_item(annotator).item.item_id

        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(given.values())) == len(names)
