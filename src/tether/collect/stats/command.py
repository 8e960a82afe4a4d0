"""What the command line calls: a store to a summary, and a simulated study to its summary and plan."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any, Protocol

from tether.collect.judgement import Item, Judgement
from tether.collect.settings import CHOOSING
from tether.collect.simulate import SimulatedStudy, Study, simulate
from tether.collect.stats.plan import Plan, plan_ceiling, plan_share
from tether.collect.stats.summary import CollectSummary, summarise
from tether.collect.stats.words import as_text, plans_text, table

__all__ = ["collect_stats", "names", "plans", "simulated_json", "simulated_text"]




class StoreLike(Protocol):
    """What is read of ``tether.collect.store.Store``."""

    def judgements(self, include_withdrawn: bool = ...) -> Any: ...
    def item_states(self) -> Any: ...
    def answers(self) -> Any: ...
    def annotators(self) -> Any: ...


def collect_stats(store: StoreLike, *, without: Collection[str] = (), seed: int = 0, confidence: float = 0.95) -> CollectSummary:
    """The summary of an open collection, people by their names. Where its strategy is not random, agreement and the ceiling are those of
    its random share. ``without``: ids of annotators whose word does not count, as in an export; a warning names them.
    """
    shown = names(store)
    judgements: list[Judgement] = []
    left_out = 0
    for judgement in store.judgements(include_withdrawn=True):
        if judgement.annotator in without:
            left_out += judgement.withdrawn_at is None
        else:
            judgements.append(replace(judgement, annotator=shown.get(judgement.annotator, judgement.annotator)))
    items: list[Item] = []
    drawn: set[str] = set()
    for state in store.item_states():
        items.append(state.item)
        if state.random or state.chosen_by not in CHOOSING:
            drawn.add(state.item.item_id)
    lengths = {answer.answer_id: len(answer.plain) for answer in store.answers()}
    summary = summarise(judgements, items, lengths, random_items=drawn, seed=seed, confidence=confidence)
    if not without:
        return summary
    people = ", ".join(shown.get(one, one) for one in dict.fromkeys(without))
    return replace(summary, warnings=(f"Without {people}: {left_out} judgements count nowhere.", *summary.warnings))


def names(store: StoreLike) -> dict[str, str]:
    """Annotators' names by id, as the commands take them. A name that is the id of another person would be taken for that one: such a
    person keeps the id.
    """
    known = {annotator.id: annotator.name for annotator in store.annotators()}
    return {who: who if name in known and name != who else name for who, name in known.items()}


def plans(summary: CollectSummary) -> list[tuple[str, Plan]]:
    """Collections for intervals of half the width, with the agreement and ties that this one has."""
    agreed, ties, bad = (summary.figure(name).value for name in ("decided_agreement", "tie_share", "both_bad_share"))
    found = [(f"a share, such as a reward model's accuracy, within {width}", plan_share(width)) for width in (0.05, 0.02, 0.01)]
    if agreed is None or not 0.5 < agreed < 1:
        return found
    tie_share = min((ties or 0.0) + (bad or 0.0), 0.99)
    return found + [
        (f"the ceiling, {each} people each", plan_ceiling(width, agreement=agreed, tie_share=tie_share, judgements_per_item=each))
        for width in (0.02, 0.01)
        for each in (2, 3)
    ]


def simulated_text(study: SimulatedStudy) -> str:
    """A simulated study: truth beside estimates, the summary, and how many judgements intervals of other widths need."""
    made = simulate(study)
    summary = summarise(made.judgements, made.items, made.lengths, seed=study.seed)
    rows = []
    for name, truth in _truths(made).items():
        one = summary.figure(name)
        value = "not known" if one.value is None else f"{one.value:z.3f}"
        interval = "" if one.low is None or one.high is None else f"[{one.low:z.3f}, {one.high:z.3f}]"
        rows.append([name, f"{truth:z.3f}", value, interval])
    heading = f"Simulated annotators, no people: {len(made.judgements)} judgements of {len(made.items)} pairs of answers."
    truths = table(("figure", "truth", "estimate", "interval"), rows)
    return "\n\n".join([heading, truths, as_text(summary), "Judgements needed:", plans_text(plans(summary))])


def simulated_json(study: SimulatedStudy) -> str:
    """The same as JSON."""
    made = simulate(study)
    summary = summarise(made.judgements, made.items, made.lengths, seed=study.seed)
    planned = [{"to_know": what, **asdict(plan), "num_judgements": plan.num_judgements} for what, plan in plans(summary)]
    whole = {"simulated": asdict(study), "truth": _truths(made), "summary": summary.as_json(), "plans": planned}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _truths(made: Study) -> dict[str, float]:
    truth = made.truth
    return {
        "ceiling": truth.ceiling,
        "ceiling_ties_half": truth.ceiling_ties_half,
        "raw_agreement": truth.agreement,
        "left_share": truth.left_share,
        "tie_share": truth.tie_share,
        "both_bad_share": truth.both_bad_share,
        "length_log_odds": truth.length_slope,
        "unreliable_annotators": float(len(truth.careless)),
    }
