"""Raw measurements to medians, ratios and tables. Pure: a result file in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.machine import KINDS
from bench.peers.workloads import WORKLOADS, Workload

__all__ = [
    "BEGIN",
    "END",
    "Spread",
    "goals_table",
    "phase_names",
    "ratios",
    "replaced",
    "result_text",
    "seconds_of",
    "section",
    "spread",
    "tokens_of",
]

TITLE = "## Speed against peers"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
_ORDER = ("generate", "score", "reference", "old", "update", "optimiser", "publish", "other")
_LENGTHS = {"forced": "answers of full length", "natural": "answers that end by themselves"}

Measure = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some measurements."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 1) -> str:
        """``12.3 [11.9, 13.0]``"""
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"


def spread(values: Sequence[float]) -> Spread:
    """Example: 3, 1, 2 -> 2 [1, 3]. Raises ValueError where there are none."""
    if not values:
        raise ValueError("no measurement")
    return Spread(statistics.median(values), min(values), max(values))


def seconds_of(measure: Measure, phases: Sequence[str]) -> float:
    """Seconds that are compared: of those phases together, of the whole where none is named."""
    seconds = measure["seconds"]
    return sum(seconds.get(phase, 0.0) for phase in phases) if phases else seconds["total"]


def tokens_of(measure: Measure, kind: str) -> int:
    """Tokens that a rate counts: of answers, or all."""
    tokens = measure["tokens"]
    return tokens["response"] if kind == "response" else tokens["prompt"] + tokens["response"]


def rates(measures: Sequence[Measure], workload: Workload) -> list[float]:
    """Tokens per second of each measurement; those in which the compared phases do not occur are left out."""
    timed = [(tokens_of(m, workload.tokens), seconds_of(m, workload.phases)) for m in measures]
    return [tokens / seconds for tokens, seconds in timed if seconds > 0]


def ratios(ours: Sequence[Measure], theirs: Sequence[Measure], workload: Workload) -> list[float]:
    """Our tokens per second over theirs, round by round, so that what slowed a whole round slowed both."""
    return [a / b for a, b in zip(rates(ours, workload), rates(theirs, workload), strict=False)]


def turns_of(sides: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Sides that were loaded together, in the order of turns. Only they are compared."""
    return [[side for side in sides if side.get("turn", 1) == turn] for turn in sorted({side.get("turn", 1) for side in sides})]


def phase_names(sides: Sequence[Mapping[str, Any]], lengths: str) -> list[str]:
    """Phases that some side has, in the order of a step."""
    found = {name for side in sides for measure in side["measures"].get(lengths, []) for name in measure["seconds"]}
    return [name for name in _ORDER if name in found]


def result_text(result: Mapping[str, Any]) -> str:
    """One result file as Markdown: a table per kind of lengths, ratios with their spread, what was tried, how it was run."""
    workload = WORKLOADS[result["what"]]
    quick = " (no: tiny sizes, with --quick)" if result.get("quick") else ""
    lines = [f"#### {workload.title}{quick}", ""]
    lines += [f"`{result['command']}`, {result['date']}, rounds: {result['rounds']}, one side after the other.", ""]
    if quick:
        lines += ["These numbers say that it runs, and nothing about speed.", ""]
    for lengths in result["lengths"]:
        sides = [side for side in result["sides"] if side["measures"].get(lengths)]
        if sides:
            compared = [line for turn in turns_of(sides) for line in _ratio_lines(turn, lengths, workload)]
            lines += [*_table(sides, lengths, workload), "", *compared, *_share_lines(sides, lengths, result), ""]
    if failed := result.get("failed"):
        lines += [*(f"* {one['name']} failed: {_why(one['failed'])}." for one in failed), ""]
    lines += _tried(result, workload)
    return "\n".join(lines).rstrip() + "\n"


def _table(sides: Sequence[Mapping[str, Any]], lengths: str, workload: Workload) -> list[str]:
    phases = phase_names(sides, lengths)
    named = _LENGTHS[lengths] if len(workload.lengths) > 1 else "median"
    lines = [
        f"| {named}, seconds | total [lowest, highest] | " + " | ".join(phases) + " | tokens/s | CPU s | peak MiB | others' cores |",
        "|---|--:|" + "--:|" * (len(phases) + 4),
    ]
    for side in sides:
        measures = side["measures"][lengths]
        beside = f", turn {side['turn']}" if side.get("turn", 1) > 1 else ""
        cells = [side["name"] + beside, spread([m["seconds"]["total"] for m in measures]).text()]
        cells += [_median_cell([m["seconds"].get(phase) for m in measures]) for phase in phases]
        found = rates(measures, workload)
        cells += [f"{statistics.median(found):,.0f}" if found else "–"]
        cells += [f"{statistics.median(m['cpu_seconds'] for m in measures):,.0f}", f"{max(m['peak_mib'] for m in measures):,.0f}"]
        cells += [f"{max(m['disturbed'] for m in measures):.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _median_cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.1f}" if known else "–"


def _ratio_lines(sides: Sequence[Mapping[str, Any]], lengths: str, workload: Workload) -> list[str]:
    ours, *peers = sides
    if not ours["ours"]:
        return []
    lines = []
    what = " + ".join(workload.phases) or "whole"
    for peer in peers:
        found = ratios(ours["measures"][lengths], peer["measures"][lengths], workload)
        memory = _memory_ratio(ours, peer, lengths)
        speed = f"{spread(found).text(2)} times the tokens/s ({what})" if found else f"no phase {what} to compare"
        lines.append(f"* {ours['name']} against {peer['name']}: {speed}, {memory:.0%} of its peak memory.")
    return lines


def _share_lines(sides: Sequence[Mapping[str, Any]], lengths: str, result: Mapping[str, Any]) -> list[str]:
    shares = (result.get("roofline_share") or {}).get(lengths, {})
    return [f"* {sides[0]['name']}, {name}: {share:.0%} of the roofline measured in this run." for name, share in shares.items()]


def _memory_ratio(ours: Mapping[str, Any], peer: Mapping[str, Any], lengths: str) -> float:
    return max(m["peak_mib"] for m in ours["measures"][lengths]) / max(m["peak_mib"] for m in peer["measures"][lengths])


def _tried(result: Mapping[str, Any], workload: Workload) -> list[str]:
    tried = result.get("tried", [])
    if not tried:
        return []
    cells = []
    for one in tried:
        if "failed" in one:
            cells.append(f"{one['name']}: failed ({_why(one['failed'])})")
        else:
            cells.append(f"{one['name']} {seconds_of(one['measure'], workload.phases):.1f} s")
    smaller = "".join(f", {count} {what.replace('_', ' ')} in place of {result['sizes'][what]}" for what, count in workload.trial.items())
    return [f"Tried to choose the peer's setting (its second step{smaller}): " + "; ".join(cells) + ".", ""]


def _why(failed: str) -> str:
    """The last line of a message that says what happened."""
    told = [line for line in failed.splitlines() if "Error" in line or "SIGKILL" in line]
    return told[-1][:120] if told else "it ended without a word"


def goals_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What was wanted and what was measured, one row a goal. Only workloads that have a result."""
    lines = ["| what | against | goal | measured: median [lowest, highest] of rounds |", "|---|---|--:|--:|"]
    for name, workload in WORKLOADS.items():
        if name not in results:
            continue
        result = results[name]
        for numerics, goal in workload.goals.items():
            for turn in turns_of(result["sides"]):
                ours = next((side for side in turn if side["ours"]), None)
                peers = [side for side in turn if side["numerics"] == numerics and not side["ours"]]
                lines += _goal_rows(workload, ours, peers, goal)
    return "\n".join(lines) + "\n"


def _goal_rows(workload: Workload, ours: Mapping[str, Any] | None, peers: Sequence[Mapping[str, Any]], goal: float) -> list[str]:
    rows = []
    for peer in peers if ours is not None else []:
        assert ours is not None
        for lengths in workload.lengths:
            found = ratios(ours["measures"].get(lengths, []), peer["measures"].get(lengths, []), workload)
            if found:
                told = f"{workload.name}, {lengths}" if len(workload.lengths) > 1 else workload.name
                rows.append(f"| {told} | {peer['name']} | {goal:g}x | {spread(found).text(2)}x |")
                if workload.memory_goal and peer["numerics"] == "same":
                    share = _memory_ratio(ours, peer, lengths)
                    rows.append(f"| {told}, peak memory | {peer['name']} | {workload.memory_goal:.0%} | {share:.0%} |")
    return rows


def section(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The whole section of RESULTS.md, markers included. ``results``: by kind of processor and workload."""
    lines = [BEGIN, TITLE, ""]
    lines += ["Made by `python -m bench.peers table` from the raw numbers in `bench/results/`, one folder a kind of processor.", ""]
    lines += [
        "Each side is loaded once, warmed up by a step, and stopped dead (SIGSTOP) while another measures; rounds go A B C A B C, and a "
        "peer for which there is no memory beside the others has a turn of its own with Tether. The peer's settings are tried first on a "
        "smaller step, from the fastest so far one thing changed at a time (all trials are listed), and the fastest of each precision "
        "takes part (the reference pass has the sides of the update unless others lead by 5 % in it): float32 weights with autocast to "
        "bfloat16, as Tether has, and any other; where the processor does not multiply bfloat16, Tether and peers are float32 throughout. "
        "A ratio is taken within each round. Others' cores: the most that other processes used during a measurement, 0 on a quiet machine.",
        "",
    ]
    for kind, found in results.items():
        ordered = [found[name] for name in WORKLOADS if name in found]
        lines += [f"### {KINDS[kind]}", "", goals_table(found)]
        lines += [result_text(result) for result in ordered]
        lines += _machines(ordered)
    return "\n".join([*lines, END]) + "\n"


def _machines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["#### Machine, versions, roofline", ""]
    seen: set[str] = set()
    for result in results:
        told = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
        if told not in seen:
            seen.add(told)
            lines.append(f"* {told}")
    for result in results:
        roof = result.get("roofline")
        if roof:
            lines.append(
                f"* {result['what']}: bf16 products at best {roof['bf16_tflops']:.2f} TFLOP/s, fp32 {roof['fp32_tflops']:.2f}, "
                f"memory read {roof['read_gbs']:.0f} GB/s"
            )
    environments = {name: found for result in results for name, found in result["versions"].items()}
    lines += [f"* {name}: " + ", ".join(f"{key} {value}" for key, value in found.items()) for name, found in environments.items()]
    return [*lines, ""]


def replaced(page: str, text: str) -> str:
    """``page`` with ``text`` in place of what stands between the markers, or at its end where there are none. Raises ValueError for one
    marker without the other, and for a section without them."""
    if (BEGIN in page) != (END in page):
        raise ValueError(f"one of the markers {BEGIN} and {END} is missing")
    if BEGIN not in page:
        if TITLE in page.splitlines():
            raise ValueError(f"the section {TITLE!r} has lost its markers: put {BEGIN} above it and {END} below")
        return page.rstrip() + "\n\n" + text
    before, _, rest = page.partition(BEGIN)
    return before + text.rstrip() + rest.partition(END)[2]
