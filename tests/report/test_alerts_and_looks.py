"""Alarms, history, looks at the panel and the tether plot: from the log to the page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tether.events import EventLog
from tether.report import write_report
from tether.report.charts import Callout, chart
from tether.report.curves import LOOKS
from tether.report.limits import LIMITS
from tether.report.read import read_run
from tether.report.tether_plot import tradeoffs, trail_of
from tether.report.words import summary
from tether.run.checks.look import UNITS

ALARM = {
    "stage": "rl.ppo", "step": 3, "rule": "divergence", "seen": "the score fell", "advice": "read the answers", "text": "the long form",
    "false_alarm_rate": 0.005, "numbers": {"score_change": -0.5}, "before_step": 0, "before": {"length": 20.0, "score": None},
    "after": {"length": 44.0, "score": 0.1234567}, "metrics": {"reward": "nan"}, "folder": "alarms/rl.ppo/3-divergence", "action": "pause",
}  # fmt: skip


def _add(folder: Path, *events: tuple[str, dict]) -> None:
    log = EventLog(folder / "events.jsonl")
    for kind, fields in events:
        log.write(kind, **fields)
    log.close()


def _look(step: int, score: float | None, proxy: float, kl: float = 1.0, **more: object) -> tuple[str, dict]:
    return "panel", {"stage": "rl.ppo", "step": step, "values": {"score": score, "proxy": proxy, "kl_sequence": kl}, **more}


def test_an_alarm_comes_first_and_says_what_was_measured(make_run):
    folder = make_run(finished=False)
    _add(folder, ("alarm", ALARM), ("interrupted", {"reason": "alarm"}))
    run = read_run(folder)
    assert run.state == "paused by a check"
    assert summary(run)[0] == ("Alarms", ("rl.ppo: the check divergence tripped at step 3: the score fell.",))
    (alert,) = run.alerts
    assert dict(alert.more) == {
        "length, step 0 → 3": "20 → 44",
        "score, step 0 → 3": "– → 0.1235",
        "false alarm rate": "0.005",
        "numbers": "score_change -0.5",
        "folder": "alarms/rl.ppo/3-divergence",
        "action": "pause",
    }
    page = write_report(folder).read_text(encoding="utf-8")
    for wanted in ("Alarm: divergence", "read the answers", "20 → 44", "paused by a check"):
        assert wanted in page


def test_an_alarm_that_comes_back_is_counted(make_run):
    folder = make_run()
    _add(folder, ("alarm", ALARM), ("alarm", {**ALARM, "step": 4, "seen": "it fell more"}))
    assert "tripped 2 times, at last at step 4: it fell more." in summary(read_run(folder))[0][1][0]


@pytest.mark.parametrize(
    "damage", [{"before": 3}, {"after": [1]}, {"before": None, "after": {}}, {"step": "x"}, {"numbers": {"a": {"b": []}}}]
)
def test_a_damaged_alarm_is_shown_all_the_same(make_run, damage: dict):
    folder = make_run()
    _add(folder, ("alarm", {**ALARM, **damage}))
    assert "the score fell" in write_report(folder).read_text(encoding="utf-8")


def test_history_has_starts_resumes_and_checkpoints(make_run):
    folder = make_run(finished=False)
    _add(
        folder,
        ("interrupted", {}),
        ("alarms_acknowledged", {"alarms": ["rl.ppo: divergence"]}),
        ("run_started", {"name": "toy"}),
        ("resumed", {"stage": "rl.ppo", "step": 2}),
    )
    kept = folder / "checkpoints" / "rl.ppo" / "step-00000012"
    kept.mkdir(parents=True)
    (kept / "manifest.json").write_text(json.dumps({"flags": ["best", "alert"]}))
    (kept.with_name("step-00000014")).mkdir()
    (kept.with_name("step-00000014") / "manifest.json").write_text("{")
    told = [f"{moment.stage}: {moment.text}" for moment in read_run(folder).history]
    assert ": stopped by a signal" in told
    assert told[0] == ": the run starts"
    assert any("let pass" in text and "divergence" in text for text in told)
    assert "rl.ppo: goes on from the checkpoint of step 2; what was logged after it is replaced" in told
    assert told[-2:] == [
        "rl.ppo: checkpoint of step 12 is kept (best, alert)",
        "rl.ppo: checkpoint of step 14 is kept (its manifest cannot be read)",
    ]


def test_looks_are_curves_and_gold_stands_against_proxy(make_run):
    folder = make_run()
    looks = [_look(0, 0.5, 0.0, 0.0, bands={"score": [0.4, 0.6]}), _look(2, 0.8, 1.0, 3.0), _look(4, 0.2, 2.0, 9.0)]
    _add(folder, *looks)
    run = read_run(folder)
    assert run.stage("rl.ppo").looks["score"] == ((0, 0.5), (2, 0.8), (4, 0.2))
    charts = {c.title: c for c in tradeoffs(run, LIMITS[0])}
    gold = charts["Gold against proxy, by step"]
    assert [c.label for c in gold.callouts if c.ring] == ["best: step 2"]
    assert "best: step 2" in gold.summary
    assert gold.lines[0].marks[1].label == "ppo, step 2: score 0.8 at reward 1"
    page = write_report(folder).read_text(encoding="utf-8")
    assert "By chance alone the start would read 0.4 to 0.6." in page
    assert "looks at the held-out panel" in page


def test_without_an_independent_score_there_is_no_gold(make_run):
    folder = make_run()
    _add(folder, _look(0, None, 0.0), _look(2, None, 1.0))
    titles = [c.title for c in tradeoffs(read_run(folder), LIMITS[0])]
    assert titles == ["Reward against KL, by step", "Held-out score against KL"]


def test_looks_after_the_checkpoint_of_a_resume_are_replaced(make_run):
    folder = make_run(finished=False)
    again = [("stage_started", {"stage": "rl.ppo", "num_steps": 4}), ("resumed", {"stage": "rl.ppo", "step": 2})]
    _add(folder, _look(0, 0.5, 0.0, bands={"score": [0, 1]}), _look(2, 0.6, 0.1), _look(4, 0.1, 9.0), *again, _look(4, 0.7, 0.2))
    stage = read_run(folder).stage("rl.ppo")
    assert stage.looks["score"] == ((0, 0.5), (2, 0.6), (4, 0.7))
    assert stage.bands == {"score": (0.0, 1.0)}


def test_names_of_a_look_are_those_of_the_checks():
    assert LOOKS.keys() == UNITS.keys()


def test_best_step_is_that_of_the_mean_over_three(tmp_path):
    rewards = [0.0, 9.0, 0.0, 5.0, 5.0, 5.0, 1.0]
    log = EventLog(tmp_path / "events.jsonl")
    log.write("stage_started", stage="rl.a", num_steps=7)
    for step, reward in enumerate(rewards, start=1):
        log.write("step", stage="rl.a", step=step, metrics={"reward": reward, "kl_k1_sequence": float(step)})
    log.close()
    trail = trail_of(read_run(tmp_path).stage("rl.a"))
    assert trail.steps[trail.best] == 6


def test_callouts_keep_apart_and_the_circled_one_stays():
    points = [(0.0, 0.0), (1.0, 1.0), (1.01, 1.0)]
    callouts = [Callout(0.0, 0.0, "step 1"), Callout(1.01, 1.0, "step 3"), Callout(1.0, 1.0, "best", ring=True)]
    callouts.append(Callout(math.nan, 1.0, "none"))
    drawn = chart("m", "1", "", {"a": points}, callouts=callouts)
    assert [c.label for c in drawn.callouts] == ["best", "step 1"]
