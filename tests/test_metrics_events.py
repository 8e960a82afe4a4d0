"""The registry and the log: no number without a unit, sums not means, a cut line is not read."""

from __future__ import annotations

import math

import pytest

from tether.events import EventLog, read_events
from tether.metrics import REGISTRY, MetricSums, UnknownMetricError, describe


def test_every_metric_says_what_it_is():
    for name, metric in REGISTRY.items():
        assert name == metric.name
        assert metric.unit
        assert metric.mask
        assert metric.aggregation
        assert metric.meaning.endswith(".")


def test_an_unknown_metric_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(UnknownMetricError, match="kl_k1_token"):
        describe("kl_k1_tokens")
    with pytest.raises(UnknownMetricError):
        MetricSums().add("accuracy", 1)
    log = EventLog(tmp_path / "e.jsonl")
    with pytest.raises(UnknownMetricError):
        log.write("step", metrics={"accuracy": 1.0})
    log.close()


def test_case_D7_two_microbatches_of_unequal_size_give_the_mean_over_tokens():
    sums = MetricSums()
    sums.add("loss", 2 * 1.0, 2)
    sums.add("loss", 6 * 3.0, 6)
    assert sums.means()["loss"] == 2.5


def test_extremes_counts_and_values_aggregate_as_the_registry_says():
    sums = MetricSums()
    for ratio in (1.5, 0.5, 1.2):
        sums.add("ratio_max", ratio)
        sums.add("ratio_min", ratio)
        sums.add("optimiser_steps", 1)
        sums.add("beta", ratio)
    sums.add("reward", 0.0, 0)
    means = sums.means()
    assert (means["ratio_max"], means["ratio_min"], means["optimiser_steps"], means["beta"]) == (1.5, 0.5, 3, 1.2)
    assert math.isnan(means["reward"])


def test_seconds_of_several_batches_of_a_step_add_up():
    sums = MetricSums()
    sums.add("generate_seconds", 2.0)
    sums.add("generate_seconds", 3.0)
    assert sums.means()["generate_seconds"] == 5.0


def test_numbers_that_are_not_finite_survive_the_log_as_json(tmp_path):
    log = EventLog(tmp_path / "e.jsonl")
    log.write("step", step=1, metrics={"reward": math.nan, "ratio_max": math.inf})
    log.write("samples", rows=[{"completion": "a\ud800b"}])
    log.close()
    assert "NaN" not in log.path.read_text(encoding="utf-8")
    event = next(iter(read_events(log.path)))
    assert math.isnan(event["metrics"]["reward"])
    assert event["metrics"]["ratio_max"] == math.inf


def test_a_line_cut_by_a_crash_is_ignored_and_the_next_event_starts_a_line_of_its_own(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text('{"kind": "one"}\n{"kind": "tw', encoding="utf-8")
    assert [e["kind"] for e in read_events(path)] == ["one"]
    log = EventLog(path)
    log.write("three")
    log.close()
    assert [e["kind"] for e in read_events(path)] == ["one", "three"]


def test_a_missing_log_is_an_empty_one(tmp_path):
    assert list(read_events(tmp_path / "none.jsonl")) == []
