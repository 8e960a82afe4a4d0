"""The pure parts of ``bench.peers``: prompts, medians and ratios, the choice of the peer's setting, floors, the section of RESULTS.md.

No time is asserted, and nothing heavy is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.peers import summary, texts
from bench.peers.drivers import processes
from bench.peers.machine import kind
from bench.peers.rounds import measure_turns
from bench.peers.run import code, finalists, places
from bench.peers.search import search
from bench.peers.sides import Side, SideFailed
from bench.peers.workloads import FULL, QUICK, WORKLOADS, Variant, Workload
from bench.roofline import Roof, forward_flop, generate_floor_s, linear_weights, update_floor_s
from tether.plan.model import Dims

DRIVERS = Path(processes.__file__).parent


def words(text: str) -> int:
    return len(text.split())


# -- prompts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [3, 8, 21, 60])
def test_a_prompt_is_filled_with_sentences_and_then_words_to_its_length(target: int) -> None:
    text = texts.fit(["How is it?", "Tell me why it is so.", "What is the best way to do it?"], words, target)
    assert words(text) == target
    assert text.startswith("How is it?")


def test_a_prompt_that_is_too_long_is_said() -> None:
    with pytest.raises(ValueError, match="more than 2"):
        texts.fit(["How is it?"], words, 2)


def test_prompts_differ_and_have_one_length() -> None:
    questions = [f"What is number {n} good for?" for n in range(9)]
    found = texts.prompt_texts(questions, 8, words, 40)
    assert len(set(found)) == 8
    assert {words(text) for text in found} == {40}


def test_more_prompts_than_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="3 prompts, and only 2"):
        texts.prompt_texts(["One?", "Two?"], 3, words, 10)


# -- numbers -----------------------------------------------------------------------------------------------------------------


def measure(total: float, tokens: int = 1000, peak: float = 100.0, **phases: float) -> dict[str, Any]:
    return {
        "seconds": {**phases, "total": total},
        "tokens": {"prompt": 500, "response": tokens},
        "cpu_seconds": 2 * total,
        "peak_mib": peak,
        "disturbed": 0.125,
        "stolen": 0.0,
    }


WHOLE = Workload("w", "Whole", ())
PART = Workload("p", "Part", (), phases=("update", "optimiser"))


def test_the_median_comes_with_its_extremes() -> None:
    assert summary.spread([3.0, 1.0, 2.0]) == summary.Spread(2.0, 1.0, 3.0)
    assert summary.spread([1234.5, 1.0, 2000.0]).text(1) == "1,234.5 [1.0, 2,000.0]"
    with pytest.raises(ValueError, match="no measurement"):
        summary.spread([])


def test_ratios_are_of_rates_and_round_by_round() -> None:
    # 1000 tokens in 2 s against 500 in 10 s: 500 / 50; then 1000 in 4 s against 1000 in 10 s: 250 / 100.
    ours, theirs = [measure(2.0), measure(4.0)], [measure(10.0, tokens=500), measure(10.0)]
    assert summary.ratios(ours, theirs, WHOLE) == [10.0, 2.5]


def test_only_the_named_phases_are_compared() -> None:
    ours = [measure(100.0, update=1.5, optimiser=0.5)]
    theirs = [measure(1.0, update=6.0, optimiser=2.0)]
    assert summary.ratios(ours, theirs, PART) == [4.0]


def test_a_side_without_the_phase_gives_no_ratio() -> None:
    assert summary.ratios([measure(1.0, update=1.0)], [measure(9.0)], PART) == []


# -- the choice of the peer's setting ----------------------------------------------------------------------------------------

OURS = Variant("tether", "tether", "d")
SLOW, FAST = Variant("slow", "trl", "d"), Variant("fast", "trl", "d")
BROKEN, ONLY = Variant("broken", "trl", "d", numerics="other"), Variant("only", "trl", "d", numerics="other")


def test_the_fastest_of_each_precision_takes_part_and_a_broken_one_does_not() -> None:
    tried = [
        {"name": "slow", "measure": measure(9.0)},
        {"name": "fast", "measure": measure(8.0)},
        {"name": "broken", "failed": "Boom"},
        {"name": "only", "measure": measure(20.0)},
    ]
    assert finalists([OURS, SLOW, FAST, BROKEN, ONLY], tried, WHOLE) == [OURS, FAST, ONLY]


def test_without_trials_those_without_a_rival_take_part() -> None:
    assert finalists([OURS, SLOW, ONLY], [], WHOLE) == [OURS, SLOW, ONLY]


def test_of_settings_in_combination_the_first_takes_part_where_none_was_tried_and_none_where_all_failed() -> None:
    assert finalists([OURS, SLOW, FAST], [], WHOLE) == [OURS, SLOW]
    assert finalists([OURS, SLOW, FAST], [{"name": "fast", "failed": "Boom"}], WHOLE) == [OURS]


@pytest.mark.parametrize(
    ("costs", "tried", "best"),
    [
        # 16 rows are slower; eager attention and then Intel's OpenMP help. bfloat16 begins there, and there eager attention does not help.
        (
            {"16 rows": 3, "eager": -2, "Intel": -1, "bf16, 8 rows, eager": 4, "bf16, 16 rows, eager": 4},
            "a8 a16 a8e a8ei a16ei b8ei b16ei b8i b16i",
            ("a8ei", "b8i"),
        ),
        # More rows help, but not with eager attention: they are tried again at the end.
        ({"16 rows": -1, "16 rows, eager": 2, "eager": -3}, "a8 a16 a16e a16ei a8e b8e b16e b8", ("a8e", "b8e")),
        # Nothing but more rows helps, and there the rest is tried.
        ({"16 rows": -3}, "a8 a16 a16e a16i b8 b16 b16e", ("a16", "b16")),
    ],
)
def test_settings_are_tried_from_the_fastest_so_far_one_thing_at_a_time(costs, tried, best) -> None:
    short = {"trl autocast, 8": "a8", "trl autocast, 16": "a16", "trl bf16 weights, 8": "b8", "trl bf16 weights, 16": "b16"}
    asked: dict[str, float] = {}

    def name(variant: Variant) -> str:
        head, _, rest = variant.name.partition(" rows")
        return short[head] + "e" * ("eager" in rest) + "i" * ("Intel" in rest)

    def seconds(variant: Variant) -> float:
        flat = variant.name.replace("bf16 weights", "bf16")
        asked[name(variant)] = 20.0 + sum(cost for word, cost in costs.items() if word in flat) + 0.01 * len(asked)
        return asked[name(variant)]

    peers = [variant for variant in WORKLOADS["grpo"].choose((), "bfloat16") if not variant.ours]
    search(peers, seconds)
    assert " ".join(asked) == tried
    measured = [{"name": v.name, "measure": measure(asked[name(v)])} for v in peers if name(v) in asked]
    assert tuple(map(name, finalists(peers, measured, WHOLE))) == best


def test_settings_without_a_place_are_all_tried_where_they_have_a_rival() -> None:
    asked: list[str] = []
    search([SLOW, FAST, ONLY], lambda variant: asked.append(variant.name) or 1.0)
    assert asked == ["slow", "fast"]


def steps(monkeypatch, trials: dict[str, tuple[float, float]]) -> tuple[dict[str, Any], list[list[str]]]:
    """The update's trials (seconds of update and reference) and rounds; then the reference's, in the same run."""
    from bench.peers import run as module

    rounds: list[list[str]] = []
    names = [*trials]
    monkeypatch.setattr(module, "_setup", lambda *given: {})
    monkeypatch.setattr(module, "machine", dict)
    monkeypatch.setattr(module, "_roofline", lambda options: {})
    monkeypatch.setattr(module, "_shares", lambda *given: {})
    monkeypatch.setattr(module, "write", lambda result, options: result)
    monkeypatch.setattr(module.environments, "ensure", lambda name: Path("python"))
    monkeypatch.setattr(module.environments, "installed", lambda python: {})
    tried = [{"name": name, "measure": measure(99.0, update=update, reference=ref)} for name, (update, ref) in trials.items()]
    monkeypatch.setattr(module, "_try_each", lambda *given: tried)

    def note(ranked, lengths, warm, count, result, say, done) -> None:
        variants = [place[0] for place in ranked]
        rounds.append([variant.name for variant in variants])
        told = [{"name": variant.name, "ours": variant.ours, "numerics": variant.numerics} for variant in variants]
        result["sides"] = [{**side, "of": result["what"]} for side in told]

    monkeypatch.setattr(module, "measure_turns", note)
    options = module.Options(rounds=1, model=Path("model"), folder=Path("folder"), command="", variants=names)
    first = module.run(WORKLOADS["update"], options)
    return module.run(WORKLOADS["reference"], options, first), rounds


def test_the_reference_pass_has_settings_of_its_own_where_they_lead_by_more_than_a_trial_can_tell(monkeypatch) -> None:
    eight, sixteen = "trl autocast, 8 rows", "trl autocast, 16 rows"
    found, rounds = steps(monkeypatch, {eight: (5.0, 1.1), sixteen: (6.0, 1.0)})
    assert rounds == [["tether", eight], ["tether", sixteen]]
    assert (found["what"], [side["of"] for side in found["sides"]]) == ("reference", ["reference", "reference"])
    for reference in (1.0, 1.04):
        found, rounds = steps(monkeypatch, {eight: (5.0, reference), sixteen: (6.0, 1.0)})
        assert rounds == [["tether", eight]]  # the same steps count
        assert (found["what"], [side["of"] for side in found["sides"]]) == ("reference", ["update", "update"])


class Patient:
    """A side without a process. ``dies``: the number of the measurement in which it does, the warm-up being the first."""

    def __init__(self, variant: Variant, dies: int = 0) -> None:
        self.variant, self.dies, self.count, self.facts = variant, dies, 0, {}

    def measure(self, **_: Any) -> dict[str, Any]:
        self.count += 1
        if self.count == self.dies:
            raise SideFailed(f"{self.variant.name}: no answer; log ends with\nRuntimeError: no memory\n  warnings.warn(")
        return measure(2.0, peak=100.0)

    def stay(self) -> None:
        pass

    def close(self) -> None:
        pass


def measured(
    dies: dict[str, int], held: dict[str, float] | None = None, rounds: int = 3, places: Any = ((OURS,), (SLOW,), (FAST,))
) -> dict[str, Any]:
    """The sides in turns: OURS, SLOW and FAST, where nothing else is said."""
    found: dict[str, Any] = {"tried": [{"name": name, "measure": measure(1.0, peak=peak)} for name, peak in (held or {}).items()]}

    def warm(variant: Variant) -> tuple[Any, dict[str, Any]]:
        side = Patient(variant, dies.get(variant.name, 0))
        return side, {"forced": side.measure()}

    measure_turns(places, ("forced",), warm, rounds, found, lambda text: None, lambda: None)
    return found


@pytest.mark.parametrize(("dies", "counts"), [(3, [3, 1, 3]), (1, [3, 3])])
def test_a_side_that_dies_is_said_and_the_others_go_on(dies, counts) -> None:
    found = measured({"slow": dies})
    assert [len(side["measures"]["forced"]) for side in found["sides"]] == counts
    assert [one["name"] for one in found["failed"]] == ["slow"]
    assert "* slow failed: RuntimeError: no memory.\n" in summary.result_text({**result(), "failed": found["failed"]})


def test_where_the_fastest_of_a_precision_dies_as_it_is_loaded_the_next_takes_its_place() -> None:
    found = measured({"fast": 1}, places=((OURS,), (FAST, SLOW), (ONLY,)))
    assert [side["name"] for side in found["sides"]] == ["tether", "slow", "only"]
    assert [one["name"] for one in found["failed"]] == ["fast"]
    assert [side["name"] for side in measured({"fast": 1, "slow": 1}, places=((OURS,), (FAST, SLOW)))["sides"]] == ["tether"]
    tried = [{"name": "slow", "measure": measure(9.0)}, {"name": "fast", "measure": measure(8.0)}, {"name": "broken", "failed": "Boom"}]
    assert places([OURS, SLOW, FAST, BROKEN], tried, WHOLE) == [[OURS], [FAST, SLOW]]


def test_a_peer_for_which_there_is_no_memory_has_a_turn_of_its_own(monkeypatch) -> None:
    from bench.peers import rounds as module

    # Tether 100 and the slow peer 100, which held 80 in its trial; the fast one held 60, so up to 1.1 x 100/80 x 60 = 82.5 are expected.
    together, apart = [("tether", 1), ("slow", 1), ("fast", 1)], [("tether", 1), ("slow", 1), ("tether", 2), ("fast", 2)]
    for free, turns in ((282.5, together), (282, apart)):
        monkeypatch.setattr(module, "available_bytes", lambda free=free: free * 2**20)
        found = measured({}, {"slow": 80.0, "fast": 60.0})
        assert [(side["name"], side["turn"]) for side in found["sides"]] == turns
        assert {len(side["measures"]["forced"]) for side in found["sides"]} == {3}
    monkeypatch.setattr(module, "available_bytes", lambda: 2**20)  # the first peer is not waited with for ever
    assert len(measured({}, {"slow": 80.0, "fast": 60.0})["sides"]) == 4


def test_a_peer_is_compared_with_what_was_measured_beside_it() -> None:
    first, second = result()["sides"][:2], [{**side, "turn": 2} for side in (result()["sides"][0], result()["sides"][2])]
    for one in second[0]["measures"]["forced"]:
        one["seconds"]["total"] *= 2
    told = {**result(), "sides": [*first, *second]}
    text = summary.result_text(told)
    assert "tether against trl a: 6.00 [6.00, 6.00]" in text
    assert "tether against trl c: 2.25 [2.25, 2.25]" in text
    assert "| tether, turn 2 | 40.0 [36.0, 44.0] |" in text
    assert text.count("of the roofline measured") == 1
    table = summary.goals_table({"grpo": told})
    assert "| grpo, forced | trl a | 6x | 6.00 [6.00, 6.00]x |" in table
    assert "| grpo, forced | trl c | 5x | 2.25 [2.25, 2.25]x |" in table


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, True),
        ({"rounds": 2}, False),
        ({"code": "another"}, False),
        ({"quick": True}, False),
        ({"roofline_share": None}, False),
    ],
)
def test_an_interrupted_run_goes_on_with_what_it_has_not_measured_whole(monkeypatch, tmp_path, changed, kept) -> None:
    from bench.peers import __main__ as command

    whole = {**result(), "quick": False, "code": code(), **changed}
    (tmp_path / kind()).mkdir()
    (tmp_path / kind() / "grpo.json").write_text(json.dumps({name: value for name, value in whole.items() if value is not None}))
    asked: list[str] = []
    monkeypatch.setattr(command, "_RESULTS", tmp_path)
    monkeypatch.setattr(command, "_problem", lambda *_: None)
    monkeypatch.setattr(command, "run", lambda workload, options, steps: asked.append(workload.name) or result())
    assert command.main(["grpo", "sft", "--rounds", "3", "--resume"]) == 0
    assert asked == (["sft"] if kept else ["grpo", "sft"])
    asked.clear()
    assert command.main(["grpo", "--rounds", "3"]) == 0
    assert asked == ["grpo"]


def test_a_library_that_is_not_there_is_said_and_not_left_out(tmp_path) -> None:
    variant = Variant("x", "tether", "d", variables={"LD_PRELOAD": "BENCH/nowhere/lib/libiomp5.so"})
    with pytest.raises(SideFailed, match=r"BENCH/nowhere/lib/libiomp5\.so is not there"):
        Side(variant, {}, tmp_path / "log")


def test_a_side_that_is_killed_is_said_to_be_and_a_newcomer_goes_first(monkeypatch, tmp_path) -> None:
    from bench.peers import sides

    (tmp_path / "patient.py").write_text("import sys\nfor line in sys.stdin:\n    print('{}', flush=True)\n")
    monkeypatch.setattr(sides, "_DRIVERS", tmp_path)
    monkeypatch.setattr(sides, "_scratch", lambda: tmp_path)
    side = Side(Variant("patient", "tether", "patient"), {}, tmp_path / "log")
    score = Path(f"/proc/{side._process.pid}/oom_score_adj")
    assert score.read_text() == "1000\n"
    side.stay()
    assert score.read_text() == "0\n"
    side._process.kill()
    side._process.wait()  # its pipe is broken now
    with pytest.raises(SideFailed, match=r"^patient: killed \(SIGKILL\), as the kernel does where memory runs out$"):
        side.measure()


def test_every_workload_has_its_driver_and_one_default_of_ours_and_sizes_that_divide() -> None:
    for workload in WORKLOADS.values():
        assert all((DRIVERS / f"{variant.driver}.py").exists() for variant in workload.variants)
        for products in ("bfloat16", "float32"):
            usual = workload.choose((), products)
            assert [variant.name for variant in usual if variant.ours] == ["tether"]
            assert {variant.numerics for variant in usual} >= {"same"}
            assert {variant.numerics for variant in usual if not variant.ours} <= {*workload.goals}
        assert len({variant.name for variant in workload.variants}) == len(workload.variants)
        assert workload.sized(QUICK) == QUICK
        assert workload.sized(QUICK, trial=True) == QUICK
        trial, full = workload.sized(FULL, trial=True), workload.sized(FULL)
        assert trial != full
        assert (trial.prompt_tokens, trial.pair_tokens, trial.samples) == (full.prompt_tokens, full.pair_tokens, full.samples)
        rows = 2 * trial.pairs if workload.name == "sft" else trial.pairs if workload.tokens == "all" else trial.prompts * trial.samples
        tried = [variant.settings.get("rows_per_pass", 1) for variant in workload.variants if variant.default and not variant.ours]
        assert max(tried) <= rows  # else a trial could not tell it from fewer rows
    assert [variant.name for variant in WORKLOADS["sft"].choose(["trl fp32, 8 rows"], "bfloat16")] == ["tether", "trl fp32, 8 rows"]


def test_where_the_processor_multiplies_float32_alone_the_peers_do_too() -> None:
    for workload in WORKLOADS.values():
        here, elsewhere = ([v for v in workload.choose((), products) if not v.ours] for products in ("float32", "bfloat16"))
        assert {v.settings["weights"] for v in here} == {"float32"}
        assert not any(v.settings.get("autocast") for v in here)
        assert not {v.name for v in here} & {v.name for v in elsewhere}
        assert {v.numerics for v in here} <= {"same", "vllm"}

    def numerics(name: str, products: str) -> str:
        return WORKLOADS["sft"].choose([name], products)[1].numerics

    assert [numerics("trl fp32, 8 rows", on) for on in ("float32", "bfloat16")] == ["same", "other"]
    assert [numerics("trl autocast, 8 rows", on) for on in ("float32", "bfloat16")] == ["other", "same"]
    assert [numerics("trl bf16 weights, 8 rows", on) for on in ("float32", "bfloat16")] == ["other", "other"]


@pytest.mark.parametrize(
    ("flags", "found"),
    [("fpu avx2 avx512_bf16 amx_bf16", "amx_bf16"), ("avx2 avx512_bf16", "avx512_bf16"), ("fpu avx512f avx2", "float32")],
)
def test_results_lie_with_their_kind_of_processor(monkeypatch, tmp_path, flags, found) -> None:
    from bench.peers import machine
    from tether.plan import machine as planned

    (tmp_path / "cpuinfo").write_text(f"model name\t: Any\nflags\t\t: {flags}\n")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(planned, "_PROC", tmp_path)
    assert machine.kind() == found
    assert machine.products() == ("float32" if found == "float32" else "bfloat16")
    assert machine.machine()["processor"] == "Any"
    assert found in machine.KINDS


# -- tables ------------------------------------------------------------------------------------------------------------------


def result() -> dict[str, Any]:
    def side(name: str, total: float, numerics: str, peak: float) -> dict[str, Any]:
        measures = [measure(total * factor, tokens=8192, peak=peak, update=total / 2, other=total / 2) for factor in (1.0, 1.1, 0.9)]
        return {"name": name, "ours": name == "tether", "numerics": numerics, "measures": {"forced": measures}}

    return {
        "what": "grpo",
        "command": "python -m bench.peers grpo",
        "date": "2026-11-30 00:00 UTC",
        "rounds": 3,
        "lengths": ["forced"],
        "sizes": {"prompts": 8, "response_tokens": 128},
        "machine": {"processor": "EPYC", "cores": 2},
        "versions": {"tether": {"torch": "2.13.0"}},
        "roofline": {"bf16_tflops": 2.0, "fp32_tflops": 0.3, "read_gbs": 28.0, "copy_gbs": 20.0, "shapes": {}},
        "roofline_share": {"forced": {"update": 0.25}},
        "tried": [
            {"name": "trl a", "measure": measure(100.0)},
            {"name": "trl b", "failed": "trl b: no answer; log ends with\nRuntimeError: no"},
        ],
        "sides": [side("tether", 20.0, "same", 2000.0), side("trl a", 120.0, "same", 6000.0), side("trl c", 90.0, "other", 5000.0)],
    }


def test_a_result_becomes_a_table_with_its_ratios() -> None:
    text = summary.result_text(json.loads(json.dumps(result())))
    assert "| tether | 20.0 [18.0, 22.0] |" in text
    assert "tether against trl a: 6.00 [6.00, 6.00] times the tokens/s (whole), 33% of its peak memory." in text
    assert "tether against trl c: 4.50 [4.50, 4.50]" in text
    assert "update: 25% of the roofline" in text
    assert "(its second step, 2 prompts in place of 8, 64 response tokens in place of 128): trl a" in text
    assert "trl a 100.0 s; trl b: failed (RuntimeError: no)" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1


def test_goals_stand_beside_what_was_measured() -> None:
    table = summary.goals_table({"grpo": result()})
    assert "| grpo, forced | trl a | 6x | 6.00 [6.00, 6.00]x |" in table
    assert "| grpo, forced, peak memory | trl a | 50% | 33% |" in table
    assert "| grpo, forced | trl c | 5x | 4.50 [4.50, 4.50]x |" in table


def test_the_section_is_replaced_and_the_rest_of_the_page_is_left_alone() -> None:
    section = summary.section({"avx512_bf16": {"grpo": result()}, "float32": {"grpo": result()}})
    assert [line for line in section.splitlines() if line.startswith("### ")] == [
        "### A processor with vector instructions for bfloat16 (AVX-512 bf16)",
        "### A processor that multiplies float32 alone (AVX2, as most laptops)",
    ]
    once = summary.replaced("# Results\n\nAbove.\n", section)
    assert once.startswith("# Results\n\nAbove.\n\n")
    page = once + "\n## Below\n"
    again = summary.replaced(page, section.replace("EPYC", "Xeon"))
    assert "EPYC" not in again
    assert again.endswith("\n## Below\n")
    assert summary.replaced(again, section) == page
    with pytest.raises(ValueError, match="markers"):
        summary.replaced(summary.BEGIN, section)
    with pytest.raises(ValueError, match="lost its markers"):
        summary.replaced(once.replace(summary.BEGIN, "").replace(summary.END, ""), section)


# -- floors and processes ----------------------------------------------------------------------------------------------------


def test_floors_follow_from_counts() -> None:
    dims = Dims(
        parameters=192, layers=1, hidden=4, intermediate=8, heads=2, kv_heads=1, head_size=2, vocabulary=10, tied=True, lean=True
    )
    assert linear_weights(dims) == 4 * 2 * (2 * 2 + 2 * 1) + 3 * 4 * 8  # 144
    assert forward_flop(dims, 3, 2, 5.0) == 3 * (2 * 144 + 4 * 1 * 2 * 2 * 5) + 2 * 2 * 40
    roof = Roof(bf16_tflops=1e-12, fp32_tflops=1e-12, read_gbs=1e9, copy_gbs=1.0, shapes={})  # one operation a second, memory for nothing
    # One prompt of 2 tokens that see 1 on average, one answer of 2 tokens that see 3; attention 4 x 1 x 2 x 2 = 16 a position seen.
    forward = 2 * (288 + 16 * 1) + 2 * (288 + 16 * 3) + 2 * 2 * 40
    assert update_floor_s(dims, roof, 1, 1, 2, 2) == pytest.approx(3 * forward)
    # The prompt with one row of logits, then one more step that sees 3 positions.
    assert generate_floor_s(dims, roof, 1, 1, 2, 2) == pytest.approx(2 * (288 + 16) + 80 + (288 + 16 * 3 + 80))
    # Operations for nothing: the step reads 2 x (144 + 40) bytes of weights and 8 of each of 3 positions.
    slow = Roof(bf16_tflops=1e12, fp32_tflops=1.0, read_gbs=1e-9, copy_gbs=1.0, shapes={})
    assert generate_floor_s(dims, slow, 1, 1, 2, 2) == pytest.approx(2 * 184 + 8 * 3, rel=1e-6)
    # Where float32 products are the quicker ones, floors are theirs, and numbers have four bytes.
    wide = Roof(bf16_tflops=1e-13, fp32_tflops=1e-12, read_gbs=1e9, copy_gbs=1.0, shapes={})
    assert update_floor_s(dims, wide, 1, 1, 2, 2) == update_floor_s(dims, roof, 1, 1, 2, 2)
    slow_wide = Roof(bf16_tflops=1.0, fp32_tflops=1e12, read_gbs=1e-9, copy_gbs=1.0, shapes={})
    assert generate_floor_s(dims, slow_wide, 1, 1, 2, 2) == pytest.approx(4 * 184 + 16 * 3, rel=1e-6)


def test_a_process_is_found_with_its_children_and_its_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            assert child.pid in processes.tree(os.getpid())
            assert processes.tree(os.getpid())[0] == os.getpid()
            assert processes.peak_mib([os.getpid()]) > 1
        finally:
            child.kill()
    assert processes.peak_mib([child.pid]) == 0
    assert processes.cpu_seconds([child.pid]) == 0


def test_a_phase_inside_another_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DRIVERS))
    from driver import Clock

    now = iter([0.0, 1.0, 4.0, 10.0])  # outer begins, inner begins, inner ends, outer ends
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = Clock()
    with clock.phase("update"), clock.phase("reference"):
        pass
    assert clock.seconds == {"reference": 3.0, "update": 7.0}


@pytest.mark.parametrize(
    ("asked", "wanted", "tables"),
    [("sft grpo", ["grpo", "sft"], 0), ("all", None, 1), ("update all", None, 1), ("all --quick", None, 0)],
)
def test_workloads_are_measured_in_one_order_and_all_writes_the_page(monkeypatch, asked, wanted, tables) -> None:
    from bench.peers import __main__ as command

    measured, written = [], []

    def run(workload, options, steps):
        assert (steps or {}).get("what", "") in ("", workload.steps_of)
        measured.append(workload.name)
        return {"what": workload.name}

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command, "result_text", lambda result: "")
    monkeypatch.setattr(command, "_tables", lambda: written.append(1) or 0)
    monkeypatch.setattr(command, "_problem", lambda *asked: None)
    assert command.main(asked.split()) == 0
    assert measured == (wanted or [*WORKLOADS])
    assert len(written) == tables


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["sft", "--rounds", "0"], "expected a whole number of at least 1, got '0'"),
        (["sft", "--rounds", "-1"], "expected a whole number of at least 1, got '-1'"),
        (["sft", "grpo", "--variants", "nobody"], "no variant is named 'nobody' in grpo, sft"),
        (["grpo", "generate", "--variants", "vllm bf16"], "grpo has none of the variants that --variants names"),
        (["sft", "--everyone"], "--everyone needs --variants"),
        (["sft", "--lengths", "natural"], "sft has no --lengths natural, only forced"),
        (["sft", "--model", "/nowhere"], "/nowhere has no config.json: make it with `tether fetch smollm2`"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(capsys, asked, told) -> None:
    from bench.peers import __main__ as command

    with pytest.raises(SystemExit) as stopped:
        command.main(asked)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_a_name_counts_where_a_workload_has_it(tmp_path) -> None:
    from bench.peers import __main__ as command

    for file in ("config.json", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / file).write_text("{}")
    assert command._problem(["generate", "sft"], ["vllm bf16", "trl autocast, 8 rows"], [], tmp_path) is None
    assert [v.name for v in WORKLOADS["generate"].choose(["vllm bf16", "trl autocast, 8 rows"], "bfloat16")] == ["tether", "vllm bf16"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (lambda r: json.dumps(r)[:-40], "grpo.json is not a result of this benchmark (JSONDecodeError"),
        (lambda r: "[1]", "grpo.json is not a result of this benchmark (TypeError"),
        (lambda r: json.dumps({"what": "grpo"}), "grpo.json is not a result of this benchmark (KeyError"),
        (lambda r: json.dumps({**r, "quick": True}), "holds 3 rounds of grpo with --quick"),
        (lambda r: json.dumps({**r, "rounds": 0, "sides": []}), "holds 0 rounds of grpo"),
    ],
)
def test_the_page_takes_only_measurements_and_is_left_alone_otherwise(monkeypatch, tmp_path, capsys, text, told) -> None:
    from bench.peers import __main__ as command

    monkeypatch.setattr(command, "_BENCH", tmp_path)
    monkeypatch.setattr(command, "_RESULTS", tmp_path)
    (tmp_path / "RESULTS.md").write_text("# Results\n")
    where = tmp_path / "float32" / "grpo.json"
    where.parent.mkdir()
    where.write_text(text({**result(), "quick": False}))
    assert command.main(["table"]) == 1
    assert told in capsys.readouterr().err
    assert (tmp_path / "RESULTS.md").read_text() == "# Results\n"
    where.write_text(json.dumps({**result(), "quick": False}))
    assert command.main(["table"]) == 0
    assert summary.TITLE in (tmp_path / "RESULTS.md").read_text()


def test_results_that_cannot_be_written_are_said_before_anything_is_measured(tmp_path) -> None:
    from bench.peers import __main__ as command

    assert command._unwritable(tmp_path / "new") is None
    (tmp_path / "file").write_text("")
    assert "results cannot be written into" in (command._unwritable(tmp_path / "file") or "")


def test_a_stopped_side_ends_when_the_harness_is_killed(tmp_path) -> None:
    """The harness here: a process that starts one side in another session, stops it and waits to be killed."""
    script = (
        "import os, signal, subprocess, sys, time\n"
        "from bench.peers import sides\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], preexec_fn=sides._die_with_parent)\n"
        "os.kill(child.pid, signal.SIGSTOP)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, cwd=DRIVERS.parents[2]) as harness:
        assert harness.stdout is not None
        child = int(harness.stdout.readline())
        harness.kill()
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.05)
    os.kill(child, 9)
    pytest.fail("the stopped process outlived its harness")
