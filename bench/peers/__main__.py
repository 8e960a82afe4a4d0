"""Tether beside the libraries one would otherwise pick, in one run on this machine: A B A B, each in an environment of its own.

    python -m bench.peers all [--rounds 3]                 every workload, then the section "Speed against peers" of bench/RESULTS.md
    python -m bench.peers grpo update [--quick]            some of them
    python -m bench.peers table                            the section anew from the raw numbers

Prints tables and writes bench/results/WHAT.json (with --quick: quick/WHAT.json of the folder below). The first run
makes the environments under ~/.cache/tether-bench (TETHER_BENCH_HOME), which takes minutes and about 6 GB. Logs of the sides lie there too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.environments import HOME
from bench.peers.run import Options, run, write
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
    parser.add_argument("--quick", action="store_true", help="tiny sizes: proves that everything runs, says nothing about speed")
    parser.add_argument("--everyone", action="store_true", help="no trial of the settings: all variants take part in every round (memory!)")
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
            print(f"{workload.name}: " + "; ".join(v.name + ("" if v.default else " (only by name)") for v in workload.variants))
        return 0
    names = list(WORKLOADS) if "all" in options.what else [name for name in WORKLOADS if name in options.what]
    model = options.model.expanduser()
    if problem := _problem(names, options.variants, model):
        parser.error(problem)
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = Options(
        rounds=options.rounds or (1 if options.quick else 3),
        model=model,
        folder=HOME / "quick" if options.quick else _RESULTS,
        command="python -m bench.peers " + shlex.join(given),
        quick=options.quick,
        everyone=options.everyone,
        variants=options.variants,
        lengths=options.lengths,
    )
    done: dict[str, Any] = {}
    for name in names:
        shared = done.get("update") if name == "reference" else None  # the same steps; other phases are compared
        done[name] = run(WORKLOADS[name], asked) if shared is None else write({**shared, "what": name}, asked)
        print(result_text(done[name]), flush=True)
    return _tables() if "all" in options.what and not options.quick else 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _problem(names: Sequence[str], variants: Sequence[str], model: Path) -> str | None:
    """What cannot be measured as asked, before anything is: variants that no workload has or that leave one without a peer, no model."""
    known = {variant.name for name in names for variant in WORKLOADS[name].variants}
    if unknown := [name for name in variants if name not in known]:
        return f"no variant is named {unknown[0]!r} in {', '.join(names)}: `python -m bench.peers variants` lists them"
    for name in names if variants else ():
        if not any(variant.name in variants for variant in WORKLOADS[name].variants):
            return f"{name} has none of the variants that --variants names: add one of its own, or leave {name} out"
    missing = [file for file in ("config.json", "tokenizer.json", "chat_template.jinja") if not (model / file).is_file()]
    if missing:
        return f"{model} has no {missing[0]}: make it with `tether fetch smollm2`, or name another folder of a model with --model"
    return None


def _tables() -> int:
    results = {name: json.loads(path.read_text()) for name in WORKLOADS if (path := _RESULTS / f"{name}.json").exists()}
    if not results:
        print(f"there is no result in {_RESULTS}: run `python -m bench.peers all` first", file=sys.stderr)
        return 1
    page = _BENCH / "RESULTS.md"
    page.write_text(replaced(page.read_text(), section(results, {name: f"bench/results/{name}.json" for name in results})))
    print(f"{page}: {', '.join(results)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
