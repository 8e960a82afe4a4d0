"""The benchmark of the sampler's own decoder: what it measures is what it says, and bad counts are refused. No time is asserted."""

from __future__ import annotations

import pytest

from bench import sampler
from tether import Policy
from tether.models.resolve import resolve_model
from tether.rollout import local


def test_both_paths_are_measured_on_one_model_and_the_gate_is_given_back() -> None:
    gate = local.why_not_llama
    fast, plain = sampler._measure(Policy.load(resolve_model("tiny")).model, 2, 5, 2)
    assert len(fast) == len(plain) == 2
    assert min(*fast, *plain) > 0
    assert local.why_not_llama is gate


def test_counts_below_one_are_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        sampler.main(["--rows", "0"])
    assert "at least 1" in capsys.readouterr().err
