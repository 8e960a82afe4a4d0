"""The replays print what the textbook printed, and say beside it what is computed; results can be shown, drawn and listed."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tether.errors import ConfigError, TetherError
from tether.labs import LABS, run_lab
from tether.labs.glibc import glibc_rand, glibc_uniforms
from tether.labs.plot import check_plot, write_plot
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.labs.reward_model import BETTER_ELSEWHERE, PAIRS, SAFETY_ALONE
from tether.labs.show import WIDTH, as_json, as_text

ROOT = Path(__file__).resolve().parents[2]
REPLAYS = ("reward-model", "ppo-bandit", "grpo-bandit", "ppo-tabular", "ce-vs-ppo", "entropy")
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (*((name, {}) for name in REPLAYS), ("reward-model", {"contradict": 5}))
SMALL = LabResult(
    "small", "Does it show?",
    (Table("Two rows", ("name", "value"), (("one", 1.0), ("none", math.nan)), ("", ".2f")),),
    (Panel("A line", "x", "y", (Curve("a", (1.0, 10.0), (0.0, math.inf)), Curve("b", (1.0, 10.0), (2.0, 1.0))), log_x=True),),
    ("word " * 40,), {"inf": math.inf, "list": [1, -math.inf]},
)  # fmt: skip


@cache
def _run(name: str, contradict: int | None) -> LabResult:
    return run_lab(name) if contradict is None else run_lab(name, contradict=contradict)


def _result(name: str, contradict: int | None = None) -> LabResult:
    return _run(name, contradict)


def _figures(name: str, contradict: int | None = None) -> Mapping[str, Any]:
    return _result(name, contradict).figures


def _printed(values: list[float], digits: int) -> list[str]:
    """As a textbook prints them; -0 is 0."""
    return [f"{round(value, digits) + 0.0:.{digits}f}" for value in values]


def _text(printed: str) -> list[str]:
    """'.141 -.5 3.28' as a list with leading zeros."""
    return [re.sub(r"^(-?)\.", r"\g<1>0.", word) for word in printed.split()]


# --- reward-model ---


def test_reward_model_weights_and_losses():
    figures = _figures("reward-model")
    assert _printed(figures["weights"], 6) == _text("2.759785 3.339070 1.143702 3.755259")
    assert _printed(list(figures["loss"].values()), 6) == _text(".141524 .080710 .056969 .044159")
    assert figures["accuracy"] == 1
    assert (figures["bias"], figures["bias_gradient"]) == (0, 0)


def test_reward_model_scale_and_floor():
    figures = _figures("reward-model")
    assert f"{figures['norm']['200']:.2f}" == "5.85"
    assert f"{figures['norm']['20000']:.1f}" == "15.7"
    floored, its_slope, softplus, slope = figures["margin"]["-800.0"]
    assert (f"{floored:.2f}", its_slope, softplus, slope) == ("18.42", 0, 800, -1)
    assert figures["three_to_one"] == pytest.approx(math.log(3), abs=1e-6)
    norms = list(figures["ridge_norm"].values())
    assert norms == sorted(norms)  # a smaller penalty lets w grow


def test_contradicting_pairs_in_both_regimes():
    figures = _figures("reward-model", 7)
    here = [figures["counts"].index(count) for count in (0, 1, 2, 3, 5, 10, 20)]
    elsewhere = [figures["safety"]["better_elsewhere"][i] for i in here]
    alone = [figures["safety"]["safety_alone"][i] for i in here]
    assert _printed(elsewhere, 3) == _text("3.755 2.802 2.566 2.429 2.214 1.994 1.783")
    assert _printed(alone[1:], 3) == _text(".160 -.843 -1.390 -2.056 -2.929 -3.792")
    assert figures["accuracy"]["better_elsewhere"][-1] == 1  # still separable: the sign is a matter of the penalty
    firm, loose = (figures["safety_l2"]["better_elsewhere"][l2][-1] for l2 in ("0.01", "0.001"))
    assert firm < 0 < loose


def test_contradicting_pairs_are_what_they_are_called():
    for chosen, rejected in BETTER_ELSEWHERE:
        assert chosen[3] < rejected[3]
        assert all(c > r for c, r in zip(chosen[:3], rejected[:3], strict=True))
    for chosen, rejected in SAFETY_ALONE:
        assert chosen[3] < rejected[3]
        assert chosen[:3] == rejected[:3]
    assert all(0 <= x <= 1 for pair in (*PAIRS, *BETTER_ELSEWHERE, *SAFETY_ALONE) for side in pair for x in side)


# --- ppo-bandit ---


def test_ppo_bandit_replay():
    replay = _figures("ppo-bandit")["replay"]
    rows = [_printed(replay["probs"][step - 1], 3) for step in (2, 4, 6, 8, 10)]
    assert rows == [_text(row) for row in (
        ".157 .627 .038 .178", ".045 .855 .005 .095", ".008 .958 .000 .034", ".001 .989 .000 .010", ".000 .997 .000 .002",
    )]  # fmt: skip
    pairs = zip(replay["ratio_max"][::2], replay["ratio_max"][1::2], strict=True)
    assert _printed([max(pair) for pair in pairs], 2) == _text("1.52 1.17 1.06 1.02 1.00")
    assert replay["clips"] == [5, 4, 5, 6, 8, 8, 8, 8, 8, 8]
    assert (replay["clips_total"], replay["clips_high"][2:]) == (68, [0] * 8)
    assert _printed([replay["ratio_min"][0], replay["ratio_min"][-1]], 3) == _text(".612 .355")
    assert replay["pushed_while_cut"] > 0


def test_ppo_bandit_with_the_gradient():
    correct = _figures("ppo-bandit")["correct"]
    slow, fast = correct["lr 0.1, 4 inner"], correct["lr 1, 4 inner"]
    assert slow["clips_low"] + slow["clips_high"] == 0
    assert fast["clips_low"] + fast["clips_high"] == 69
    assert f"{fast['p_best']:.3f}" == "0.985"
    for name in ("lr 0.1, 1 inner", "lr 1, 1 inner"):
        assert (correct[name]["ratio_min"], correct[name]["ratio_max"]) == (1, 1)
    push = _figures("ppo-bandit")["first_push"]
    assert sum(push["gradient"]) == pytest.approx(0, abs=1e-12)
    assert abs(sum(push["rule"])) > 0.1


# --- grpo-bandit ---


def test_random_numbers_of_the_c_library():
    assert list(itertools.islice(glibc_rand(1), 3)) == [1804289383, 846930886, 1681692777]
    assert list(itertools.islice(glibc_rand(0), 3)) == list(itertools.islice(glibc_rand(1), 3))
    assert list(itertools.islice(glibc_rand(42), 2)) == [71876166, 708592740]
    assert all(0 <= u <= 1 for u in itertools.islice(glibc_uniforms(7), 1000))


def test_grpo_bandit_replay():
    figures = _figures("grpo-bandit")
    assert _printed(figures["expected"], 2) == _text("3.28 3.86 4.24 4.39")
    assert _printed(figures["group_mean"], 2) == _text("3.65 5.11 4.56 4.04")
    assert _printed(figures["logits"], 5) == _text("-.52192 1.99871 -.97754 -.38797")


def test_grpo_bandit_with_other_generators():
    other = _figures("grpo-bandit")["other_seeds"]
    assert other["count"] == 1000
    assert _printed(other["mean"], 2) == _text("3.18 3.81 4.26 4.44")
    assert _printed(other["sd"], 2) == _text(".08 .13 .14 .14")


def test_grpo_bandit_beside_it():
    figures = _figures("grpo-bandit")
    correct, gap, push = figures["correct"], figures["gap_rms"], figures["kl_push"]
    assert (correct["ratio_min"], correct["ratio_max"]) == (1, 1)
    assert figures["ratio_outside"] > 0.5
    assert gap["noise"] == pytest.approx(math.sqrt(1 / 12 / 6), rel=0.02)  # six uniforms of width 1
    assert gap["actions"] ** 2 + gap["noise"] ** 2 == pytest.approx(gap["all"] ** 2, rel=0.02)
    assert max(push["rule"]) < 0 < max(push["gradient"])
    assert sum(push["gradient"]) == pytest.approx(0, abs=1e-12)


# --- ppo-tabular ---


def test_ppo_tabular_replay():
    figures = _figures("ppo-tabular")
    assert figures["first_ratio_error"] == 0
    # Exact multiples of 1/32: .28125 is printed .2813, .65625 is .6563.
    assert figures["reward"] == [n / 32 for n in (14, 8, 9, 6, 14, 14, 14, 19, 21, 18, 23, 27)]
    printed = "0 -.0025 .0033 -.0676 .1014 .0639 .0490 .2668 .3747 .2240 .4898 .7818"
    assert _printed(figures["kl_sampled"], 4) == ["0.0000", *_text(printed)[1:]]


def test_ppo_tabular_end_by_hand_and_by_maths():
    figures = _figures("ppo-tabular")
    for end in (figures["end"], figures["correct_end"]):
        assert _printed([end["p_first"], end["p_second"], end["p_both"]], 4) == _text(".8937 .8930 .7981")
        assert f"{end['kl_exact']:.5f}" == "0.66985"
    assert figures["largest_logit_distance"] < 1e-7
    assert figures["optimum"]["objective"] > figures["end"]["objective"]
    assert min(figures["kl_exact"]) >= 0 > min(figures["kl_sampled"])


# --- ce-vs-ppo, entropy ---


def test_policy_gradient_as_a_multiple_of_cross_entropy():
    figures = _figures("ce-vs-ppo")
    multiples = {(case["ratio"], case["advantage"]): case["multiple"] for case in figures["cases"]}
    for advantage in (2.0, -2.0, 0.0):
        assert multiples[1.0, advantage] == pytest.approx(advantage, abs=1e-12)
    assert multiples[1.4, 2.0] == 0
    assert multiples[1.4, -2.0] == pytest.approx(-2 * 1.4, abs=1e-12)
    assert figures["largest_difference"] < 1e-12


def test_entropy_bonus_and_metric():
    figures = _figures("entropy")
    walk = figures["entropy"]
    assert walk == sorted(walk)
    assert walk[0] < walk[-1] < figures["maximum"]
    assert figures["largest_difference"] < 1e-12
    assert (figures["gradient_at_pads"], figures["metric_changes"]) == (0, 0)
    assert math.isfinite(figures["shared_gradient"])
    assert math.isnan(figures["multiplied_loss"])
    assert math.isnan(figures["multiplied_shared_gradient"])


# --- every result ---


@pytest.mark.parametrize(("name", "options"), RUNS, ids=str)
def test_result_is_well_formed_and_readable(name: str, options: dict[str, Any]):
    result = _result(name, **options)
    text = as_text(result)
    assert result.name == name
    assert max(map(len, text.splitlines())) <= WIDTH
    assert result.notes
    for table in result.tables:
        assert len(table.columns) == len(table.formats)
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert table.title in text.replace("\n", " ")
    for curve in (curve for panel in result.panels for curve in panel.curves):
        assert len(curve.x) == len(curve.y) > 0
    assert json.loads(as_json(result))["figures"].keys() == result.figures.keys()


@pytest.mark.parametrize("name", REPLAYS)
def test_page_shows_what_is_printed(name: str):
    page = (ROOT / "docs" / "labs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    results = [_result(name), *([_result(name, 5)] if name == "reward-model" else [])]
    assert len(blocks) == len(results)
    for block, result in zip(blocks, results, strict=True):
        assert block in as_text(result)


def test_text_and_json_of_what_is_not_finite():
    lines = as_text(SMALL).splitlines()
    assert lines[2:6] == ["Two rows", "  name  value", "  one    1.00", "  none    nan"]
    assert lines[7].startswith("* word")
    read = json.loads(as_json(SMALL))
    assert read["figures"] == {"inf": "Infinity", "list": [1, "-Infinity"]}
    assert read["tables"][0]["rows"][1] == ["none", "NaN"]


def test_no_minus_before_a_rounded_zero():
    table = Table("t", ("a", "b", "c"), ((-0.0, -0.0004, -0.4),), (".3f", ".3f", ".3f"))
    assert as_text(LabResult("z", "?", (table,), (), ())).splitlines()[-1].split() == ["0.000", "0.000", "-0.400"]


def test_plot_is_the_same_every_time(tmp_path: Path):
    pytest.importorskip("matplotlib")
    for suffix, magic in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        first, second = (write_plot(SMALL, tmp_path / f"{n}{suffix}").read_bytes() for n in (1, 2))
        assert first == second
        assert first.startswith(magic)
    assert "<dc:date>" not in (tmp_path / "1.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REPLAYS)
def test_every_lab_can_be_drawn(name: str, tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = write_plot(_result(name), tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert all(panel.x_label in picture for panel in _result(name).panels)


def test_plot_refuses_what_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        write_plot(SMALL, tmp_path / "a.pdf")
    with pytest.raises(ConfigError, match="does not exist"):
        write_plot(SMALL, tmp_path / "nowhere" / "a.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        write_plot(SMALL, tmp_path / "folder.svg")
    with pytest.raises(ConfigError, match="ends in no suffix"):
        check_plot(tmp_path / "a")
    with pytest.raises(ConfigError, match="nothing to draw"):
        write_plot(LabResult("z", "?", (), (), ()), tmp_path / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TetherError, match=r'pip install "tether\[plot\]"'):
        write_plot(SMALL, tmp_path / "a.svg")


# --- the list ---


def test_names_and_options_are_those_of_the_modules():
    for lab in LABS.values():
        if find_spec(f"tether.labs.{lab.module}") is None:
            continue
        known = inspect.signature(import_module(f"tether.labs.{lab.module}").run).parameters
        assert {option.name: option.default for option in lab.options}.items() <= {
            name: parameter.default for name, parameter in known.items()
        }.items()
    assert len(LABS) == 13


def test_list_needs_no_torch():
    code = "import sys, tether.labs, tether.labs.show, tether.labs.plot; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "matplotlib", "numpy"}.isdisjoint(done.stdout.split())


def test_index_of_the_pages_lists_every_lab():
    index = (ROOT / "docs" / "labs" / "README.md").read_text(encoding="utf-8")
    assert [name for name, lab in LABS.items() if f"| [{name}]({name}.md) | {lab.summary} |" not in index] == []


@pytest.mark.parametrize(("name", "options", "message"), [
    ("ppo-bandits", {}, "did you mean 'ppo-bandit'"),
    ("reward-model", {"contradic": 3}, "did you mean 'contradict'.*known: contradict"),
    ("ppo-bandit", {"seed": 3}, "this lab has none"),
    ("reward-model", {"contradict": "3"}, "expected int"),
    ("grpo-bandit", {"seed": None}, "expected int"),
    ("grpo-bandit", {"seed": True}, "expected int"),
    ("reward-model", {"contradict": -1}, "from 0 to"),
    ("grpo-bandit", {"seed": -1}, "from 0 to"),
    ("grpo-bandit", {"seeds": 1}, "at least 2"),
    ("ppo-tabular", {"seed": -1}, "from 0 to"),
    ("entropy", {"coef": 0}, "above 0"),
])  # fmt: skip
def test_wrong_names_and_options_are_named(name: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        run_lab(name, **options)


def test_other_seeds_give_other_runs():
    assert run_lab("ppo-tabular", seed=20).figures["reward"] != _figures("ppo-tabular")["reward"]
    other = run_lab("grpo-bandit", seed=43, seeds=2).figures
    assert other["group_mean"] != _figures("grpo-bandit")["group_mean"]
