"""`tether compare`: the answer in words, refusals that say what differs, seeds of a recipe as one group; no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tether.compare import as_json, as_text, compare
from tether.errors import RunError

NUM_PROMPTS = 40


def write_run(folder, name, gain, *, seed=0, kl=2.0, start="s" * 64, policies=("ppo",), config=None, old=False, nan=(), weights=None,
              **evaluation):  # fmt: skip
    """A run folder whose policies score ``gain`` above a common base."""
    rng = np.random.default_rng([7, seed, *name.encode()])
    base = np.linspace(3, 7, NUM_PROMPTS)

    def policy(label, shift, distance):
        noise = rng.standard_normal(NUM_PROMPTS)
        scores = (base + shift + 0.3 * (noise - noise.mean())).tolist()
        for index in nan:
            scores[index] = float("nan")
        row = {"name": label, "score": "plainspoken", "mean": float(np.nanmean(scores)), "samples_per_prompt": 1, "confidence": 0.95,
               "kl_sequence_sum_nats": distance, "scores_by_prompt": scores}  # fmt: skip
        trained = weights or f"{name}:{label}".ljust(64, "w")
        made = {"weights_sha256": start if label == "start" else trained, "source_sha256": "c" * 64, "torch": "2.9", "dtype": "float32",
                "device": "cpu", "sampling": {"max_new_tokens": 8, "temperature": 1.0}}  # fmt: skip
        return row if old else {**row, "provenance": made}

    rows = [policy("start", 0.0, 0.0), *(policy(label, gain, kl) for label in policies)]
    path = folder / name
    path.mkdir()
    (path / "evaluation.json").write_text(json.dumps({"prompts_sha256": "p" * 64, "policies": rows, "gains": [], **evaluation}))
    told = {"name": name, "output": str(folder), "seed": seed, "rl": {label: {"kind": label, "kl": {"beta": 0.1}} for label in policies},
            "evaluate": {"sampling": {"max_new_tokens": 8, "temperature": 1.0}}, **(config or {})}  # fmt: skip
    (path / "config.json").write_text(json.dumps(told))
    return path


def other(beta):
    return {"rl": {"ppo": {"kind": "ppo", "kl": {"beta": beta}}}}


def test_a_real_gain_at_equal_kl_is_better(tmp_path):
    found = compare([write_run(tmp_path, "a", 0.5), write_run(tmp_path, "b", 1.5, config=other(0.2))])
    (answer,) = found.comparisons
    assert answer.verdict == "better"
    assert answer.low < answer.difference < answer.high
    assert answer.difference == pytest.approx(1.0)
    assert answer.words.startswith("Yes, on these prompts b:ppo is better than a:ppo")
    assert "not bought with KL" in answer.words
    assert "One training seed each" in answer.words
    assert found.notes == ()


def test_a_gain_with_more_kl_may_be_bought(tmp_path):
    found = compare([write_run(tmp_path, "a", 0.5, kl=2.0), write_run(tmp_path, "b", 1.5, kl=9.0, config=other(0.01))])
    assert "may be bought with distance" in found.comparisons[0].words
    worse = compare([tmp_path / "b", tmp_path / "a"])
    assert worse.comparisons[0].verdict == "worse"
    assert "the gain of b:ppo comes with more KL" in worse.comparisons[0].words


def test_two_runs_with_the_same_weights_are_called_one_policy(tmp_path):
    found = compare([write_run(tmp_path, name, 0.5, weights="a" * 64, config=other(beta)) for name, beta in (("a", 0.1), ("b", 0.2))])
    assert found.notes == ("a:ppo and b:ppo have the same weights (SHA-256 aaaaaaaaaaaa): they are one policy.",)
    assert compare([tmp_path / "a", f"{tmp_path / 'a'}:start"]).notes == ()


def test_no_difference_is_not_shown(tmp_path):
    found = compare([write_run(tmp_path, "a", 0.5), write_run(tmp_path, "b", 0.5, config=other(0.2))])
    assert found.comparisons[0].verdict == "not shown"
    assert found.comparisons[0].words.startswith("Not shown")


def test_seeds_of_one_recipe_are_one_group_and_the_spread_is_told(tmp_path):
    runs = [write_run(tmp_path, f"a{seed}", 0.5, seed=seed) for seed in range(3)]
    runs += [write_run(tmp_path, f"b{seed}", 1.5, seed=seed, config=other(0.2)) for seed in range(3)]
    found = compare(runs)
    assert [group.seeds for group in found.groups] == [(0, 1, 2), (0, 1, 2)]
    assert found.groups[0].label == "a0:ppo and 2 more seeds"
    assert "ahead in 9 of 9 pairs of seeds" in found.comparisons[0].words
    with pytest.raises(RunError, match="seeds of one recipe"):
        compare(runs[:3])


def test_runs_of_the_same_seed_are_called_runs_and_the_warning_comes_first_and_once(tmp_path):
    runs = [write_run(tmp_path, name, 0.5, seed=3) for name in ("a0", "a1")]
    runs += [write_run(tmp_path, name, 1.5, seed=4, config=other(0.2)) for name in ("b0", "b1")]
    found = compare(runs)
    assert [group.label for group in found.groups] == ["a0:ppo and 1 more run (seed 3)", "b0:ppo and 1 more run (seed 4)"]
    text = as_text(found)
    assert text.startswith(
        "Warning: runs of one recipe with the same seed are no independent repetition: a0, a1 (seed 3); b0, b1 (seed 4)."
    )
    assert text.count("independent repetition") == 1
    assert "Means by training run:" in text
    assert "ahead in 4 of 4 pairs of runs" in text
    assert "more seed" not in text
    assert json.loads(as_json(found))["warnings"] == list(found.warnings)
    with pytest.raises(RunError, match=r"a0, a1 are runs of one recipe \(seed 3\); name a second recipe"):
        compare(runs[:2])


def test_a_seed_that_occurs_twice_among_others_is_counted_once(tmp_path):
    runs = [write_run(tmp_path, f"a{number}", 0.5, seed=seed) for number, seed in enumerate((0, 1, 1))]
    found = compare([*runs, write_run(tmp_path, "b", 1.5, config=other(0.2))])
    assert found.groups[0].label == "a0:ppo and 2 more runs (seeds 0, 1)"
    assert "a1, a2 (seed 1)" in found.warnings[0]
    twice = compare([runs[0], runs[0], runs[1], tmp_path / "b"])
    assert twice.groups[0].label == "a0:ppo and 1 more seed"
    assert twice.warnings == ()


def test_policies_of_one_run_and_its_start(tmp_path):
    run = write_run(tmp_path, "a", 1.0, policies=("ppo", "grpo"))
    assert [c.after for c in compare([run]).comparisons] == ["a:grpo"]
    against_start = compare([f"{run}:start", f"{run}:ppo"])
    assert against_start.comparisons[0].verdict == "better"
    with pytest.raises(RunError, match=r"no policy 'dpo'; it has start, ppo, grpo"):
        compare([f"{run}:dpo", run])


def test_many_comparisons_are_adjusted(tmp_path):
    runs = [write_run(tmp_path, f"r{i}", 0.5, config=other(0.1 + i)) for i in range(12)]
    found = compare(runs)
    assert len(found.comparisons) == 11
    assert all(c.p_holm >= c.p_value for c in found.comparisons)
    assert "Holm's correction for 11 comparisons" in found.comparisons[0].words
    assert all(c.verdict == "not shown" for c in found.comparisons)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"prompts_sha256": "q" * 64}, r"held-out prompts \(sha256\): pppppppppppp in a, qqqqqqqqqqqq in b"),
        ({"config": {"evaluate": {"sampling": {"max_new_tokens": 8, "temperature": 1.0}, "score_params": {"x": 1}}}}, "score_params"),
    ],
)
def test_runs_that_were_not_evaluated_alike_are_refused_with_what_differs(tmp_path, change, expected):
    with pytest.raises(RunError, match=expected):
        compare([write_run(tmp_path, "a", 0.5), write_run(tmp_path, "b", 0.5, **change)])


def test_another_sampling_is_refused(tmp_path):
    a, b = write_run(tmp_path, "a", 0.5), write_run(tmp_path, "b", 0.5, config=other(0.2))
    told = json.loads((b / "evaluation.json").read_text())
    told["policies"][1]["provenance"]["sampling"]["temperature"] = 0.7
    (b / "evaluation.json").write_text(json.dumps(told))
    with pytest.raises(RunError, match=r"sampling\.temperature: 1\.0 in a, 0\.7 in b"):
        compare([a, b])


def test_what_is_missing_is_named(tmp_path):
    run = write_run(tmp_path, "a", 0.5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"evaluation\.json is missing: it is no finished run"):
        compare([run, tmp_path / "empty"])
    with pytest.raises(RunError, match="no such folder"):
        compare([run, tmp_path / "nowhere"])
    (run / "evaluation.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        compare([run, run])


def test_older_evaluations_are_compared_and_what_they_lack_is_said(tmp_path):
    found = compare([write_run(tmp_path, "a", 0.5, old=True), write_run(tmp_path, "b", 1.5, old=True, config=other(0.2))])
    assert any("not recorded for a, b" in note for note in found.notes)
    assert "different policies" in found.comparisons[0].words


def test_prompts_that_one_side_could_not_score_leave_the_pairs(tmp_path):
    found = compare([write_run(tmp_path, "a", 0.5, nan=(0, 3)), write_run(tmp_path, "b", 1.5, config=other(0.2), nan=(3, 5))])
    assert found.comparisons[0].num_prompts == NUM_PROMPTS - 3
    json.loads(as_json(found))
    assert "a:ppo" in as_text(found)


def test_comparing_loads_no_torch():
    code = "import sys, tether.compare; print(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"torch", "transformers", "datasets", "pydantic"})
