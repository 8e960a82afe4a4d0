"""Tether beside the libraries one would otherwise pick, in one run on this machine: A B A B, each in an environment of its own.

    python -m bench.peers all [--rounds 3]                 every workload, then the section "Speed against peers" of bench/RESULTS.md
    python -m bench.peers grpo update [--quick]            some of them
    python -m bench.peers variants                         the settings of every side
    python -m bench.peers table                            the section anew from the raw numbers

Prints tables and writes bench/results/KIND/WHAT.json, KIND of processor (with --quick: quick/WHAT.json of the folder below). The first run
makes the environments under ~/.cache/tether-bench (TETHER_BENCH_HOME), which takes minutes and about 6 GB. Logs of the sides lie there too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.environments import HOME
from bench.peers.machine import KINDS, kind, products
from bench.peers.run import Options, code, run
from bench.peers.summary import replaced, result_text, section
from bench.peers.workloads import WORKLOADS

_BENCH = Path(__file__).parents[1]
_RESULTS = _BENCH / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or write the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=[*WORKLOADS, "all", "table", "variants"])
    parser.add_argument("--rounds", type=_count, help="measurements of each side (default: 3, with --quick 1)")
    parser.add_argument("--resume", action="store_true", help="keep what this very code has measured to the end, with as many rounds")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no trials: shows that it runs, says nothing about speed")
    parser.add_argument("--everyone", action="store_true", help="no trial: all that --variants names take part in every round (memory!)")
    parser.add_argument(
        "--variants", nargs="+", default=[], metavar="NAME", help="only these and Tether, each where a workload has it; see `variants`"
    )
    parser.add_argument("--lengths", nargs="+", default=[], choices=["forced", "natural"], help="how answers end (default: both)")
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache" / "tether" / "smollm2", help="folder of the model")
    options = parser.parse_args(arguments)
    if "table" in options.what:
        return _tables()
    if "variants" in options.what:
        for workload in WORKLOADS.values():
            usual = {variant.name for variant in workload.choose((), products())}
            print(f"{workload.name}: " + "; ".join(v.name + ("" if v.name in usual else " (only by name)") for v in workload.variants))
        return 0
    names = list(WORKLOADS) if "all" in options.what else [name for name in WORKLOADS if name in options.what]
    model = options.model.expanduser()
    folder = HOME / "quick" if options.quick else _RESULTS / kind()
    if options.everyone and not options.variants:
        parser.error("--everyone needs --variants: all settings at once are more than a machine holds")
    if problem := _problem(names, options.variants, options.lengths, model) or _unwritable(folder):
        parser.error(problem)
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = Options(
        rounds=options.rounds or (1 if options.quick else 3),
        model=model,
        folder=folder,
        command="python -m bench.peers " + shlex.join(given),
        quick=options.quick,
        everyone=options.everyone,
        variants=options.variants,
        lengths=options.lengths,
    )
    done: dict[str, Any] = {}
    for name in names:
        if options.resume and (kept := _whole(name, asked)):
            done[name] = kept
            print(f"{name}: kept, measured {kept['date']}", flush=True)
            continue
        done[name] = run(WORKLOADS[name], asked, done.get(WORKLOADS[name].steps_of))
        print(result_text(done[name]), flush=True)
    return _tables() if "all" in options.what and not options.quick else 0


def _whole(name: str, asked: Options) -> dict[str, Any] | None:
    """The result that an interrupted run of this code left, where it was measured to its end as asked."""
    try:
        found = _read(name, asked.folder / f"{name}.json")
    except (OSError, ValueError):
        return None
    whole = "roofline_share" in found  # written last
    return found if whole and found["rounds"] == asked.rounds and found.get("code") == code() else None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _problem(names: Sequence[str], variants: Sequence[str], lengths: Sequence[str], model: Path) -> str | None:
    """What cannot be measured as asked: variants that no workload has or that leave one without a peer, lengths it has not, no model."""
    known = {variant.name for name in names for variant in WORKLOADS[name].variants}
    if unknown := [name for name in variants if name not in known]:
        return f"no variant is named {unknown[0]!r} in {', '.join(names)}: `python -m bench.peers variants` lists them"
    for name in names if variants else ():
        if not any(variant.name in variants for variant in WORKLOADS[name].variants):
            return f"{name} has none of the variants that --variants names: add one of its own, or leave {name} out"
    for name in names if lengths else ():
        if not set(lengths) & set(WORKLOADS[name].lengths):
            return f"{name} has no --lengths {' '.join(lengths)}, only {', '.join(WORKLOADS[name].lengths)}: leave {name} out, or --lengths"
    missing = [file for file in ("config.json", "tokenizer.json", "chat_template.jinja") if not (model / file).is_file()]
    if missing:
        return f"{model} has no {missing[0]}: make it with `tether fetch smollm2`, or name another folder of a model with --model"
    return None


def _unwritable(folder: Path) -> str | None:
    """Why no result could be written there: asked before hours are spent on one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            probe.write(b" " * 2**20)
            probe.flush()
    except OSError as error:
        return f"results cannot be written into {folder}: {error.strerror}"
    return None


def _tables() -> int:
    page = _BENCH / "RESULTS.md"
    try:
        results = {
            machine: found
            for machine in KINDS
            if (found := {name: _read(name, path) for name in WORKLOADS if (path := _RESULTS / machine / f"{name}.json").exists()})
        }
        if not results:
            raise ValueError(f"there is no result in {_RESULTS}: run `python -m bench.peers all` first")
        page.write_text(replaced(page.read_text(), section(results)))
    except (ValueError, OSError) as error:
        print(f"{page} is as it was: {error}", file=sys.stderr)
        return 1
    print(f"{page}: " + "; ".join(f"{machine}: {', '.join(found)}" for machine, found in results.items()))
    return 0


def _read(name: str, path: Path) -> dict[str, Any]:
    """A result that may be shown. Raises ValueError for a file that is none, is of --quick, or holds no round."""
    try:
        result = json.loads(path.read_text())
        result_text(result)
        what, quick, rounds = result["what"], result["quick"], result["rounds"]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not a result of this benchmark ({type(error).__name__}: {error}): measure it again") from error
    if what != name or quick or rounds < 1:
        raise ValueError(f"{path} holds {rounds} rounds of {what}{' with --quick' if quick else ''}, expected a measurement of {name}")
    return result


if __name__ == "__main__":
    raise SystemExit(main())
