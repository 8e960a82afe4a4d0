"""The command line: spellings of settings, exit statuses, what is printed where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tether import cli
from tether.config import RunConfig, load_config, resolved_json
from tether.dryrun import Origin, render
from tether.errors import Interrupted, RunError

CONFIG = """
name = "try"
seed = 3
[sft]
data.path = "{folder}/rows.jsonl"
epochs = 2
optim.learning_rate = 3e-5
[rl.ppo-a]
kind = "ppo"
prompts.path = "{folder}/prompts.jsonl"
steps = 5
prompts_per_step = 4
rewards = [{{kind = "exact"}}, {{kind = "format", weight = 0.5, params = {{pattern = 'a"b|\\d+'}}}}]
[rl.g]
kind = "grpo"
prompts.path = "org/name"
rewards = [{{kind = "exact"}}]
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    rows = [{"prompt": "1 + 1 =", "completion": " 2"}, {"prompt": "2 + 2 =", "completion": " 4"}] * 10
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "3 + 3 =", "answer": 6}) + "\n")
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def _replace_pipeline(monkeypatch: pytest.MonkeyPatch, run: Callable[..., object]) -> None:
    """The command line imports the pipeline when it is needed: it finds ``run`` in its place."""
    monkeypatch.setitem(sys.modules, "tether.run.pipeline", SimpleNamespace(run=run))  # type: ignore[arg-type]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """The runs that the command line asked for; none is carried out."""
    calls: list[SimpleNamespace] = []

    def run(config: RunConfig, *, observer: object, fresh: bool, **told: bool) -> SimpleNamespace:
        calls.append(SimpleNamespace(config=config, observer=observer, fresh=fresh, **told))
        return SimpleNamespace(folder=config.folder, report=config.folder / "report.html", evaluation=None)

    _replace_pipeline(monkeypatch, run)
    return calls


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["sft.epochs=3"], ["sft.epochs=3"]),
        (["--sft.epochs=3"], ["sft.epochs=3"]),
        (["--sft.epochs", "3"], ["sft.epochs=3"]),
        (["sft.batch-size=3"], ["sft.batch_size=3"]),
        (["--sft.batch-size", "3", "--quiet"], ["sft.batch_size=3", "--quiet"]),
        (["--rl.ppo-a.prompts-per-step=3"], ["rl.ppo-a.prompts_per_step=3"]),
        (["--seed", "3", "name=x-y"], ["seed=3", "name=x-y"]),
        (["--rl.g.kl.beta", "-1"], ["rl.g.kl.beta=-1"]),
        (["--model", "tiny"], ["--model", "tiny"]),
        (["a/b.toml"], ["a/b.toml"]),
        (["sft.data.path=a=b.c"], ["sft.data.path=a=b.c"]),
        (["--name=--x"], ["name=--x"]),
    ],
)
def test_settings_in_every_accustomed_spelling(tokens: list[str], expected: list[str]):
    assert cli.as_overrides(tokens) == expected


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--seed", "--dry-run"], "--seed: a value is missing; --dry-run is the next option. Write --seed=VALUE"),
        (["--sft.epochs", "--quiet"], "--sft.epochs: a value is missing; --quiet is"),
        (["--sft.batch-size"], "--sft.batch-size: a value is missing. Write --sft.batch-size=VALUE, or sft.batch_size=VALUE"),
    ],
)
def test_a_setting_without_its_value_swallows_no_option(
    config_file: Path, started: list[SimpleNamespace], capsys: pytest.CaptureFixture[str], tokens: list[str], message: str
):
    assert cli.main(["run", str(config_file), *tokens]) == 2
    assert message in capsys.readouterr().err
    assert started == []


def test_top_level_settings_are_those_of_the_configuration():
    scalars = [name for name, field in RunConfig.model_fields.items() if field.annotation in (str, int)]
    assert list(cli.TOP_LEVEL_SETTINGS) == scalars


def test_run_hands_over_the_overridden_configuration(
    config_file: Path, started: list[SimpleNamespace], capsys: pytest.CaptureFixture[str]
):
    tokens = [
        "run",
        str(config_file),
        "--model",
        "tiny",
        "sft.epochs=4",
        "--rl.ppo-a.kl.beta",
        "0.5",
        "--quiet",
    ]
    assert cli.main([*tokens, "--fresh"]) == 0
    (call,) = started
    assert call.fresh
    assert (call.config.model.path, call.config.sft.epochs, call.config.rl["ppo-a"].kl.beta) == (
        "tiny",
        4,
        0.5,
    )
    assert capsys.readouterr().out == f"{Path('runs') / 'try' / 'report.html'}\n"


def test_dry_run_runs_nothing_and_prints_plan(
    config_file: Path, started: list[SimpleNamespace], capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["run", str(config_file), "--model", "tiny", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert started == []
    assert "sft: 20 demonstrations" in out
    assert "4 optimiser steps, at most 20,480 tokens" in out  # 2 epochs x ceil(20 / 16); 2 x 20 x 512
    assert "rl.ppo-a (ppo): 1 prompts" in out
    assert "5 steps x 4 answers = 20 answers" in out
    assert "at most 1,280 tokens generated" in out  # 20 x 64
    assert "rl.g (grpo): prompts from org/name (counted when loaded)" in out
    assert tomllib.loads(out)["model"]["path"] == "tiny"


def test_dry_run_loads_no_torch(config_file: Path):
    code = "import sys; from tether.cli import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "run", str(config_file), "--model", "tiny", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_dry_run_says_which_data_is_missing(config_file: Path, capsys: pytest.CaptureFixture[str]):
    (config_file.parent / "prompts.jsonl").unlink()
    assert cli.main(["run", str(config_file), "--model", "tiny", "--dry-run"]) == 1
    assert "prompts.jsonl" in capsys.readouterr().err


def test_dry_run_says_which_rows_are_bad(config_file: Path, capsys: pytest.CaptureFixture[str]):
    (config_file.parent / "prompts.jsonl").write_text('{"prompt": "q"}\n{"prompt": null}\nno json\n')
    assert cli.main(["run", str(config_file), "--model", "tiny", "--dry-run"]) == 1
    told = capsys.readouterr().err
    assert "2 of 3 rows" in told
    assert "row 2: `prompt` is null" in told
    assert "row 3: not JSON" in told


def test_dry_run_says_that_the_model_is_missing(config_file: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", str(config_file), "--model", "nowhere", "--dry-run"]) == 1
    assert "NOT READY: no model 'nowhere'" in capsys.readouterr().err


def test_shown_configuration_is_the_same_configuration(config_file: Path, tmp_path: Path):
    overrides = ["rl.ppo-a.rewards.1.weight=2", "sft.optim.schedule=cosine"]
    config = load_config(config_file, overrides)
    again = tmp_path / "again.toml"
    again.write_text(render(config, Origin({}, overrides)))
    assert load_config(again) == config


def test_origin_of_every_setting(config_file: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        cli.main(["config", "show", str(config_file), "--sft.batch-size=4", "rl.ppo-a.rewards.1.weight=2"])
        == 0
    )
    origins = {}
    section = ""
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line:
            setting, origin = line.removeprefix("# ").rsplit("  # ", 1)
            origins.setdefault(f"{section}.{setting.split()[0]}".lstrip("."), []).append(origin)
    assert origins["seed"] == ["file"]
    assert origins["output"] == ["default"]
    assert origins["sft.batch_size"] == ["override"]
    assert origins["sft.optim.learning_rate"] == ["file"]
    assert origins["sft.optim.warmup_steps"] == ["default"]
    assert origins["rl.ppo-a.rewards.weight"] == ["default", "override"]
    assert origins["rl.ppo-a.rewards.params.pattern"] == ["file"]


def test_schema_is_json_with_help(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "Seed of everything random" in schema["properties"]["seed"]["description"]


def test_metrics_lists_the_registry(capsys: pytest.CaptureFixture[str]):
    from tether.metrics import REGISTRY

    assert cli.main(["metrics"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in REGISTRY)
    assert "nats per sequence" in out


def test_problems_of_a_configuration_come_without_a_traceback(
    config_file: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["run", str(config_file), "sft.epoch=2", "rl.g.steps=0"]) == 2
    captured = capsys.readouterr()
    assert "2 problems" in captured.err
    assert "did you mean 'epochs'?" in captured.err
    assert "rl.g.steps" in captured.err
    assert "Traceback" not in captured.err + captured.out


@pytest.mark.parametrize(
    ("tokens", "hint"),
    [
        (["rum"], 'Did you mean "run"?'),
        (["run", "x.toml", "--dryrun"], "--dry-run"),
        (["fetch", "smollm3"], "smollm2"),
    ],
)
def test_wrong_usage_names_the_nearest(tokens: list[str], hint: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(tokens) == 2
    captured = capsys.readouterr()
    assert hint in captured.err + captured.out


def test_error_of_a_run_is_a_message(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*_: object, **__: object) -> None:
        raise RunError("the folder holds another run; use --fresh")

    _replace_pipeline(monkeypatch, broken)
    assert cli.main(["run", str(config_file), "--quiet"]) == 1
    assert capsys.readouterr().err == "tether: the folder holds another run; use --fresh\n"


def test_ctrl_c_says_how_to_go_on(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    _replace_pipeline(monkeypatch, interrupted)
    assert cli.main(["run", str(config_file), "--fresh", "name=a b"]) == 2  # not a name: nothing starts
    assert cli.main(["run", str(config_file), "--fresh", "sft.epochs=3"]) == 130
    assert f"tether run {config_file} sft.epochs=3\n" in capsys.readouterr().err


def test_command_is_installed_and_lists_its_verbs():
    script = Path(sys.executable).with_name("tether")
    done = subprocess.run(
        [script, "--help"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("run", "fetch", "config", "metrics", "report"))


def test_output_into_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m tether config schema | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_resume_takes_the_stored_configuration_wherever_the_folder_now_lies(started, tmp_path):
    config = RunConfig.model_validate({"name": "old", "output": "elsewhere", "evaluate": {"prompts": {"path": "p.jsonl"}}})
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "config.json").write_text(resolved_json(config))
    assert cli.main(["resume", str(moved), "--quiet"]) == 0
    assert started[0].config.folder == moved
    assert cli.main(["resume", str(tmp_path)]) == 1


def test_resume_of_a_run_whose_configuration_is_gone_says_how_it_comes_back(tmp_path, capsys):
    assert cli.main(["resume", str(tmp_path)]) == 1
    assert "is no run: it holds no config.json" in capsys.readouterr().err
    (tmp_path / "events.jsonl").touch()
    assert cli.main(["resume", str(tmp_path)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"`tether run CONFIG output={tmp_path.parent} name={tmp_path.name}`; what is finished is kept" in told


def test_a_run_that_a_signal_ended_says_how_to_go_on(monkeypatch, tmp_path, capsys):
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted(143)

    _replace_pipeline(monkeypatch, stopped)
    file = tmp_path / "run.toml"
    file.write_text('[evaluate]\nprompts.path = "p.jsonl"\n')
    assert cli.main(["run", str(file), "--fresh"]) == 143
    assert f"tether run {file}" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_refused_before_the_lab_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tether.labs.run_lab", lambda *_args, **_options: pytest.fail("the lab ran"))
    assert cli.main(["lab", "kl-bandit", "--plot", str(tmp_path / "nowhere" / "a.svg")]) == 2
