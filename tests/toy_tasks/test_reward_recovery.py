"""Acceptance: a transformer fitted to 2,000 simulated comparisons recovers the linear reward that judged them, and knows how sure to be."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from tether.backends.compute import Compute
from tether.config import RewardModelConfig
from tether.events import EventLog
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.run.observer import Quiet
from tether.run.recorder import Recorder
from tether.run.reward_model import num_steps, train_reward_model
from tether.run.reward_stage import prepare_groups
from tether.types import Comparison

WORTH = {"a": 1.0, "b": -1.0, "c": 0.5, "d": -0.5, "e": 0.0, "f": 0.0}


def gold(text: str) -> float:
    return sum(WORTH[letter] for letter in text)


def simulated(count: int, seed: int) -> list[Comparison]:
    """Words of eight letters, judged by Bradley-Terry on the sum of the worth of their letters."""
    draw, told = random.Random(seed), []
    for i in range(count):
        one, two = ("".join(draw.choice("abcdef") for _ in range(8)) for _ in range(2))
        if draw.random() >= 1 / (1 + math.exp(gold(two) - gold(one))):
            one, two = two, one
        told.append(Comparison(f"q{i % 250}", one, two))
    return told


@pytest.mark.slow
def test_a_tiny_transformer_recovers_the_letters_worth(tmp_path):
    settings = {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 10}
    told = {"data": {"path": "f"}, "epochs": 3, "batch_size": 32, "centering": 0.001, "optim": settings}
    config = RewardModelConfig.model_validate(told)
    model = RewardModel.from_base(resolve_model("tiny"), seed=0)
    prepared = prepare_groups(simulated(2500, 0), config, model.format, "simulated", 0)
    assert len(prepared.training) == 2000
    log = EventLog(tmp_path / "events.jsonl")
    recorder = Recorder(log, Quiet(), "reward_model", num_steps(2000, config))
    compute = Compute(torch.device("cpu"), torch.float32, 8192)
    result = train_reward_model(model, prepared.training, prepared.held_out, config, compute, recorder, 0)
    log.close()
    answers = sorted({answer for pair in simulated(500, 1) for answer in (pair.chosen, pair.rejected)})
    scores = model.score_texts(["q0"] * len(answers), answers)
    assert np.corrcoef(scores, [gold(answer) for answer in answers])[0, 1] > 0.95
    assert result.ece < 0.05
