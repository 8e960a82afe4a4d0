"""Sides that fit into memory together are loaded, warmed up and measured A B C A B C; a peer that does not fit beside them has a turn of
its own, with Tether measured anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.peers.sides import Side, SideFailed
from bench.peers.workloads import Variant
from tether.plan.machine import available_bytes

__all__ = ["MARGIN", "fits", "measure_turns"]

MARGIN = 1.1
"""A peer is taken to hold at most this times what its trial held, scaled as those that are loaded grew from theirs."""

Told = dict[str, Any]
Warm = Callable[[Variant], tuple[Side, Mapping[str, Any]]]


def measure_turns(places: Sequence[Sequence[Variant]], lengths: Sequence[str], warm: Warm, rounds: int, result: Told,
                  say: Callable[[str], None], done: Callable[[], object]) -> None:  # fmt: skip
    """Measure the first of each place ``rounds`` times; where it dies as it is loaded, the next one takes its place. ``warm``: load a side
    and measure its first step, by lengths. What a side told goes into ``result["sides"]`` with the number of its turn, and ``done`` is
    called after every round."""
    ours = [place for place in places if place[0].ours]
    waiting = [place for place in places if not place[0].ours]
    held = {one["name"]: one["measure"]["peak_mib"] for one in result.get("tried", ()) if "measure" in one}
    result["sides"] = []
    turn = 1
    while turn == 1 or waiting:
        loaded: list[tuple[Side, Told]] = []
        later: list[Sequence[Variant]] = []
        room = (available_bytes() or math.inf) / 2**20
        try:
            for place in [*ours, *waiting]:
                beside = [told for _, told in loaded]
                if any(not told["ours"] for told in beside) and not fits(place[0], beside, held, room):
                    say(f"{place[0].name}: measured afterwards, there is no memory for it beside the others")
                    later.append(place)
                    continue
                loads = (_load(variant, turn, lengths, warm, result, say) for variant in place)
                loaded += [one for one in [next(filter(None, loads), None)] if one]
            for number in range(rounds):
                _round(number, lengths, loaded, result, say)
                result["rounds"] = number + 1
                done()
        finally:
            for side, _ in loaded:
                side.close()
        waiting, turn = later, turn + 1


def fits(variant: Variant, loaded: Sequence[Mapping[str, Any]], held: Mapping[str, float], room: float) -> bool:
    """Whether the highest peaks of those that are loaded leave room (MiB) for this one. ``held``: peaks of trials, by name."""
    if variant.name not in held:
        return True
    peaks = {told["name"]: max(measure["peak_mib"] for measure in told["warm_up"].values()) for told in loaded}
    growth = max([1.0, *(peak / held[name] for name, peak in peaks.items() if name in held)])
    return sum(peaks.values()) + MARGIN * growth * held[variant.name] <= room


def _load(variant: Variant, turn: int, lengths: Sequence[str], warm: Warm, result: Told, say: Callable[[str], None]
          ) -> tuple[Side, Told] | None:  # fmt: skip
    try:
        side, first = warm(variant)
    except SideFailed as error:
        _failed(variant, error, result, say)
        return None
    told = {
        "name": variant.name,
        "turn": turn,
        "ours": variant.ours,
        "numerics": variant.numerics,
        "settings": dict(variant.settings),
        "variables": dict(variant.variables),
        "facts": side.facts,
        "warm_up": dict(first),
        "measures": {kind: [] for kind in lengths},
    }
    result["sides"].append(told)
    side.stay()
    say(f"loaded and warm: {variant.name}")
    return side, told


def _round(number: int, lengths: Sequence[str], loaded: list[tuple[Side, Told]], result: Told, say: Callable[[str], None]) -> None:
    for kind in lengths:
        for side, told in list(loaded):
            try:
                measure = side.measure(lengths=kind)
            except SideFailed as error:
                _failed(side.variant, error, result, say)
                loaded.remove((side, told))
                continue
            told["measures"][kind].append(measure)
            say(
                f"round {number + 1}, {kind}, {told['name']}: {measure['seconds']['total']:.1f} s, "
                f"{measure['tokens']['response']} answer tokens, others used {measure['disturbed']:.2f} cores"
            )


def _failed(variant: Variant, error: SideFailed, result: Told, say: Callable[[str], None]) -> None:
    say(f"FAILED {error}")
    result.setdefault("failed", []).append({"name": variant.name, "failed": str(error)})
