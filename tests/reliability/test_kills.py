"""R1 in short: killed about ten times at random moments. The long form: python -m bench.kill_test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.kill_test import kill_test


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_R1_a_training_that_is_killed_at_random_loses_no_more_than_an_interval_and_ends_with_the_same_weights(kind, tmp_path):
    tally = kill_test(kind, 10, 0, tmp_path, steps=20)
    assert (tally.unreadable_newest, tally.losses_beyond_an_interval, tally.equal) == (0, 0, True), tally
