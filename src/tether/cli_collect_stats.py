"""The commands `tether collect stats` and `tether collect simulate`. Heavy modules are imported when they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["simulate", "stats"]

_Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print everything as JSON.")]


def stats(
    database: Annotated[str, Parameter(name="DATABASE", help="A SQLite file, or a postgresql:// URL.")],
    /,
    *,
    as_json: _Json = False,
    without: Annotated[
        tuple[str, ...], Parameter(help="Name or id of an annotator whose word does not count, as in export; repeat it.", negative=())
    ] = (),
    output: Annotated[Path | None, Parameter(help="Write a page with tables and charts here, e.g. judgements.html.")] = None,
    seed: Annotated[int, Parameter(help="Seed of the bootstrap.")] = 0,
) -> None:
    """What the judgements are worth: agreement, the ceiling of any reward model, biases, and whom to trust, with intervals.

    Example: tether collect stats answers.db --output judgements.html
    """
    from tether.collect.exchange.items import annotator_ids
    from tether.collect.stats.command import collect_stats
    from tether.collect.stats.page import check_target, write_page
    from tether.collect.stats.words import as_text
    from tether.collect.store import Store

    if output is not None:
        check_target(output)
    with Store.open(database) as store:
        summary = collect_stats(store, without=annotator_ids(store, without), seed=seed)
        place = store.place
    if output is not None:
        write_page(summary, output, title=f"Judgements of {place}")
    print(json.dumps(summary.as_json(), indent=2, ensure_ascii=False) if as_json else as_text(summary))
    if output is not None and not as_json:
        print(f"\n{output}")


def simulate(
    *,
    prompts: Annotated[int, Parameter(help="Prompts.")] = 200,
    answers: Annotated[int, Parameter(help="Answers to each; all pairs of them are items.")] = 2,
    annotators: Annotated[int, Parameter(help="People.")] = 10,
    judgements: Annotated[int, Parameter(help="People who judge an item that several judge.")] = 3,
    overlap: Annotated[float, Parameter(help="Share of the items that several people judge; the others one.")] = 1.0,
    temperature: Annotated[float, Parameter(help="Noise, in units of the spread of quality: 0.3 sharp, 1 usual, 3 nearly coins.")] = 1.0,
    position_bias: Annotated[float, Parameter(help="Log-odds that standing on the left adds.")] = 0.0,
    length_bias: Annotated[float, Parameter(help="Log-odds per log ratio of the lengths.")] = 0.0,
    tie_threshold: Annotated[float, Parameter(help="Log-odds within which answers are said to be equal.")] = 0.0,
    careless: Annotated[float, Parameter(help="Share of people who click by a coin.")] = 0.0,
    seed: Annotated[int, Parameter(help="Seed of everything.")] = 0,
    as_json: _Json = False,
) -> None:
    """Plan a collection: what these statistics would say of simulated annotators, beside the truth, and how many judgements are needed.

    Example: tether collect simulate --prompts 500 --judgements 2 --temperature 0.6
    """
    from tether.collect.simulate import SimulatedStudy
    from tether.collect.stats.command import simulated_json, simulated_text

    study = SimulatedStudy(
        num_prompts=prompts, answers_per_prompt=answers, num_annotators=annotators, judgements_per_item=judgements, overlap=overlap,
        temperature=temperature, position_bias=position_bias, length_bias=length_bias, tie_threshold=tie_threshold, careless_share=careless,
        seed=seed,
    )  # fmt: skip
    print(simulated_json(study) if as_json else simulated_text(study))
