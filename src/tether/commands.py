"""Commands of ``tether`` that look at things: algorithms, mathematics, runs and models. Registered in ``tether.cli``.

As there, what is heavy is imported by the command that needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tether.cli_evaluate import compare, evaluate
from tether.cli_reward import Flagged, best_of_n
from tether.errors import ConfigError, RunError, TetherError

__all__ = ["COMMANDS", "FLAG", "Flagged"]

FLAG = Parameter(negative=())

_Run = Annotated[Path, Parameter(name="RUN", help="Folder of a run, e.g. runs/quickstart.")]
_Json = Annotated[bool, FLAG, Parameter(name="--json", help="Print everything as JSON.")]


def algorithms() -> None:
    """List the online algorithms as what they are: choices of parts. `kind` takes their names."""
    from tether.algorithms.table import as_text

    print(as_text())


def conformance(
    *words: Annotated[
        str, Parameter(name="FILE", help="Cases as in docs/conformance.md; with --config, settings that replace those of the run.")
    ],
    config: Annotated[
        Path | None, Parameter(help="Check a run of your own instead: ratio, masks, KL, gradients, sampler.")
    ] = None,
    as_json: Annotated[bool, FLAG, Parameter(name="--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check the mathematics against a file of golden cases, or a run of yours against what it should compute.

    Status 0 only if everything passed and nothing is missing. Example: tether conformance --config run.toml
    """
    if config is not None:
        from tether.config import load_config
        from tether.run.selfcheck import as_json as verdict_json
        from tether.run.selfcheck import check_config

        verdict = check_config(load_config(config, words), say=_ignore if as_json else print)
        if as_json:
            print(verdict_json(verdict))
        if not verdict.ok:
            raise RunError(f"{config}: {verdict.sentence}")
        if not as_json:
            print(verdict.sentence)
        return
    if len(words) != 1:
        raise ConfigError(f"conformance: expected one FILE of cases or --config RUN.toml, got {len(words)} files")
    from tether import conformance as cases

    report = cases.run_file(words[0])
    print(cases.as_json(report) if as_json else cases.as_text(report))
    if not report.ok:
        raise TetherError(f"{words[0]}: {report.verdict}")


def lab(
    name: Annotated[str | None, Parameter(help="Which lab; without it, all are listed.")] = None,
    /,
    *,
    as_json: Annotated[bool, FLAG, Parameter(name="--json", help="Print every figure, unrounded, as JSON.")] = False,
    plot: Annotated[Path | None, Parameter(help="Draw it into this .svg or .png file.")] = None,
    **options: Annotated[str, Parameter(help="What the lab lets you set, e.g. --contradict 5.")],
) -> None:
    """Small worlds with exact answers: textbook rules beside the correct ones, and experiments with known outcomes."""
    from tether.labs import LABS, run_lab
    from tether.labs.options import parse_options

    if name is None:
        print("\n".join(_lab_line(entry) for entry in LABS.values()))
        return
    from tether.labs.plot import check_plot, write_plot
    from tether.labs.show import as_json as result_json
    from tether.labs.show import as_text

    chosen = parse_options(name, options)
    if plot is not None:
        check_plot(plot)
    result = run_lab(name, **chosen)
    print(result_json(result) if as_json else as_text(result))
    if plot is not None:
        write_plot(result, plot)


def _ignore(_text: str) -> None:
    """Lines that only a reader at a terminal wants."""


def _lab_line(entry: Any) -> str:
    options = "  ".join(f"--{option.name}" for option in entry.options)
    return f"{entry.name:<18}{entry.summary}" + (f"  ({options})" if options else "")


def watch(
    folder: _Run,
    /,
    *,
    port: Annotated[int, Parameter(help="Port on 127.0.0.1 and ::1; 0 takes a free one.")] = 0,
) -> None:
    """Show the report live in the browser of this machine while the run works; stop with Ctrl-C."""
    from tether.watch import watch as watch_run

    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected a number from 0 (a free port) to 65535")
    watch_run(folder, port=port)


def audit(
    file: Annotated[Path, Parameter(name="FILE", help="Texts with rewards: JSONL, Parquet, a TRL completions table.")],
    /,
    *,
    baseline: Annotated[Path | None, Parameter(help="Texts of the policy before training, to compare with.")] = None,
    reward: Annotated[str | None, Parameter(help="Column of the reward, where there are several.")] = None,
    as_json: _Json = False,
) -> None:
    """Do these outputs look like a gamed reward? Lengths, repetition, distinct share, reward against length. Status 3 if flagged."""
    from tether.audit import as_json as audit_json
    from tether.audit import as_text
    from tether.audit import audit as audit_file

    found = audit_file(file, baseline, reward=reward)
    print(audit_json(found) if as_json else as_text(found))
    if found.status:
        raise Flagged(found.status)


def verify_resume(
    config: Annotated[Path, Parameter(name="CONFIG", help="A .toml, .yaml or .json file.")],
    /,
    *overrides: Annotated[str, Parameter(help="Settings that replace those of the file: sft.epochs=2.")],
    model: Annotated[str | None, Parameter(help="Start model instead of the file's.")] = None,
) -> None:
    """Prove on your own configuration, in a few steps, that an interrupted run ends as the unbroken one, bit for bit."""
    from tether.config import load_config
    from tether.run.verify_resume import verify_resume as verify

    verdict = verify(load_config(config, [*([f"model.path={model}"] if model else []), *overrides]), say=print)
    print(verdict.sentence)
    if not verdict.ok:
        raise RunError(f"{config}: {verdict.sentence}")


COMMANDS = (algorithms, conformance, lab, evaluate, compare, watch, audit, best_of_n, verify_resume)
"""In the order of the help."""
