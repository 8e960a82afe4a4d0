"""The ``tether`` command. Heavy modules are imported by the command that needs them, so that help is instant.

Exit status: 0 done, 1 an error of Tether, 2 wrong usage or configuration, 3 a check paused the run or an audit found flags, 130 Ctrl-C,
141 reader gone, 143 SIGTERM.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from tether import __version__
from tether.cli_collect import collect_app
from tether.cli_reward import reward_app
from tether.commands import COMMANDS, FLAG, Flagged
from tether.errors import ConfigError, Interrupted, Paused, RunError, TetherError

__all__ = ["TOP_LEVEL_SETTINGS", "app", "as_overrides", "main"]

# Settings in no section: `--seed 3` is an override like `--sft.epochs 3`. Pinned by a test to RunConfig.
TOP_LEVEL_SETTINGS = ("name", "output", "seed")

app = App(
    name="tether",
    version=__version__,
    version_flags=("--version",),
    help="Reinforcement learning from human feedback: comparisons to a tethered policy and a report.",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # main says what to run next
)
config_app = App(name="config", help="Explain configurations.")
app.command(config_app)
app.command(collect_app)
app.command(reward_app)

_ConfigFile = Annotated[Path, Parameter(help="A .toml, .yaml or .json file.")]
_Overrides = Annotated[
    str,
    Parameter(help="Settings that replace those of the file: sft.epochs=2 or --sft.epochs 2, - or _ alike."),
]
for command in COMMANDS:
    app.command(command)


@app.command
def run(
    config: _ConfigFile,
    /,
    *overrides: _Overrides,
    model: Annotated[
        str | None, Parameter(help="Start model instead of the file's: smollm2, tiny, a folder or a hub id.")
    ] = None,
    dry_run: Annotated[
        bool, FLAG, Parameter(help="Print the resolved configuration and the plan, and stop.")
    ] = False,
    quiet: Annotated[bool, FLAG, Parameter(help="Print nothing but the report's path.")] = False,
    fresh: Annotated[
        bool, FLAG, Parameter(help="Start over: set the folder of an earlier run of this name aside.")
    ] = False,
    accept_changes: Annotated[
        bool, FLAG, Parameter(help="Go on from a checkpoint although settings, data or code have changed since.")
    ] = False,
) -> None:
    """Run the stages of a configuration; run it again to continue where it stopped.

    Example: tether run recipes/quickstart.toml --model tiny rl.ppo.kl.beta=0.1
    """
    from tether.config import load_config

    chosen = [*([f"model.path={model}"] if model else []), *overrides]
    resolved = load_config(config, chosen)
    if dry_run:
        from tether.dryrun import NOT_READY, plan_lines

        print(_resolved_text(config, chosen))
        print("# Plan")
        plan = plan_lines(resolved)
        print("\n".join(f"#   {line}" for line in plan))
        if missing := [line for line in plan if NOT_READY in line]:
            raise RunError(f"this run could not start: {'; '.join(missing)}")
        return
    _run_pipeline(resolved, quiet=quiet, fresh=fresh, accept_changes=accept_changes, acknowledge=False)


@app.command
def resume(
    folder: Annotated[Path, Parameter(name="RUN", help="Folder of a run, e.g. runs/quickstart.")],
    /,
    *,
    quiet: Annotated[bool, FLAG, Parameter(help="Print nothing but the report's path.")] = False,
    accept_changes: Annotated[
        bool, FLAG, Parameter(help="Go on although data or code have changed since.")
    ] = False,
    acknowledge: Annotated[
        bool, FLAG, Parameter(help="You have seen the alarms that paused it: they do not trip again.")
    ] = False,
) -> None:
    """Go on with an interrupted run from its newest checkpoint, with the settings it was started with."""
    from tether.config import load_config

    stored = folder / "config.json"
    if not stored.is_file():
        if not any(any(folder.glob(pattern)) for pattern in ("*/stage.json", "checkpoints/*", "events.jsonl")):
            raise RunError(f"{folder} is no run: it holds no config.json")
        raise RunError(f"{folder} holds no config.json, the run's own copy of its settings: {_bring_back(folder)}")
    try:
        resolved = load_config(stored, [f"output={folder.absolute().parent}", f"name={folder.absolute().name}"])
    except ConfigError as error:
        raise RunError(
            f"{error}. The run's own copy of its settings is damaged: {_bring_back(folder)}"
        ) from error
    _run_pipeline(resolved, quiet=quiet, fresh=False, accept_changes=accept_changes, acknowledge=acknowledge)


def _bring_back(folder: Path) -> str:
    again = f"`tether run CONFIG output={folder.absolute().parent} name={folder.absolute().name}`"
    return f"put it back from a copy, or start the run again with the file it came from, {again}; what is finished is kept"


def _run_pipeline(config: Any, *, quiet: bool, fresh: bool, accept_changes: bool, acknowledge: bool) -> None:
    from tether.progress import choose_progress
    from tether.run.pipeline import run as run_pipeline

    with choose_progress(quiet) as progress:
        result = run_pipeline(
            config, observer=progress, fresh=fresh, accept_changes=accept_changes, acknowledge=acknowledge
        )
    print(result.report)


@app.command
def fetch(
    name: Annotated[
        Literal["smollm2"], Parameter(help="SmolLM2-135M-Instruct, 93 MB to download, 540 MB on disk.")
    ],
    /,
) -> None:
    """Put a model into the user cache; its hash is checked, and a stopped download goes on."""
    from tether.models.fetch import fetch_smollm2

    assert name == "smollm2"
    print(fetch_smollm2())


@config_app.command
def show(config: _ConfigFile, /, *overrides: _Overrides) -> None:
    """Print every setting of a run with where it came from: file, override or default."""
    print(_resolved_text(config, overrides))


@config_app.command
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    import json

    from tether.config import RunConfig

    print(json.dumps(RunConfig.model_json_schema(), indent=2))


@app.command
def metrics() -> None:
    """List every number that is logged: unit, mask, aggregation, meaning and healthy band."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tether.metrics import REGISTRY

    table = Table("name", "unit", "over", "aggregation", "healthy", "meaning", show_lines=False)
    for metric in REGISTRY.values():
        cells = (
            metric.name,
            metric.unit,
            metric.mask,
            metric.aggregation,
            _band(metric.healthy),
            metric.meaning,
        )
        table.add_row(*(Text(cell) for cell in cells))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)


@app.command
def report(
    folder: Annotated[Path, Parameter(name="RUN", help="Folder of a run, e.g. runs/quickstart.")], /
) -> None:
    """Rebuild report.html from what a run has logged so far."""
    from tether.report import write_report
    from tether.report.read import read_run

    print(write_report(folder))
    for problem in read_run(folder).problems:
        print(f"WARNING: {problem}", file=sys.stderr)


def _band(healthy: tuple[float | None, float | None] | None) -> str:
    if healthy is None:
        return ""
    low, high = healthy
    if low is None or high is None:
        return f">= {low:g}" if low is not None else f"<= {high:g}"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _resolved_text(path: Path, overrides: Sequence[str]) -> str:
    from tether.config import load_config, parse_text
    from tether.dryrun import Origin, render

    config = load_config(path, overrides)
    file = parse_text(path.read_text(encoding="utf-8"), path.suffix, str(path))
    return render(config, Origin(file, overrides))


def as_overrides(tokens: Sequence[str]) -> list[str]:
    """Dotted settings in any accustomed spelling become ``a.b=c``; other tokens stay.

    Example: ["--sft.batch-size", "4", "--quiet", "seed=1"] -> ["sft.batch_size=4", "--quiet", "seed=1"]. Raises ConfigError for a setting
    without its value.
    """
    pending, rewritten = list(tokens), []
    while pending:
        token = pending.pop(0)
        option, equals, value = token.partition("=")
        path = option.removeprefix("--")
        dotted = "." in path and re.fullmatch(r"[A-Za-z_][\w.-]*", path)
        if not token.startswith("--"):
            rewritten.append(f"{_underscored(path)}={value}" if equals and dotted else token)
        elif not (dotted or path in TOP_LEVEL_SETTINGS):
            rewritten.append(token)
        elif equals:
            rewritten.append(f"{_underscored(path)}={value}")
        elif not pending or pending[0].startswith("--"):
            found = f"; {pending[0]} is the next option" if pending else ""
            raise ConfigError(f"{token}: a value is missing{found}. Write {token}=VALUE, or {_underscored(path)}=VALUE")
        else:
            rewritten.append(f"{_underscored(path)}={pending.pop(0)}")
    return rewritten


def _underscored(path: str) -> str:
    """Field names have underscores; the NAME of rl.NAME and direct.NAME is the user's and stays."""
    parts = path.split(".")
    return ".".join(
        part if index == 1 and parts[0] in {"rl", "direct"} else part.replace("-", "_")
        for index, part in enumerate(parts)
    )


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}
"""What a disk, and not Tether, is to blame for."""


def main(tokens: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    takes_overrides = tokens[:1] in (["run"], ["conformance"], ["verify-resume"]) or tokens[:2] == ["config", "show"]
    try:
        app(
            as_overrides(tokens) if takes_overrides else tokens,
            exit_on_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError:
        return 2
    except BrokenPipeError:  # `tether ... | head`: nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ConfigError as error:
        _complain(str(error))
        return 2
    except Flagged as found:
        return found.status
    except Paused as paused:
        _complain(str(paused))
        return paused.status
    except Interrupted as stopped:
        _complain(f"{stopped}. To continue, run: {_again(tokens)}")
        return stopped.status
    except TetherError as error:
        _complain("\n".join([str(error), *vars(error).get("__notes__", ())]))
        return 1
    except OSError as error:
        if error.errno not in _DISK:
            raise
        _complain(f"{error}. What is finished is kept; make room, or mend the disk or its rights, then run again: {_again(tokens)}")
        return 1
    except KeyboardInterrupt:
        _complain(f"stopped. Run again: {_again(tokens)}")
        return 130
    return 0


def _again(tokens: Sequence[str]) -> str:
    return shlex.join(["tether", *(token for token in tokens if token != "--fresh")])


def _complain(text: str) -> None:
    print(f"tether: {text}", file=sys.stderr)
