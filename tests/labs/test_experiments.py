"""The experiments reach their known outcomes: closed forms to the digits of the specification, statistics within their spread."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from tether.labs import best_of_n, group_size, kl_bandit, length_hacking, no_std, over_optimisation, rule_reward
from tether.labs.result import LabResult

QUICK = {
    kl_bandit: {"max_steps": 3},
    group_size: {"seeds": 20, "steps": 5},
    length_hacking: {},
    rule_reward: {"seeds": 1, "steps": 12},
    no_std: {"seeds": 20, "steps": 2},
    over_optimisation: {"pairs": (50,), "seeds": 2, "pool": 512},
    best_of_n: {"samples": 32, "repetitions": 10},
}


@pytest.mark.parametrize("lab", QUICK, ids=lambda lab: lab.__name__.rpartition(".")[2])
def test_every_experiment_is_a_complete_result_and_repeats_itself(lab):
    first, second = lab.run(**QUICK[lab]), lab.run(**QUICK[lab])
    assert first.name == lab.__name__.rpartition(".")[2].replace("_", "-")
    assert astuple(first) == astuple(second)
    _check_shape(first)


def _check_shape(result: LabResult) -> None:
    assert result.question.endswith("?")
    assert result.notes
    for table in result.tables:
        assert len(set(table.columns)) == len(table.columns) == len(table.formats)
        for row in table.rows:
            assert all(format(cell, spec) for cell, spec in zip(row, table.formats, strict=True) if cell != "")
    for panel in result.panels:
        assert all(len(curve.x) == len(curve.y) > 1 for curve in panel.curves)


# ---- kl-bandit -------------------------------------------------------------------------------------------------------------


def test_kl_bandit_closed_forms():
    figures = kl_bandit.run(max_steps=1).figures
    assert figures["expected_forward"] == pytest.approx([4.823, 4.657, 4.358, 3.905, 3.332], abs=5e-4)
    assert figures["expected_reverse"] == pytest.approx([4.999, 4.961, 4.621, 3.944, 3.315], abs=5e-4)


@pytest.mark.slow
def test_kl_bandit_exact_gradients_reach_the_optimum_that_belongs_to_their_tether():
    figures = kl_bandit.run().figures
    assert set(figures["error"]) == {"k1_reward", "k2_loss", "k3_corrected_loss", "k3_loss"}
    assert max(error for line in figures["error"].values() for error in line) < 1e-6
    assert figures["k1_loss_gradient"] == pytest.approx(0, abs=1e-15)


# ---- group-size ------------------------------------------------------------------------------------------------------------


def test_group_size_at_the_size_of_the_specification():
    """Seven of the nine stated figures come out to their digits with a stream of NumPy's default generator a seed, two beside theirs.

    Stated: 4.63 at G = 32 (here 4.6249) and an rms of 1.09 at G = 2, where the truth is 1.069: 20,000 seeds, and any KL form.
    """
    figures = group_size.run().figures
    rows = zip(*(figures[name] for name in ("expected_reward", "expected_reward_sd", "rms_gap")), strict=True)
    assert [tuple(round(x, 2) for x in row) for row in rows] == [(3.95, 0.24, 1.08), (4.51, 0.08, 0.59), (4.62, 0.02, 0.25)]
    assert figures["expected_reward"][2] == pytest.approx(4.625, abs=2e-4)


def test_group_size_the_mean_baseline_shrinks_the_gradient_and_leaving_out_repairs_it():
    figures = group_size.run(group_sizes=(2,), seeds=2, steps=1).figures
    assert figures["gradient_share_mean_baseline"] == pytest.approx({"2": 1 / 2, "3": 2 / 3, "6": 5 / 6}, abs=1e-9)
    assert figures["gradient_share_leave_one_out"] == pytest.approx({"2": 1, "3": 1, "6": 1}, abs=1e-9)


# ---- length-hacking --------------------------------------------------------------------------------------------------------


def test_length_hacking_closed_form():
    figures = length_hacking.run().figures
    assert figures["beta_critical"] == pytest.approx(0.4481, abs=5e-5)
    lengths = [5.00, 5.44, 6.29, 8.62, 12.69, 25.93, 34.01, 43.85, 57.98, 62.41, 64]
    assert figures["mean_length"] == pytest.approx(lengths, abs=5.1e-3)
    quality = figures["true_quality"]
    assert quality[:8] == pytest.approx([0.485, 0.501, 0.524, 0.542, 0.494, 0.125, -0.154, -0.520], abs=6e-4)
    assert quality[8:] == pytest.approx([-1.08, -1.27, -1.33], abs=5e-3)
    assert max(quality) == quality[3]
    assert min(quality) == quality[-1] < quality[0]
    assert figures["kl"] == sorted(figures["kl"])


def test_length_hacking_on_a_model():
    options = {"steps": 3, "max_new_tokens": 24, "samples_per_prompt": 4, "learning_rate": 1e-3}
    result = length_hacking.run(model="tiny", **options)
    assert [row[0] for row in result.tables[1].rows] == ["start", "with tether", "without tether"]
    _check_shape(result)
    tethered, free = result.figures["model"].values()
    for course in (tethered, free):
        assert len(course["response_length"]) == 3
        assert course["kl_k3_token"][0] == 0 < course["kl_k3_token"][-1]
    assert tethered["response_length"][0] == free["response_length"][0]  # the same start and the same randomness
    assert tethered != free


@pytest.mark.slow
def test_length_hacking_on_smollm2():
    tethered, free = length_hacking.run(model="smollm2", steps=3, max_new_tokens=24).figures["model"].values()
    assert free["response_length"][-1] > free["response_length"][0]
    assert free["kl_k1_sequence"][-1] > tethered["kl_k1_sequence"][-1]


# ---- rule-reward -----------------------------------------------------------------------------------------------------------


def test_rule_reward_accuracy_and_dead_groups():
    figures = rule_reward.run(seeds=20).figures
    # Band at step 10: a few sums are found late, so one table of 100 has sd .012 and 20 tables a standard error of .004.
    for got, stated, band in zip(figures["accuracy"], (0.053, 0.962, 0.996, 0.998), (5e-4, 0.012, 1e-3, 1e-3), strict=True):
        assert got == pytest.approx(stated, abs=band)
    assert figures["largest_dead_gap"] < 0.03
    p = 1 / 19
    assert figures["dead_share_theory"][0] == pytest.approx(p**8 + (1 - p) ** 8, abs=1e-6)


# ---- no-std ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_std_scale_is_a_learning_rate_without_the_division():
    figures = no_std.run(seeds=400).figures
    small, _, large = figures["best"]["without std"]
    assert small == pytest.approx(0.273, abs=5e-4)
    assert large < 0.96
    assert figures["wrong_share"]["without std"][2] == pytest.approx(0.095, abs=0.03)  # sd .0147 over 400 runs
    assert figures["best"]["with std"] == pytest.approx([0.975] * 3, abs=1.5e-3)
    assert max(figures["wrong_share"]["with std"]) == 0
    assert figures["share_of_large_prompt"]["without std"] == pytest.approx(0.993, abs=1e-3)
    assert figures["share_of_large_prompt"]["with std"] == pytest.approx(0.5, abs=0.02)


# ---- over-optimisation -----------------------------------------------------------------------------------------------------


def test_over_optimisation_peaks_inside_and_later_and_higher_for_a_better_proxy():
    result = over_optimisation.run(seeds=8, pool=1024)
    figures = result.figures
    assert 0 < figures["peak_kl"][0] < figures["peak_kl"][1] < figures["peak_kl"][2] < 32
    assert 0 < figures["peak_gold"][0] < figures["peak_gold"][1] < figures["peak_gold"][2]
    assert max(figures["gold_at_end"]) < 0
    assert max(figures["proxy_at_peak"]) < figures["proxy_at_end"]
    assert min(figures["bon_r_squared"]) > 0.99 > max(figures["log_law_r_squared"])
    proxy = result.panels[0].curves[0].y
    assert list(proxy) == sorted(proxy)


@pytest.mark.slow
def test_over_optimisation_figures_are_those_of_the_specification_within_the_spread_of_worlds():
    """Stated for single worlds: a .60 1.07 1.32, peak 4.0 9.6 9.6, gold at KL 32 -6.4 -2.3 -1.7. Bands: two sd over single worlds."""
    figures = over_optimisation.run(seeds=60).figures
    for name, stated, bands in (
        ("bon_alpha", (0.60, 1.07, 1.32), (0.6, 0.3, 0.2)),
        ("peak_kl", (4.0, 9.6, 9.6), (3.0, 2.5, 3.0)),
        ("gold_at_end", (-6.4, -2.3, -1.7), (3.5, 3.5, 3.5)),
    ):
        for got, value, band in zip(figures[name], stated, bands, strict=True):
            assert got == pytest.approx(value, abs=band)


# ---- best-of-n -------------------------------------------------------------------------------------------------------------


def test_best_of_n_is_unbiased_and_its_distance_stays_below_the_bound():
    figures = best_of_n.run(repetitions=300).figures
    for got, exact, error in zip(figures["gold_unbiased"], figures["gold_exact"], figures["gold_unbiased_se"], strict=True):
        assert abs(got - exact) < 3 * error
    assert all(a <= b + 1e-12 for a, b in zip(figures["gold_unbiased_sd"], figures["gold_blocks_sd"], strict=True))
    assert all(a < b for a, b in zip(figures["kl_exact"], figures["kl_bound"], strict=True))
    assert all(a < b for a, b in zip(figures["win_rate"], figures["win_rate_bound"], strict=True))
    gold = figures["gold_exact"]
    assert gold[0] < max(gold) > gold[-1]
    for truth, unbiased, plug_in in figures["pass_at_k"].values():
        assert unbiased == pytest.approx(truth, abs=1e-12)
        assert plug_in <= truth + 1e-12
