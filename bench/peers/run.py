"""One workload from its environments to its result file: roofline, the peer's settings tried, the best of them against Tether in rounds."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.peers import environments, texts
from bench.peers.machine import machine, products
from bench.peers.rounds import measure_turns
from bench.peers.search import search
from bench.peers.sides import Side, SideFailed
from bench.peers.summary import seconds_of, spread
from bench.peers.workloads import FULL, QUICK, Sizes, Variant, Workload
from bench.roofline import Roof, generate_floor_s, read_dims, update_floor_s

__all__ = ["LEAD", "Options", "code", "finalists", "places", "run"]

LEAD = 0.05
"""A lead of one setting over another by less than this share of its time, one trial each, is taken for chance."""


@dataclass(frozen=True)
class Options:
    """How to run. ``variants``: names to take instead of the usual ones; ``everyone``: all of them take part in every round."""

    rounds: int
    model: Path
    folder: Path
    command: str
    quick: bool = False
    everyone: bool = False
    variants: Sequence[str] = ()
    lengths: Sequence[str] = ()

    @property
    def sizes(self) -> Sizes:
        """Of every measurement."""
        return QUICK if self.quick else FULL


def run(workload: Workload, options: Options, steps: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Measure, and write ``folder/NAME.json`` after every round, so that what was measured survives an interruption.

    ``steps``: the result of ``workload.steps_of`` in this run. Its trials choose, by the phases of this workload; where none of their
    choices leads by more than what one trial can tell, its rounds are the result.
    """
    sizes = workload.sized(options.sizes)
    wanted = workload.choose(options.variants, products())
    lengths = tuple(name for name in workload.lengths if not options.lengths or name in options.lengths) or workload.lengths
    if steps is not None and _as_fast(steps, [place[0] for place in _taking_part(wanted, steps["tried"], workload, options)], workload):
        return write({**steps, "what": workload.name}, options)
    setup = _setup(workload, sizes, options.model)
    result: dict[str, Any] = {
        "what": workload.name,
        "command": options.command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "code": code(),
        "quick": options.quick,
        "rounds": 0,
        "lengths": list(lengths),
        "sizes": asdict(sizes),
        "machine": machine(),
        "versions": {name: environments.installed(environments.ensure(name)) for name in dict.fromkeys(v.environment for v in wanted)},
        "roofline": _roofline(options),
    }
    if steps is not None:
        result["tried"] = steps["tried"]
    else:
        result["tried"] = [] if options.everyone or options.quick else _try_each([v for v in wanted if not v.ours], workload, options)
    taking_part = _taking_part(wanted, result["tried"], workload, options)

    def warm(variant: Variant) -> tuple[Side, dict[str, Any]]:
        side = _side(variant, workload, setup, options)
        measure = side.measure(lengths=lengths[0])
        _check(side, measure if lengths[0] == "forced" else None, "forced", setup, workload)
        return side, {lengths[0]: measure}

    measure_turns(taking_part, lengths, warm, options.rounds, result, _say, lambda: write(result, options))
    after = _roofline(options)
    result["roofline"] = {
        name: max(value, after[name]) if isinstance(value, float) else value for name, value in result["roofline"].items()
    }
    result["roofline_share"] = _shares(result, workload, sizes, options.model)
    return write(result, options)


def code() -> str:
    """SHA-256 of the sources that are measured and that measure, names and texts."""
    own, root = Path(__file__).parent, Path(__file__).parents[2]
    told = hashlib.sha256()
    for path in sorted([*(root / "src").rglob("*.py"), root / "bench" / "roofline.py", *own.rglob("*.py"), *own.rglob("*.txt")]):
        told.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return told.hexdigest()


def places(variants: Sequence[Variant], tried: Sequence[Mapping[str, Any]], workload: Workload) -> list[list[Variant]]:
    """Ours, and for each precision of the peers those whose trials ended, the fastest first, or the first of all where none was tried."""
    seconds = {one["name"]: seconds_of(one["measure"], workload.phases) if "measure" in one else math.inf for one in tried}
    found = [[variant] for variant in variants if variant.ours]
    for numerics in dict.fromkeys(variant.numerics for variant in variants if not variant.ours):
        rivals = [variant for variant in variants if not variant.ours and variant.numerics == numerics]
        known = sorted((rival for rival in rivals if rival.name in seconds), key=lambda rival: seconds[rival.name])
        if ranked := [rival for rival in known or rivals[:1] if seconds.get(rival.name, 0.0) < math.inf]:
            found.append(ranked)
    return found


def finalists(variants: Sequence[Variant], tried: Sequence[Mapping[str, Any]], workload: Workload) -> list[Variant]:
    """The first of each place."""
    return [place[0] for place in places(variants, tried, workload)]


# ----------------------------------------------------------------------------------------------------------------------------


def _taking_part(
    wanted: Sequence[Variant], tried: Sequence[Mapping[str, Any]], workload: Workload, options: Options
) -> Sequence[Sequence[Variant]]:
    return [[variant] for variant in wanted] if options.everyone else places(wanted, tried, workload)


def _as_fast(steps: Mapping[str, Any], chosen: Sequence[Variant], workload: Workload) -> bool:
    """Whether sides that were measured are the chosen ones, or in their trials slower than those by ``LEAD`` at most."""
    seconds = {one["name"]: seconds_of(one["measure"], workload.phases) for one in steps["tried"] if "measure" in one}
    measured = {(side["ours"], side["numerics"]): side["name"] for side in steps["sides"]}
    for variant in chosen:
        name = measured.get((variant.ours, variant.numerics))
        if name != variant.name and not (name in seconds and seconds[name] <= (1 + LEAD) * seconds[variant.name]):
            return False
    return True


def _setup(workload: Workload, sizes: Sizes, model: Path) -> dict[str, Any]:
    return {
        "what": "update" if workload.name == "reference" else workload.name,
        "model": str(model),
        "sizes": asdict(sizes),
        "beta": 0.05,
        "learning_rate": 1e-6,
        **texts.given(sizes, model),
    }


def _try_each(peers: Sequence[Variant], workload: Workload, options: Options) -> list[dict[str, Any]]:
    """The second step, of a trial's sizes, of the peers' variants that ``search`` asks for, or of all that were named. The first step takes
    fresh memory, more of it the larger the passes, and would favour small ones."""
    sizes = workload.sized(options.sizes, trial=True)
    setup = _setup(workload, sizes, options.model)
    tried: list[dict[str, Any]] = []

    def measure(variant: Variant) -> float:
        told = {"name": variant.name, "numerics": variant.numerics, "settings": dict(variant.settings)}
        try:
            with _side(variant, workload, setup, options) as side:
                side.measure(lengths="forced")
                found = side.measure(lengths="forced")
                _check(side, found, "forced", setup, workload)
        except SideFailed as error:
            tried.append({**told, "failed": str(error)})
            _say(f"FAILED {error}")
            return math.inf
        tried.append({**told, "measure": found})
        seconds = seconds_of(found, workload.phases)
        _say(f"tried {variant.name}: {seconds:.1f} s, peak {found['peak_mib']:,.0f} MiB")
        return seconds

    search([replace(variant, place={}) for variant in peers] if options.variants else peers, measure)
    return tried


def _side(variant: Variant, workload: Workload, setup: Mapping[str, Any], options: Options) -> Side:
    name = "".join(letter if letter.isalnum() else "-" for letter in variant.name)
    return Side(variant, setup, environments.HOME / "logs" / f"{workload.name}-{name}.log")


def _check(side: Side, measure: Mapping[str, Any] | None, lengths: str, setup: Mapping[str, Any], workload: Workload) -> None:
    """Both sides must do the same work: prompts of the same length, and answers of the full one where that is forced."""
    sizes = setup["sizes"]
    if told := side.facts.get("prompt_tokens"):
        wanted = [len(ids) for ids in setup["prompt_ids"]]
        if told != wanted:
            side.close()
            raise SideFailed(f"{side.variant.name}: prompts have {told} tokens, expected {wanted}")
    full = sizes["prompts"] * sizes["samples"] * sizes["response_tokens"]
    if measure is not None and workload.tokens == "response" and measure["tokens"]["response"] != full:
        side.close()
        raise SideFailed(f"{side.variant.name}: {measure['tokens']['response']} answer tokens, expected {full} ({lengths})")


def _roofline(options: Options) -> dict[str, Any]:
    """In a process of its own, so that its buffers are gone before anything is measured."""
    seconds = "0.02" if options.quick else "0.4"
    command = [sys.executable, "-m", "bench.roofline", "--json", "--model", str(options.model), "--seconds", seconds]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return json.loads(done.stdout)


def _shares(result: Mapping[str, Any], workload: Workload, sizes: Sizes, model: Path) -> dict[str, dict[str, float]]:
    """By kind of lengths and phase: the floor of our side over its median time. Only where answers have the full length."""
    ours = next((side for side in result["sides"] if side["ours"]), None)
    measures = ours["measures"].get("forced") if ours else None
    if not measures or workload.tokens != "response" or workload.name == "reference":
        return {}
    dims, told = read_dims(model), result["roofline"]
    roof = Roof(told["bf16_tflops"], told["fp32_tflops"], told["read_gbs"], told["copy_gbs"], {})
    counts = (sizes.prompts, sizes.samples, sizes.prompt_tokens, sizes.response_tokens)
    floors = {"update": update_floor_s(dims, roof, *counts), "generate": generate_floor_s(dims, roof, *counts)}
    taken = {phase: [m["seconds"][phase] for m in measures if m["seconds"].get(phase)] for phase in floors}
    return {"forced": {phase: floors[phase] / spread(seconds).median for phase, seconds in taken.items() if seconds}}


def write(result: dict[str, Any], options: Options) -> dict[str, Any]:
    """The result as a file of the folder, whole or not at all. Returns it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{result['what']}.json"
    path.with_suffix(".part").write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".part").replace(path)
    return result


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)
