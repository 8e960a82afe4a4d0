"""Rollouts made by hand for the reward tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tether.types import Completion, Message, Prompt, Rollout, Sampling, StopReason

MakeRollout = Callable[..., Rollout]


@pytest.fixture
def make_rollout() -> MakeRollout:
    def make(
        text: str,
        *,
        question: str = "What is 7 + 5?",
        stop: StopReason = StopReason.STOP,
        num_tokens: int = 4,
        prompt_id: str = "p",
        **columns: object,
    ) -> Rollout:
        prompt = Prompt(prompt_id, (Message("user", question),), columns)
        zeros = (0.0,) * num_tokens
        completion = Completion(prompt_id, 0, (3,) * num_tokens, zeros, (0,) * num_tokens, stop, Sampling(48))
        return Rollout(prompt, (1, 2), completion, text)

    return make
