"""Mirrors of the log: names, runs per stage, failures that stop nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tether.config import parse_config
from tether.errors import ConfigError
from tether.events import EventLog, read_events
from tether.metrics import REGISTRY
from tether.trackers import TRACKERS, TRL_NAMES, Mirror, named, require_trackers


class FakeRun:
    """What trackio and wandb hand out. State: what it was told."""

    def __init__(self, name: str, fails: bool) -> None:
        self.name, self.fails, self.logged, self.finished = name, fails, [], False

    def log(self, values: dict[str, float], step: int) -> None:
        if self.fails:
            raise OSError("no route to host")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


class FakeModule(ModuleType):
    """A package with ``init``. State: the runs it opened."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__("fake")
        self.fails, self.runs, self.told = fails, [], []

    def init(self, **told: object) -> FakeRun:
        print("* a banner on stdout")
        self.told.append(told)
        self.runs.append(FakeRun(str(told["name"]), self.fails))
        return self.runs[-1]


@pytest.fixture
def packages(monkeypatch) -> dict[str, FakeModule]:
    found = {"trackio": FakeModule(), "wandb": FakeModule(fails=True)}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.fixture
def mirrored(tmp_path) -> Iterator[Callable[[Sequence[str]], EventLog]]:
    log = EventLog(tmp_path / "events.jsonl")

    def make(names: Sequence[str]) -> EventLog:
        log.listen(Mirror(names, "toy", tmp_path, {"seed": 1}))
        return log

    yield make
    log.close()


def test_every_stage_is_a_run_and_every_number_has_its_names(mirrored, packages, capsys):
    log = mirrored(["trackio"])
    for stage in ("rl.ppo", "rl.grpo"):
        log.write("stage_started", stage=stage, num_steps=1)
        log.write("panel", stage=stage, step=0, values={"score": 0.5, "proxy": None})
        log.write("step", stage=stage, step=1, metrics={"reward": 0.5, "reward/exact": float("nan"), "kl_k3_token": 0.1})
        log.write("stage_finished", stage=stage, summary={})
    runs = packages["trackio"].runs
    assert [run.name for run in runs] == ["toy-rl.ppo", "toy-rl.grpo"]
    assert all(run.finished for run in runs)
    assert runs[0].logged == [
        (0, {"panel/score": 0.5}),
        (1, {"reward": 0.5, "kl_k3_token": 0.1, "train/reward": 0.5, "train/kl": 0.1}),
    ]
    assert packages["trackio"].told[0]["config"] == {"seed": 1}
    assert capsys.readouterr().out == ""


def test_a_tracker_that_fails_is_one_warning_and_the_others_go_on(mirrored, packages, caplog):
    log = mirrored(["wandb", "trackio"])
    log.write("stage_started", stage="rl.ppo", num_steps=3)
    for step in (1, 2, 3):
        log.write("step", stage="rl.ppo", step=step, metrics={"reward": 0.5})
    log.write("stage_finished", stage="rl.ppo", summary={})
    assert [record.getMessage() for record in caplog.records] == [
        "wandb failed and gets nothing more of this run; the log has it all (OSError: no route to host)"
    ]
    assert len(packages["trackio"].runs[0].logged) == 3
    assert len([e for e in read_events(log.path) if e["kind"] == "step"]) == 3


def test_nothing_is_imported_unless_named(mirrored, tmp_path, monkeypatch):
    def refuse(name: str, package: str | None = None) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    log = mirrored([])
    log.write("stage_started", stage="sft", num_steps=1)
    log.write("step", stage="sft", step=1, metrics={"loss": 1.0})
    require_trackers([])


def test_missing_packages_are_named_together_with_their_remedy(monkeypatch):
    for spec in TRACKERS.values():
        for package in spec.packages:
            monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        require_trackers(["trackio", "tensorboard"])
    assert len(caught.value.problems) == 2
    assert "pip install 'tether[trackio]'" in str(caught.value)


def test_tensorboard_drops_what_a_resume_repeats(mirrored, tmp_path, monkeypatch):
    opened: list[tuple[str, int | None]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None = None) -> None:
            opened.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...

    module = ModuleType("tensorboardX")
    monkeypatch.setattr(module, "SummaryWriter", Writer, raising=False)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    log = mirrored(["tensorboard"])
    log.write("stage_started", stage="sft", num_steps=9)
    log.write("resumed", stage="sft", step=4)
    log.write("step", stage="sft", step=5, metrics={"loss": 1.0})
    assert opened == [(str(tmp_path / "tensorboard" / "toy-sft"), 5)]


def test_aliases_are_of_registered_metrics_and_differ():
    assert TRL_NAMES.keys() <= REGISTRY.keys()
    assert len(set(TRL_NAMES.values())) == len(TRL_NAMES)
    assert named({"reward/exact": 1.0}) == {"reward/exact": 1.0, "train/rewards/exact/mean": 1.0}


def test_the_page_lists_every_alias():
    page = (Path(__file__).resolve().parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    assert [line for name, alias in TRL_NAMES.items() if (line := f"| `{name}` | `{alias}` |") not in page] == []


@pytest.mark.parametrize("written", ['"trackio"', '["trackio"]'])
def test_setting(written: str):
    assert parse_config(f"report_to = {written}\n[sft]\ndata.path = 'x.jsonl'", ".toml").report_to == ("trackio",)


def test_unknown_tracker_is_named():
    with pytest.raises(ConfigError, match="report_to"):
        parse_config("report_to = ['mlflow']\n[sft]\ndata.path = 'x.jsonl'", ".toml")
