"""The summary says what the records say."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from importlib import resources

import pytest

from tether.collect.entries import Answer
from tether.collect.exchange.judgement_rows import judgement_rows
from tether.collect.exchange.rule import Rule
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.events import EventLog
from tether.report.judges import annotators_of, raters_of
from tether.report.read import read_run
from tether.report.words import band, hashes, policy_rows
from tether.report.words import summary as sentences
from tether.rewards.simulated_rater import RATER_NAME
from tether.types import Prompt


def summary(run) -> dict[str, str]:
    return {heading: " ".join(parts) for heading, parts in sentences(run)}


def test_summary_names_scores_intervals_kl_and_accuracy(make_run):
    parts = summary(read_run(make_run()))
    assert "start model is tiny" in parts["What was trained"]
    assert "ppo: PPO, 4 of 4 steps" in parts["What was trained"]
    assert (
        "ppo: 3 → 5; gain +2, paired 95 % interval [1.5, 2.5] over 3 prompts, which excludes zero"
        in parts["Held-out score"]
    )
    assert "[-0.3, 0.7] over 3 prompts, which includes zero" in parts["Held-out score"]
    assert "0.125 nats per token, 2.5 nats per sequence (95 % interval [2.25, 3] over prompts)" in parts["The tether"]
    assert "80.0 % of 40 pairs" in parts["Reward model"]
    assert "65.0 % to 90.0 %" in parts["Reward model"]


def test_a_simulated_rater_is_named_as_one(make_run):
    parts = summary(read_run(make_run()))
    assert RATER_NAME in parts["Who judged"]
    assert "simulated" in parts["Who judged"]


def test_raters_are_read_only_from_the_file_that_was_trained_on(tmp_path):
    file = tmp_path / "c.jsonl"
    file.write_text(
        json.dumps({"rater": RATER_NAME}) + "\n{broken\n" + json.dumps({"rater": RATER_NAME}) + "\n[1]\n"
    )
    assert raters_of(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) == [RATER_NAME]
    assert raters_of(str(file), "0" * 64) == []
    assert raters_of("tether:../../nothing", "0" * 64) == []
    assert raters_of("\0", "") == []


def test_the_annotators_of_a_database_are_named_with_what_they_judged(make_run, tmp_path):
    path = tmp_path / "a.db"
    with Store.create(path, Settings(held_out_share=0.5, seed=3)) as store:
        ann, bo, cy = (store.add_annotator(name).id for name in ("Ann", "Bo", "Cy"))
        store.add_prompts(Prompt(f"p{n}", f"Ask {n}?") for n in range(8))
        store.add_answers(Answer(f"p{n}{end}", f"p{n}", end) for n in range(8) for end in "ab")
        store.add_items([Item(f"i{n}", f"p{n}", (f"p{n}a", f"p{n}b")) for n in range(8)])
        store.add_items([Item("g", "p0", ("p0b", "p0a"), Choice.FIRST)])
        for who, choices in ((ann, ["first"] * 8), (bo, ["tie", "skip", *["second"] * 6]), (cy, ["first"] * 8)):
            for n, choice in enumerate(choices):
                why = "unclear" if choice == "skip" else ""
                store.record(Judgement(f"{who}{n}", f"i{n}", who, Choice(choice), (f"p{n}a", f"p{n}b"), reason=why))
        store.record(Judgement("g", "g", ann, Choice.FIRST, ("p0b", "p0a")))
        store.undo(cy)
        for name in ("train", "held_out", "all"):
            rows = [row["annotator"] for row in judgement_rows(store, Rule(split=name)) if row["choice"] != "skip"]
            assert {who: count for _, who, count in annotators_of(path, name)} == Counter(rows)
    run = replace(read_run(make_run()), config={"reward_model": {"data": {"path": str(path), "judgements": {"without": ["Cy"]}}}})
    told = summary(run)["Who judged"]
    counts = {name: count for _, name, count in annotators_of(path)}
    assert f"2 annotators judged them, with so many judgements each: Ann ({counts['Ann']}), Bo ({counts['Bo']}); Cy left out" in told
    assert "not recorded" not in told
    assert annotators_of(tmp_path / "none.db") is None
    (tmp_path / "text.db").write_text("no database")
    assert annotators_of(tmp_path / "text.db") is None


def test_the_bundled_comparisons_name_their_rater():
    file = resources.files("tether") / "recipes_data" / "quickstart_comparisons.jsonl"
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert raters_of("tether:quickstart_comparisons.jsonl", sha256) == [RATER_NAME]


def test_a_reward_that_rises_alone_is_pointed_out(make_run):
    run = read_run(make_run())
    assert "ppo: the training reward rose" not in summary(run).get("Watch", "")
    folder = run.folder
    data = json.loads((folder / "evaluation.json").read_text())
    data["gains"][0].update(low=-0.1)
    (folder / "evaluation.json").write_text(json.dumps(data))
    assert (
        "ppo: the training reward rose on held-out prompts (0.3 → 0.5)" in summary(read_run(folder))["Watch"]
    )


@pytest.mark.parametrize(("low", "told"), [(0.1, True), (-0.1, False)])
def test_a_reward_that_rises_within_its_interval_is_not(make_run, low, told):
    folder = make_run()
    data = json.loads((folder / "evaluation.json").read_text())
    data["gains"][0].update(low=-0.1)
    data["proxy_gains"] = [{**data["gains"][0], "low": low}]
    (folder / "evaluation.json").write_text(json.dumps(data))
    assert ("ppo: the training reward rose" in summary(read_run(folder)).get("Watch", "")) is told


def test_alarms_that_were_let_pass_and_a_missing_tether_are_told(make_run):
    folder = make_run()
    config = json.loads((folder / "config.json").read_text())
    config["rl"]["grpo"]["kl"]["beta"] = 0.0
    (folder / "config.json").write_text(json.dumps(config))
    log = EventLog(folder / "events.jsonl")
    log.write("alarms_acknowledged", alarms=["rl.grpo: dead_groups", "rl.grpo: entropy"])
    log.close()
    told = summary(read_run(folder))
    assert "a person has seen and let pass: rl.grpo: dead_groups, rl.grpo: entropy." in told["Alarms"]
    assert "there was no tether (beta 0)" in told["What was trained"]


def test_a_last_value_outside_its_band_is_pointed_out(make_run):
    watch = summary(read_run(make_run(metrics={"first_ratio_error": 0.5})))["Watch"]
    assert "first_ratio_error 0.54 (healthy: 0 to 0.0001)" in watch


def test_table_has_the_start_and_every_online_stage(make_run):
    rows = policy_rows(read_run(make_run()))
    assert [(row.name, row.verdict) for row in rows] == [
        ("start", ""),
        ("ppo", "excludes zero"),
        ("grpo", "includes zero"),
    ]
    assert rows[1].cells[:6] == ("5 [4.5, 5.5]", "+2 [1.5, 2.5]", "0.125", "2.5", "20.5", "25.0 %")


def test_stages_without_an_evaluation_are_in_the_table(make_run):
    run = read_run(make_run(evaluation=None))
    assert [(row.name, row.cells[0]) for row in policy_rows(run)] == [
        ("ppo", "not evaluated"),
        ("grpo", "not evaluated"),
    ]
    parts = summary(run)
    assert "Not evaluated" in parts["Held-out score"]
    assert "at the last logged step" in parts["The tether"]


def test_every_checksum_is_listed(make_run):
    folder = make_run()
    data = json.loads((folder / "evaluation.json").read_text())
    data["policies"][1]["provenance"] = {"model": {"weights_sha256": "d" * 64}, "seed": 3}
    (folder / "evaluation.json").write_text(json.dumps(data))
    found = dict(hashes(read_run(folder)))
    assert found["evaluated ppo: model.weights_sha256"] == "d" * 64
    assert found["sft: data_sha256"] == "a" * 64
    assert found["rl.ppo: weights_sha256"] == "b" * 64
    assert found["held-out prompts"] == "c" * 64
    assert len(found["config.json"]) == 64


@pytest.mark.parametrize(
    ("healthy", "text"),
    [
        (None, ""),
        ((0.0, 1.0), "0 to 1"),
        ((0.0, None), "at least 0"),
        ((None, 2.0), "at most 2"),
        ((0.0, 0.0), "0"),
    ],
)
def test_bands_in_words(healthy, text: str):
    assert band(healthy) == text


def test_warnings_of_the_run_are_in_the_words(make_run):
    folder = make_run()
    log = EventLog(folder / "events.jsonl")
    for text in ("KL -1.5 nats", "KL -2e-3 nats", *(f"trouble {letter}" for letter in "abcdefghijkl")):
        log.write("warning", stage="rl.ppo", text=text)
    log.close()
    run = read_run(folder)
    watch = summary(run)["Watch"]
    assert "rl.ppo warned 2 times, at last: KL -2e-3 nats." in watch
    assert "rl.ppo warned: trouble a." in watch
    assert "3 further warnings" in watch
    assert "WARNING: trouble l" in run.messages


def test_counts_have_their_number(make_run):
    folder = make_run()
    data = json.loads((folder / "evaluation.json").read_text())
    assert "2 answers each" in summary(read_run(folder))["Held-out score"]
    data["policies"][0]["samples_per_prompt"] = 1
    (folder / "evaluation.json").write_text(json.dumps(data))
    assert "1 answer each" in summary(read_run(folder))["Held-out score"]
