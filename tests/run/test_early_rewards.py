"""Rewards that are asked while answers are still generated: the run is the one that asks afterwards, bit for bit, also after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from small_runs import Crash, assert_same, make_config, resumed_after, sections_of

import tether
from tether.config import RunConfig, rl_kind
from tether.errors import Interrupted, RewardError
from tether.events import read_events
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.rewards import build
from tether.rewards.length import LengthPart
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.rollout.scripted import ScriptedSampler
from tether.run import rl as loop
from tether.run.checkpoint import CheckpointStore
from tether.run.pipeline import run
from tether.types import Prompt, Score

LIMIT_S = 20.0  # of what must happen within milliseconds


@dataclass(frozen=True, slots=True)
class Judge:
    """The length reward by way of a judge that is slow, and breaks or is too late for some answers."""

    low: int
    high: int
    falloff: int
    early_workers: int = 3
    name: str = "length"

    def score(self, rollouts):
        return [self.one(rollout) for rollout in rollouts]

    def one(self, rollout):
        fate = sum(rollout.completion.token_ids) % 23
        time.sleep(0.002 * (fate % 3))
        if fate == 1:
            raise TimeoutError("no answer within 3 s")
        (score,) = LengthPart(self.low, self.high, self.falloff, "tokens").score([rollout])
        return replace(score, value=None if fate == 2 else score.value + fate / 23)


def judged_by(patch, workers: int) -> None:
    """The configuration's length reward is the judge; ``workers`` 0 asks it afterwards. Two of the few answers of a step may fail."""
    patch.setattr(build, "build_part", lambda kind, params, **_: Judge(early_workers=workers, **params))
    patch.setattr(Rubric.score, "__defaults__", (1.0, None))


def config_of(kind: str, folder: Path, name: str, **changed) -> RunConfig:
    sections, _, _ = sections_of(kind, folder)
    sections["rl"]["a"]["sampling"]["max_rows"] = 2
    return RunConfig.model_validate(make_config(folder, **sections) | {"name": name} | changed)


def files_of(folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.glob("rollouts-*.jsonl"))]


@pytest.mark.parametrize("kind", ["grpo", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("remax", "dapo"))])
def test_a_run_that_asks_early_is_the_run_that_asks_afterwards(kind, tmp_path, monkeypatch):
    folders = {}
    for name, workers in (("after", 0), ("early", 3)):
        judged_by(monkeypatch, workers)
        folders[name] = run(config_of(kind, tmp_path, name)).folder
    assert_same(folders["after"], folders["early"], "rl.a")
    steps = {name: [e["metrics"] for e in read_events(folder / "events.jsonl") if e["kind"] == "step"] for name, folder in folders.items()}
    assert kind == "remax" or any(step["failure_share"] > 0 for step in steps["early"])  # one answer a prompt: few in all
    assert kind == "remax" or any(step["unscored_share"] > step["failure_share"] for step in steps["early"])
    assert all(0 <= step["score_hidden_seconds"] <= step["score_seconds"] for step in steps["early"])
    assert not any("score_hidden_seconds" in step for step in steps["after"])


def test_a_crash_in_the_middle_of_a_rollout_goes_on_as_the_run_that_asked_afterwards(tmp_path, monkeypatch):
    """The second chunk of step 3 breaks after its first answer was handed to the judge; the first one is kept."""
    judged_by(monkeypatch, 0)
    whole = run(config_of("grpo", tmp_path, "whole", checkpoint={"every": 1, "asynchronous": False})).folder
    judged_by(monkeypatch, 2)
    config = config_of("grpo", tmp_path, "broken", checkpoint={"every": 1, "asynchronous": False})
    with monkeypatch.context() as patch:
        break_after_an_answer(patch, step=3)
        with pytest.raises(Crash):
            run(config)
    store = CheckpointStore(config.folder / "checkpoints" / "rl.a")
    assert store.latest().step == 2
    folder = run(config).folder
    assert resumed_after(folder) == [2]
    assert_same(whole, folder, "rl.a")


def crash():
    raise Crash


def break_after_an_answer(patch, step: int, act=crash) -> None:
    """``act`` happens after the first answer of the second chunk of ``step``."""
    honest, chunks = LocalSampler.generate, []

    def generate(self, requests, sampling):
        answers = honest(self, requests, sampling)
        yield next(answers)
        chunks.append(self.version)
        if chunks.count(step - 1) == 2 and self.version == step - 1:
            act()
        yield from answers

    patch.setattr(LocalSampler, "generate", generate)


def test_a_signal_in_the_middle_of_generation_ends_the_step_and_the_resumed_run_is_the_same(tmp_path, monkeypatch):
    judged_by(monkeypatch, 0)
    whole = run(config_of("grpo", tmp_path, "whole")).folder
    judged_by(monkeypatch, 2)
    config = config_of("grpo", tmp_path, "broken")
    with monkeypatch.context() as patch:
        break_after_an_answer(patch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            run(config)
    folder = run(config).folder
    assert resumed_after(folder) == [3]
    assert_same(whole, folder, "rl.a")


_CHILD = """
import os, signal, sys
import pytest
from tether.config import load_config
from tether.run.pipeline import run
sys.path[:0] = sys.argv[1:3]
import test_early_rewards as early
with pytest.MonkeyPatch.context() as patch:
    early.judged_by(patch, 2)
    early.break_after_an_answer(patch, 3, lambda: os.kill(os.getpid(), signal.SIGKILL))
    run(load_config(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_process_killed_in_the_middle_of_generation_goes_on_as_well(tmp_path, monkeypatch):
    judged_by(monkeypatch, 0)
    whole = run(config_of("grpo", tmp_path, "whole")).folder
    judged_by(monkeypatch, 2)
    config = config_of("grpo", tmp_path, "broken", checkpoint={"every": 2, "asynchronous": False})
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json(exclude_unset=True))
    here = Path(__file__).parent
    command = [sys.executable, "-c", _CHILD, str(here), str(here.parent / "reliability"), str(file)]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert files_of(config.folder / "checkpoints" / "rl.a")
    folder = run(config).folder
    assert resumed_after(folder) == [2]
    assert_same(whole, folder, "rl.a")


# -- from Python -------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "steps": 2, "prompts_per_step": 2, "samples_per_prompt": 2, "sampling": {"max_new_tokens": 4}, "optim": {"learning_rate": 1e-3},
}  # fmt: skip


def tiny():
    return Policy.load(resolve_model("tiny"))


def test_a_function_that_says_so_is_called_early_and_gives_the_same_run():
    threads: dict[int, set] = {0: set(), 2: set()}
    last = {}
    for workers, seen in threads.items():

        def reward(prompt, answer, seen=seen):
            seen.add(threading.current_thread() is threading.main_thread())
            return float(len(answer) % 3)

        metrics = tether.grpo(tiny(), ["one", "two"], reward, reward_workers=workers, **SETTINGS)
        last[workers] = repr({name: value for name, value in metrics.items() if not name.endswith(("seconds", "per_second"))})
    assert threads == {0: {True}, 2: {False}}
    assert last[0] == last[2]


@pytest.mark.parametrize(("reward", "workers", "message"), [
    (lambda prompt, answer: 0.0, -1, "reward_workers: expected a whole number of at least 0, got -1"),
    (lambda prompt, answer: 0.0, "2", "reward_workers: expected a whole number of at least 0, got '2'"),
    ([LengthPart(1, 2, 4)], 2, "reward_workers = 2 is for a reward function, got list.*early_workers"),
])  # fmt: skip
def test_workers_without_a_function_or_of_another_kind_are_refused(reward, workers, message):
    with pytest.raises(ValueError, match=message):
        tether.grpo(tiny(), ["one"], reward, reward_workers=workers, **SETTINGS)


def test_a_run_whose_reward_always_breaks_stops_with_the_same_words():
    def reward(prompt, answer):
        raise TimeoutError("no answer within 3 s")

    told = []
    for workers in (0, 2):
        with pytest.raises(RewardError) as caught:
            tether.grpo(tiny(), ["one", "two"], reward, reward_workers=workers, **SETTINGS)
        told.append(str(caught.value))
    assert told[0] == told[1]


# -- while answers are generated ---------------------------------------------------------------------------------------------


@dataclass
class Bell:
    """A part that says when it was asked."""

    asked: threading.Event = field(default_factory=threading.Event)
    early_workers: int = 1
    name: str = "bell"

    def score(self, rollouts):
        self.asked.set()
        return [Score(1.0) for _ in rollouts]


class Patient:
    """A sampler whose second answer comes after the first one was asked about, or never."""

    version = 0

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    def refresh(self, version):
        pass

    def generate(self, requests, sampling):
        first, *others = ScriptedSampler(lambda request, index: (10 + index,)).generate(requests, sampling)
        yield first
        assert self._bell.asked.wait(LIMIT_S)
        yield from others


@dataclass
class Notebook:
    """A learner that learns nothing."""

    policy: Policy
    config: object
    beta: float = 0.0

    def learn(self, rows, part_weights=()):
        return {}


def test_the_part_is_asked_before_the_last_answer_is_there_and_the_metrics_say_for_how_long():
    bell = Bell()
    config = build_config()
    parts = loop.OnlineRun(Notebook(tiny(), config), Patient(bell), Rubric([("bell", 1.0, bell)]), prompts(), 0)
    metrics = MetricSums()
    (group,) = loop._collect_and_score(parts, prompts(), 1, metrics)
    assert group.scores == (1.0, 1.0)
    means = metrics.means()
    assert 0 < means["score_hidden_seconds"] <= means["score_seconds"]
    assert means["score_hidden_seconds"] <= means["generate_seconds"]


def build_config():
    settings = {"kind": "grpo", "prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "samples_per_prompt": 2}
    return rl_kind("grpo").model_validate({**settings, "sampling": {"max_new_tokens": 4}})


def prompts():
    return [Prompt("p0", "Say 0.")]
