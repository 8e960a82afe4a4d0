"""The record, its JSON, text and page, the plan, and the commands."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from tether import cli_collect_stats
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.simulate import SimulatedStudy, simulate
from tether.collect.stats.command import collect_stats, plans, simulated_json, simulated_text
from tether.collect.stats.figures import FIGURES
from tether.collect.stats.page import page, write_page
from tether.collect.stats.plan import plan_ceiling, plan_share
from tether.collect.stats.summary import Figure, summarise
from tether.collect.stats.words import as_text
from tether.errors import ConfigError, RunError
from tether.stats import wilson

ROOT = Path(__file__).resolve().parents[3]
STUDY = SimulatedStudy(
    num_prompts=150, answers_per_prompt=3, tie_threshold=0.3, both_bad_share=0.2, skip_share=0.05, repeat_share=0.1, gold_share=0.1,
    careless_share=0.1, position_bias=0.3, length_bias=0.4, temperature=0.5, seed=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return simulate(STUDY)


@pytest.fixture(scope="module")
def summary(made):
    return summarise(made.judgements, made.items, made.lengths)


def test_every_figure_of_the_registry_is_there_once_and_known(summary):
    assert [one.name for one in summary.figures] == list(FIGURES)
    assert [one.name for one in summary.figures if one.value is None] == []
    assert all(one.unit and one.over and one.meaning for one in summary.figures)
    assert [one.name for one in summary.figures if one.good is not None and not one.advice and one.name != "annotators"] == []


def test_figures_lie_inside_their_intervals_and_near_the_truth(summary, made):
    for one in summary.figures:
        if one.low is not None:
            assert one.low <= one.value <= one.high, one.name
    assert summary.figure("ceiling").value == pytest.approx(made.truth.ceiling, abs=0.04)
    assert summary.figure("ceiling_least").value <= summary.figure("ceiling").value <= summary.figure("ceiling_most").value
    assert summary.figure("judgements").value == len(made.judgements)
    skipped = sum(j.choice is Choice.SKIP for j in made.judgements if made.items[int(j.item_id[1:])].gold is None)
    assert summary.figure("skip_share").value * summary.figure("skip_share").num_units == pytest.approx(skipped)
    with pytest.raises(KeyError, match="no figure 'kappa'"):
        summary.figure("kappa")


def test_the_careless_are_named(summary, made):
    noted = {row.name: row.notes for row in summary.annotators}
    careless = next(iter(made.truth.careless))
    assert noted[careless][:2] == ("hasty", "near chance")
    assert sum("near chance" in notes or "hasty" in notes for notes in noted.values()) == 1
    assert summary.figure("unreliable_annotators").value == summary.figure("hasty_annotators").value == 1


def test_json_holds_everything_and_no_nan(summary):
    text = json.dumps(summary.as_json(), allow_nan=False)
    read = json.loads(text)
    assert {one["name"] for one in read["figures"]} == set(FIGURES)
    assert read["skip_reasons"] == [["cannot tell", summary.skip_reasons[0][1]]]
    with pytest.raises(FrozenInstanceError):
        summary.seed = 3


def test_the_summary_is_a_function_of_contents_and_seed(made, summary):
    assert summarise(made.judgements, made.items, made.lengths) == summary
    assert summarise(made.judgements, made.items, made.lengths, seed=1) != summary


@pytest.mark.parametrize("count", [0, 1, 2])
def test_next_to_nothing_gives_reasons_not_numbers(count):
    items = [Item("i", "p", ("a", "b"))]
    judgements = [Judgement(str(n), "i", f"w{n}", Choice.FIRST, ("a", "b")) for n in range(count)]
    found = summarise(judgements, items, {})
    assert found.figure("ceiling").value is None
    assert "let a second person judge" in found.figure("ceiling").missing
    assert found.warnings[0].startswith("No ceiling: ")
    assert all(one.missing for one in found.figures if one.value is None)
    assert "Not known: " in as_text(found)
    assert "<h1>Judgements</h1>" in page(found)
    if count == 2:  # one pair of people who agree: an estimate of a single prompt has no finite interval
        assert json.loads(json.dumps(found.as_json()))["figures"]


def test_an_unbounded_interval_is_null_in_json():
    made = simulate(SimulatedStudy(num_prompts=1, answers_per_prompt=4))
    found = summarise(made.judgements, made.items, made.lengths)
    raw = found.figure("raw_agreement")
    assert (raw.low, raw.high) == (-math.inf, math.inf)
    told = next(one for one in found.as_json()["figures"] if one["name"] == "raw_agreement")
    assert told["low"] is None
    assert "too little for an interval" in as_text(found)
    assert "∞" not in as_text(found)


@pytest.mark.parametrize(("second", "hits"), [(Choice.FIRST, 12), (Choice.SECOND, 0)])
def test_total_agreement_has_wilsons_interval_over_pairs_of_people(second, hits):
    """Twelve pairs judged by two people: twelve events, not the 24 ordered pairs of the sums."""
    items = [Item(f"i{n}", f"p{n}", (f"a{n}", f"b{n}")) for n in range(12)]
    judgements = [
        Judgement(f"{who} {item.item_id}", item.item_id, who, choice, item.answers)
        for item in items
        for who, choice in (("w1", Choice.FIRST), ("w2", second))
    ]
    found = summarise(judgements, items, {})
    expected = wilson(hits, 12)
    for name in ("raw_agreement", "decided_agreement"):
        figure = found.figure(name)
        assert (figure.value, figure.low, figure.high) == pytest.approx((expected.estimate, expected.low, expected.high))


def figure(value, low, high, good):
    return Figure("x", value, low, high, 9, "share", "", "", good, "")


def test_verdicts():
    assert figure(0.7, 0.6, 0.8, (0.65, None)).verdict == "good"
    assert figure(0.6, 0.5, 0.7, (0.65, None)).verdict == "unclear"
    assert figure(0.6, 0.55, 0.64, (0.65, None)).verdict == "look"
    assert figure(0.6, 0.55, 0.64, None).verdict == ""
    assert figure(0.6, None, None, (0.0, 0.5)).verdict == "look"


def test_the_text_says_what_to_do(summary):
    text = as_text(summary)
    assert "unreliable_annotators: " in text
    assert "Read their judgements" in text
    assert "'cannot tell'" in text
    tables = [line for line in text.splitlines() if "   " in line.lstrip()]
    assert max(len(line) for line in tables) < 230


def test_the_page_is_closed_to_the_world_and_escapes_what_people_wrote(made, tmp_path):
    hostile = "<img src=x onerror=alert(1)>"
    judgements = [
        replace(j, annotator=j.annotator.replace("annotator", hostile), reason=hostile * bool(j.reason))
        for j in made.judgements
    ]
    target = write_page(summarise(judgements, made.items, made.lengths), tmp_path / "stats.html", title=hostile)
    text = target.read_text(encoding="utf-8")
    assert "<img" not in text
    assert "&lt;img" in text
    assert "default-src &#39;none&#39;" in text
    assert re.findall(r"""(?:src|href)=["'](?!#)""", text) == []
    assert text.count('<figure class="chart">') == 7  # the ceiling; six of people and bins
    assert text.count('class="line') == 2  # the two bounds of the ceiling: there is no line between people
    assert all(f"<dt>{name}" in text for name in FIGURES)
    with pytest.raises(RunError, match="cannot be written"):
        write_page(summarise([], [], {}), tmp_path / "stats.html" / "below")


def test_plan_of_a_share():
    assert plan_share(0.05).num_judgements == 385
    assert plan_share(0.05, share=0.9).num_judgements == 139
    assert plan_share(0.02).num_judgements == 2401


def test_plan_of_the_ceiling_gives_the_width_that_it_promises():
    planned = plan_ceiling(0.02, agreement=0.74, judgements_per_item=3)
    assert planned.num_judgements == 3 * planned.num_items
    study = SimulatedStudy(num_prompts=planned.num_items, temperature=0.6, seed=1)  # agreement 0.735
    made = simulate(study)
    one = summarise(made.judgements, made.items, made.lengths).figure("ceiling")
    assert (one.high - one.low) / 2 == pytest.approx(0.02, rel=0.2)
    assert plan_ceiling(0.01, agreement=0.74, judgements_per_item=3).num_items == pytest.approx(4 * planned.num_items, rel=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan_share(0.0), "half_width must be above 0"),
        (lambda: plan_share(0.1, share=1.0), "share must be between 0 and 1"),
        (lambda: plan_share(0.1, confidence=1.0), "confidence must be between"),
        (lambda: plan_ceiling(0.1, agreement=0.5), r"above 0\.5 \(coin tosses\)"),
        (lambda: plan_ceiling(0.1, tie_share=1.0), "tie_share"),
        (lambda: plan_ceiling(0.1, judgements_per_item=1), "2 judgements an item or more, got 1"),
    ],
)
def test_plans_refuse_what_makes_no_sense(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_plans_of_a_summary(summary):
    found = plans(summary)
    assert [plan.num_judgements for _, plan in found[:3]] == [385, 2401, 9604]
    assert len(found) == 7
    assert len(plans(summarise([], [], {}))) == 3


def test_the_simulation_prints_the_truth_beside_the_estimates(capsys):
    cli_collect_stats.simulate(prompts=60, temperature=0.5, tie_threshold=0.3, seed=1)
    text = capsys.readouterr().out
    assert text.startswith("Simulated annotators, no people: 180 judgements of 60 pairs of answers.")
    assert "Judgements needed:" in text
    cli_collect_stats.simulate(prompts=60, temperature=0.5, tie_threshold=0.3, seed=1, as_json=True)
    read = json.loads(capsys.readouterr().out)
    study = SimulatedStudy(num_prompts=60, temperature=0.5, tie_threshold=0.3, seed=1)
    assert read["truth"]["ceiling"] == pytest.approx(simulate(study).truth.ceiling)
    assert read == json.loads(simulated_json(study))
    assert text.strip() == simulated_text(study).strip()


def test_the_documentation_explains_every_figure():
    text = (ROOT / "docs" / "collect-stats.md").read_text(encoding="utf-8")
    assert [name for name in FIGURES if f"`{name}`" not in text] == []


def fill(store, made, held_back=()):
    """A simulated study in a real database."""
    from tether.collect.entries import Answer
    from tether.types import Prompt

    store.add_prompts(Prompt(name, f"Question {name}?") for name in dict.fromkeys(item.prompt_id for item in made.items))
    store.add_answers(Answer(a, a.split("a")[0], "x" * length) for a, length in made.lengths.items())
    store.add_items(made.items)
    names = {f"annotator-{n}": store.add_annotator(f"annotator-{n}").id for n in range(10)}
    kept = [
        Judgement(j.judgement_id, j.item_id, names[j.annotator], j.choice, j.shown, j.strength, (), j.reason, "", j.seconds)
        for j in made.judgements
        if j.judgement_id not in held_back
    ]
    store.record_all(kept)
    return kept


def test_people_are_left_out_of_the_figures_by_name_or_id(tmp_path, capsys):
    pytest.importorskip("sqlalchemy")
    from tether.collect.settings import Settings
    from tether.collect.store import Store

    made = simulate(SimulatedStudy(num_prompts=60, seed=3))
    place, gone = tmp_path / "answers.db", "annotator-3"
    with Store.create(place, Settings(seed=1, overlap=1.0, judgements_per_overlap_item=3)) as store:
        kept = fill(store, made)
        ids = {one.name: one.id for one in store.annotators()}
        summary, whole = collect_stats(store, without=[ids[gone]]), collect_stats(store)
    others = [one for one in kept if one.annotator != ids[gone]]
    assert 0 < len(others) < len(kept)
    assert summary.figures == summarise(others, made.items, made.lengths).figures
    assert gone in {row.name for row in whole.annotators} - {row.name for row in summary.annotators}
    for word in (gone, ids[gone]):
        cli_collect_stats.stats(str(place), without=(word,), as_json=True)
        assert json.loads(capsys.readouterr().out) == summary.as_json()
    assert summary.warnings == (f"Without {gone}: {len(kept) - len(others)} judgements count nowhere.", *whole.warnings)
    with pytest.raises(ConfigError, match="there is no annotator 'Nobody'; known: a1"):
        cli_collect_stats.stats(str(place), without=("Nobody",))


def test_a_stored_collection_gives_the_summary_of_its_records(tmp_path, capsys):
    pytest.importorskip("sqlalchemy")
    from tether.collect.settings import Settings
    from tether.collect.store import Store

    made = simulate(SimulatedStudy(num_prompts=60, gold_share=0.1, skip_share=0.05, seed=3))
    place = tmp_path / "answers.db"
    with Store.create(place, Settings(seed=1, overlap=1.0, judgements_per_overlap_item=3)) as store:
        kept = fill(store, made)
        found = collect_stats(store)
    assert found.figures == summarise(kept, made.items, made.lengths).figures
    cli_collect_stats.stats(str(place), as_json=True, output=tmp_path / "page.html")
    assert json.loads(capsys.readouterr().out) == found.as_json()
    assert (tmp_path / "page.html").is_file()
    cli_collect_stats.stats(str(place))
    assert "ceiling" in capsys.readouterr().out
