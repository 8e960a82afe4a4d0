"""Checks that pause: each rule fires on what it is for and not on a healthy stage, false alarms are as rare as stated, and a run that
was paused and acknowledged goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tether.config import CheckLevelsConfig, ChecksConfig, RunConfig, parse_config
from tether.errors import ConfigError, Paused, RunError
from tether.events import read_events, settled
from tether.records import write_jsonl
from tether.run.checkpoint import read_manifest
from tether.run.checks.evidence import ADVICE, acknowledge, acknowledged
from tether.run.checks.look import PER_PROMPT, UNITS, Answer, Look, bands
from tether.run.checks.rules import HEALTHY_STEP, Divergence, NegativeKL, Plan, Seen, StepRule, outer_interval
from tether.run.checks.stage import plan_of, rules_of
from tether.run.checks.texts import correlation, distinctness, pooled_share, repeat_share
from tether.run.checks.watch import due
from tether.run.observer import Quiet
from tether.run.pipeline import run

RULES = {rule.name: rule for rule in rules_of(CheckLevelsConfig())}
PLAN = Plan(rate=0.005, num_looks=10, num_steps=50)
HEALTHY = {"proxy": 1.0, "score": 5.0, "length": 20.0, "entropy": 2.0, "repeat": 0.05, "distinct": 0.9, "kl_sequence": 0.5}
SPREAD = {"proxy": 0.3, "score": 1.0, "length": 6.0, "entropy": 0.3, "repeat": 0.03, "distinct": 0.05, "kl_sequence": 1.0}


def look(step=0, seed=0, prompts=32, **means):
    """A look whose columns are normal around the healthy means, or those given."""
    draw = np.random.default_rng((seed, step))
    columns = {name: tuple(draw.normal({**HEALTHY, **means}[name], SPREAD[name], prompts)) for name in PER_PROMPT}
    values = dict.fromkeys(UNITS, 0.0) | {name: float(np.mean(column)) for name, column in columns.items()}
    answers = tuple(Answer(f"q{n}", "a", columns["proxy"][n], columns["score"][n], 20, "stop") for n in range(prompts))
    return Look(step, columns, values, answers)


def judged(name, now, *, best=None, training=None, plan=PLAN):
    baseline = look()
    return RULES[name].judge(Seen(baseline, best or baseline, now, training or {}), plan)


# -- texts ---------------------------------------------------------------------------------------------------------------------


def test_mode_collapse_is_seen_by_the_distinct_share_and_not_by_the_pooled_share():
    answers = [[f"w{n}" for n in range(50)]] * 100
    assert pooled_share(answers) == pytest.approx(1 / 48)
    assert sum(distinctness(answers)) / 100 == pytest.approx(0.01)


def test_the_mean_of_distinctness_is_distinct_over_all():
    assert sum(distinctness([[1], [1], [2]])) / 3 == pytest.approx(2 / 3)
    assert repeat_share([1, 2, 1, 2, 1, 2]) == 0.5
    assert repeat_share([1, 2]) == 0
    assert pooled_share([[1]]) == 0
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert math.isnan(correlation([1, 1, 1], [1, 2, 3]))
    assert math.isnan(correlation([1, math.nan, 2], [1, 2, 3]))


def test_a_look_goes_to_json_and_comes_back_the_same():
    one = look()
    one = replace(one, values={**one.values, "score": math.nan}, per_prompt={**one.per_prompt, "score": (math.nan,) * 32})
    again = Look.from_dict(json.loads(json.dumps(one.as_dict(), allow_nan=False)))
    assert json.dumps(again.as_dict()) == json.dumps(one.as_dict())
    assert again.per_prompt["proxy"] == one.per_prompt["proxy"]
    assert math.isnan(again.values["score"])


def test_a_band_holds_a_second_look_at_the_same_policy_as_often_as_it_says():
    inside = [bands(look(seed=seed))["score"] for seed in range(300)]
    hits = sum(low <= look(step=1, seed=seed).values["score"] <= high for seed, (low, high) in enumerate(inside))
    assert 0.91 <= hits / 300 <= 0.98


# -- rules: fire, and do not ---------------------------------------------------------------------------------------------------

FIRES = {
    "divergence": {"proxy": 2.0, "score": 3.0},
    "too_long": {"length": 60.0},
    "too_short": {"length": 3.0},
    "entropy": {"entropy": 0.05},
    "distinct": {"distinct": 0.1},
    "repetition": {"repeat": 0.6},
    "negative_kl": {"kl_sequence": -3.0},
}
STEPS = {  # metric, beyond the level, healthy
    "dead_groups": ("dead_group_share", 1.0, 0.5),
    "value_failure": ("explained_variance", -2.0, 0.3),
    "sampler_mismatch": ("sampler_gap_mean", 0.5, 0.01),
}


@pytest.mark.parametrize("name", sorted(FIRES))
def test_panel_rule_fires_on_its_case_and_on_no_other(name):
    now = look(5, **FIRES[name])
    found = judged(name, now)
    assert found is not None
    assert found.rule == name
    assert len(found.sentence) > 40
    assert name in ADVICE
    others = [other for other in FIRES if other != name and judged(other, now) is not None]
    assert others == []


@pytest.mark.parametrize("name", sorted(FIRES))
def test_panel_rule_is_silent_on_a_healthy_look_on_improvement_and_between_looks(name):
    assert judged(name, look(5)) is None
    assert judged(name, look(5, proxy=2.0, score=8.0, length=26.0, entropy=1.2)) is None
    assert judged(name, None) is None


def test_divergence_needs_both_a_rise_and_a_fall():
    assert judged("divergence", look(5, score=3.0)) is None
    assert judged("divergence", look(5, proxy=2.0)) is None


def test_divergence_sees_a_fall_from_the_best_look_where_the_start_is_no_better():
    best = look(4, proxy=1.5, score=8.0)
    found = judged("divergence", look(9, proxy=2.5, score=5.0), best=best)
    assert found is not None
    assert found.before is best
    assert "step 4" in found.sentence


def test_divergence_level_is_a_fall_that_is_allowed():
    seen = Seen(look(), look(), look(5, proxy=2.0, score=3.0), {})
    assert Divergence(1.0).judge(seen, PLAN) is not None
    assert Divergence(3.0).judge(seen, PLAN) is None


def test_prompts_without_a_score_leave_the_pairs_and_too_few_say_nothing():
    now = look(5, **FIRES["divergence"])
    column = (math.nan,) * 26 + now.per_prompt["score"][26:]
    assert judged("divergence", replace(now, per_prompt={**now.per_prompt, "score": column})) is None


@pytest.mark.parametrize("name", sorted(STEPS))
def test_step_rule_fires_after_its_window_without_a_break_and_not_before(name):
    metric, bad, good = STEPS[name]
    rule = RULES[name]
    assert isinstance(rule, StepRule)
    window = rule.window(PLAN)
    assert judged(name, None, training={metric: [good] + [bad] * window}) is not None
    assert judged(name, None, training={metric: [bad] * (window - 1)}) is None
    assert judged(name, None, training={metric: [bad] * (window - 1) + [good]}) is None
    assert judged(name, None, training={metric: [bad] * (window - 1) + [math.nan]}) is None
    assert judged(name, None, training={}) is None


# -- rules: how often by chance ------------------------------------------------------------------------------------------------


def allowed(rate, runs):
    """Most false alarms in so many runs if the rate is as stated: four standard deviations of a binomial."""
    return rate * runs + 4 * math.sqrt(rate * (1 - rate) * runs)


@pytest.mark.parametrize("name", ["divergence", "too_long", "too_short", "entropy", "distinct", "repetition"])
def test_panel_rules_alarm_no_more_often_than_stated_at_the_edge_of_their_level(name):
    """The worst healthy case: the policy sits at the level itself at every look, the reward rising, the looks independent."""
    edge = {"divergence": {"proxy": 2.0}, "too_long": {"length": 40.0}, "too_short": {"length": 10.0}, "entropy": {"entropy": 0.4},
            "distinct": {"distinct": 0.45}, "repetition": {"repeat": 0.25}}[name]  # fmt: skip
    plan, runs, alarms = Plan(0.1, 4, 20), 120, 0
    rule = RULES[name]
    for seed in range(runs):
        baseline = best = look(seed=seed)
        for step in range(1, 5):
            now = look(step, seed=seed, **edge)
            if rule.judge(Seen(baseline, best, now, {}), plan) is not None:
                alarms += 1
                break
            best = now if now.values["score"] > best.values["score"] else best
    assert alarms <= allowed(rule.rate(plan), runs)


@pytest.mark.parametrize("kind", ["normal", "skewed", "coins"])
def test_the_interval_misses_no_more_often_than_it_says_whatever_the_units_look_like(kind):
    tail, runs, missed = 0.02, 1200, 0
    draw = np.random.default_rng(3)
    kinds = {
        "normal": lambda: draw.normal(size=32),
        "skewed": lambda: draw.exponential(size=32) ** 1.5,
        "coins": lambda: draw.integers(0, 2, 32),
    }
    one = kinds[kind]
    for seed in range(runs):
        missed += outer_interval(one().astype(float), one().astype(float), tail, seed).high < 0
    assert missed <= allowed(tail, runs)


def test_negative_kl_is_exact_arithmetic_and_holds_for_the_worst_policy():
    """E[exp(-k1)] = 1 under the contract; here k1 is normal with mean s^2 / 2 and deviation s, which has just that."""
    rule, plan, alarms = NegativeKL(0.2), Plan(0.1, 4, 20), 0
    draw, start = np.random.default_rng(0), look(prompts=8)
    for means in draw.normal(0.5, 1.0, (2000, 4, 8)).mean(-1).tolist():
        looks = [replace(start, values={**start.values, "kl_sequence": mean}) for mean in means]
        alarms += any(rule.judge(Seen(start, start, now, {}), plan) for now in looks)
    assert alarms <= allowed(0.1, 2000)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_step_rules_alarm_no_more_often_than_stated_when_a_step_is_beyond_one_time_in_ten(name):
    metric, bad, good = STEPS[name]
    rule, plan, runs, alarms = RULES[name], Plan(0.05, 10, 50), 1000, 0
    draw, start = np.random.default_rng(1), look()
    for _ in range(runs):
        values = np.where(draw.random(50) < HEALTHY_STEP, bad, good).tolist()
        alarms += any(rule.judge(Seen(start, start, None, {metric: values[:step]}), plan) for step in range(3, 51))
    assert rule.rate(plan) <= 0.05
    assert alarms <= allowed(rule.rate(plan), runs)


def test_the_rate_is_shared_by_rules_and_more_steps_need_longer_windows():
    checks = ChecksConfig(every=5, false_alarms=0.05)
    plan = plan_of(checks, 52, 0)
    assert plan.rate * len(RULES) == pytest.approx(0.05)
    assert plan.num_looks == 11 == sum(due(step, 5, 52) for step in range(1, 53))
    rule = RULES["dead_groups"]
    assert rule.window(Plan(0.005, 1, 10)) < rule.window(Plan(0.005, 1, 10_000))


def test_a_rule_that_is_off_is_not_there():
    levels = CheckLevelsConfig.model_validate({"divergence": "off", "entropy": "off"})
    assert {rule.name for rule in rules_of(levels)} == RULES.keys() - {"divergence", "entropy"}


# -- settings ------------------------------------------------------------------------------------------------------------------

BASE = '[rl.a]\nkind = "ppo"\nprompts.path = "p.jsonl"\nrewards = [{kind = "format", params = {ending = "."}}]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[checks]\nevery = 2\n", ["checks.prompts: is required", "checks.score: is required"]),
        ('[checks]\nscore = "format"\nprompts.path = "p.jsonl"\n', ["the same data"]),
        ('[checks]\nscore_params = {a = 1}\n[evaluate]\nprompts.path = "h"\n', ["checks.score_params has no effect"]),
        ("[checks]\nprompts.path = 'h'\nscore = 'exact'\nlevels.divergance = 1\n", ["did you mean 'divergence'?"]),
    ],
)
def test_settings_that_do_not_fit_are_named(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_config(BASE + text, ".toml")
    assert [word for word in words if word not in str(caught.value)] == []


# -- a whole run ---------------------------------------------------------------------------------------------------------------


class Crash(Exception):
    """Stands for whatever ends a process."""


class CrashAt(Quiet):
    def __init__(self, step):
        self.step_ = step

    def step(self, stage, step, metrics):
        if step == self.step_:
            raise Crash


def turn(content):
    return [{"role": "user", "content": content}]


def config(folder, name, **checks):
    """Answers fill their eight tokens at the start; the reward pays for short ones and the independent score is a band around eight."""
    write_jsonl(folder / "prompts.jsonl", [{"prompt_id": f"t{i}", "prompt": turn(f"Say {i}.")} for i in range(6)])
    write_jsonl(folder / "held.jsonl", [{"prompt_id": f"h{i}", "prompt": turn(f"Tell {i}.")} for i in range(12)])
    data = {
        "name": name, "output": str(folder / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
        "checkpoint": {"every": 2},
        "rl": {"a": {
            "kind": "grpo", "prompts": {"path": str(folder / "prompts.jsonl")}, "steps": 9, "prompts_per_step": 4, "samples_per_prompt": 8,
            "sampling": {"max_new_tokens": 8}, "optim": {"learning_rate": 1e-2}, "kl": {"beta": 0.0},
            "rewards": [{"kind": "length", "params": {"low": 1, "high": 1, "falloff": 7, "unit": "tokens"}}],
        }},
    }  # fmt: skip
    if checks.pop("on", True):
        band = {"low": 8, "high": 8, "falloff": 1, "unit": "tokens"}
        data["checks"] = {"every": 3, "prompts": {"path": str(folder / "held.jsonl")}, "num_prompts": 12, "score": "length",
                          "score_params": band, **checks}  # fmt: skip
    return RunConfig.model_validate(data)


def story(folder):
    """What the log says that belongs to the weights: steps without times, looks, alarms."""
    timed = ("seconds", "per_second")
    kept = []
    for event in settled(read_events(folder / "events.jsonl")):
        if event["kind"] == "step":
            kept.append(("step", event["step"], {k: v for k, v in event["metrics"].items() if not k.endswith(timed)}))
        elif event["kind"] in {"panel", "alarm"}:
            told = {k: v for k, v in event.items() if k not in {"time", "text", "metrics", "action"}}
            kept.append((event["kind"], event["step"], told))
    return json.dumps(kept)


def weights(folder):
    return load_file(folder / "rl.a" / "model.safetensors")


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def warned(tmp_path_factory):
    return run(config(tmp_path_factory.mktemp("warned"), "w", on_alarm="warn")).folder


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory):
    return run(config(tmp_path_factory.mktemp("unwatched"), "u", on=False)).folder


def test_a_score_that_cannot_fall_is_said_before_training(tmp_path):
    blind = {"low": 1, "high": 1, "falloff": 1, "unit": "tokens"}  # answers have eight: 0 on every prompt
    run(config(tmp_path, "b", on_alarm="warn", score_params=blind))
    told = [e["text"] for e in read_events(tmp_path / "runs" / "b" / "events.jsonl") if e["kind"] == "warning" and e["name"] == "checks"]
    assert len(told) == 1
    assert "is 0 on every prompt of the panel" in told[0]


def test_a_score_that_can_fall_is_not(warned):
    assert not [e for e in read_events(warned / "events.jsonl") if e["kind"] == "warning" and e["name"] == "checks"]


def test_looking_changes_nothing(warned, unwatched):
    assert same(weights(warned), weights(unwatched))
    steps = [e["metrics"] for e in read_events(warned / "events.jsonl") if e["kind"] == "step"]
    plain = [e["metrics"] for e in read_events(unwatched / "events.jsonl") if e["kind"] == "step"]
    assert [m["reward"] for m in steps] == [m["reward"] for m in plain]


def test_the_log_and_the_folder_hold_the_looks_and_the_alarm(warned):
    events = list(read_events(warned / "events.jsonl"))
    panels = [e for e in events if e["kind"] == "panel"]
    assert [e["step"] for e in panels] == [0, 3, 6, 9]
    assert panels[0]["bands"].keys() == set(PER_PROMPT)
    assert panels[1]["bands"] == {}
    assert panels[0]["values"].keys() == set(UNITS)
    assert panels[0]["values"]["kl_sequence"] == pytest.approx(0, abs=1e-5)
    alarms = {e["rule"]: e for e in events if e["kind"] == "alarm"}
    assert {"divergence", "too_short"} <= alarms.keys()
    assert [e["rule"] for e in events if e["kind"] == "alarm"] == list(alarms)  # each once
    alarm = alarms["divergence"]
    assert (alarm["action"], alarm["stage"], alarm["false_alarm_rate"]) == ("warn", "rl.a", pytest.approx(0.005))
    folder = warned / alarm["folder"]
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "alarm.json", "samples.jsonl"]
    pairs = [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == 24
    assert pairs[0].keys() == {"prompt", "before", "after"}
    words = (folder / "README.md").read_text(encoding="utf-8")
    assert alarm["seen"] in words
    assert "0.005" in words


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    """A run that was paused, refused to go on, was acknowledged at every pause, and came to its end."""
    settings = config(tmp_path_factory.mktemp("paused"), "w")
    texts, refused, flags = [], [], []
    for attempt in range(8):
        text = pause_of(settings, acknowledge=attempt > 0)
        if not text:
            return settings, texts, refused, flags
        texts.append(text)
        newest = max((settings.folder / "checkpoints" / "rl.a").glob("step-*"))
        flags.append(read_manifest(newest).flags)
        assert "paused by a check" in (settings.folder / "report.html").read_text()
        refused.append(pause_of(settings, acknowledge=False))
    raise AssertionError("the run never came to its end")


def pause_of(settings, *, acknowledge):
    try:
        run(settings, acknowledge=acknowledge)
    except Paused as error:
        return str(error)
    return ""


def test_a_paused_run_explains_itself_and_keeps_a_flagged_checkpoint(paused):
    settings, texts, refused, flags = paused
    assert texts
    assert refused == texts  # nobody had acknowledged: the same words again
    assert set(flags) == {("alert",)}
    assert "--acknowledge" in texts[0]
    assert str(settings.folder) in texts[0]
    assert any(advice in texts[0] for advice in ADVICE.values())
    assert Paused(["x"], "f").status == 3
    reasons = [e.get("reason") for e in read_events(settings.folder / "events.jsonl") if e["kind"] == "interrupted"]
    assert set(reasons) == {"alarm"}
    assert any(e["kind"] == "alarms_acknowledged" for e in read_events(settings.folder / "events.jsonl"))


def test_paused_acknowledged_and_resumed_ends_as_the_run_that_was_never_stopped(paused, warned):
    settings = paused[0]
    assert same(weights(settings.folder), weights(warned))
    assert story(settings.folder) == story(warned)


@pytest.mark.parametrize("at", [1, 5, 8])
def test_a_crash_with_checks_on_resumes_bit_for_bit(at, tmp_path, warned):
    settings = config(tmp_path, "w", on_alarm="warn")
    with pytest.raises(Crash):
        run(settings, observer=CrashAt(at))
    folder = run(settings).folder
    assert same(weights(folder), weights(warned))
    assert story(folder) == story(warned)


def test_another_panel_is_refused_since_nothing_could_be_compared(tmp_path):
    with pytest.raises(Crash):
        run(config(tmp_path, "w", on_alarm="warn"), observer=CrashAt(5))
    with pytest.raises(RunError, match="panel of"):
        run(config(tmp_path, "w", on_alarm="warn", num_prompts=8))


def test_acknowledged_rules_are_kept_by_stage_and_told_once(tmp_path):
    for stage, rule in (("rl.a", "divergence"), ("rl.b", "entropy")):
        folder = tmp_path / stage / f"00000004-{rule}"
        folder.mkdir(parents=True)
        (folder / "alarm.json").write_text(json.dumps({"stage": stage, "rule": rule}))
    assert acknowledge(tmp_path) == ["rl.a: divergence", "rl.b: entropy"]
    assert acknowledge(tmp_path) == []
    assert acknowledged(tmp_path, "rl.a") == {"divergence"}
    assert acknowledged(tmp_path, "rl.c") == frozenset()
