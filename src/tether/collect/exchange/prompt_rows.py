"""Prompts out of the database, each once: what a policy is trained on or evaluated with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tether.collect import schema
from tether.collect.codec import prompt_of
from tether.collect.engine import reading
from tether.collect.engine import sqlalchemy as sa
from tether.collect.exchange.forms import Format, form_of
from tether.collect.exchange.items import refuse_none
from tether.collect.exchange.tables import write_table
from tether.collect.store import Store

__all__ = ["Split", "export_prompts", "prompt_rows"]

Split = Literal["train", "held_out", "all"]


def export_prompts(store: Store, path: str | Path, split: Split = "train", format: Format = "auto") -> int:
    """Write them to a .jsonl, .parquet or .csv file, whole or not at all; returns how many. DataError where there are none."""
    rows = list(refuse_none(prompt_rows(store, split, format), store.place, f"split {split}"))
    write_table(path, rows)
    return len(rows)


def prompt_rows(store: Store, split: Split = "train", format: Format = "auto") -> Iterator[dict[str, Any]]:
    """`prompt`, `prompt_id` and the further columns that came with any of them, in the order in which they were added."""
    form, table = form_of(store, format), schema.prompts
    query = sa.select(table).order_by(table.c.number)
    if split != "all":
        query = query.where(table.c.held_out == (split == "held_out"))
    with reading(store.engine) as connection:
        prompts = [prompt_of(row) for row in connection.execute(query)]
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in ("prompt", "prompt_id"))
    for prompt in prompts:
        yield {"prompt": form(prompt.text, "user"), "prompt_id": prompt.prompt_id} | {name: prompt.columns.get(name) for name in names}
