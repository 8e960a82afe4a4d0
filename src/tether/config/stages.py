"""The stages without rollouts of their own: SFT, reward model, evaluation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tether.config.base import Params, Section
from tether.config.settings import DataSource, JudgedSource, OptimConfig, SamplingConfig

__all__ = ["EvaluateConfig", "RewardModelConfig", "SFTConfig"]


class SFTConfig(Section):
    """Supervised fine-tuning on demonstrations; the loss is the mean over response tokens."""

    data: JudgedSource
    """Demonstrations: `messages`, or `prompt` and `completion`."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the data."""
    batch_size: int = Field(default=16, ge=1)
    """Demonstrations per optimiser step."""
    max_length: int = Field(default=512, ge=8)
    """Token limit of prompt plus completion; longer completions are cut from the right and counted."""
    optim: OptimConfig = OptimConfig(learning_rate=2e-5, warmup_steps=2)
    """Optimiser of this stage."""


class RewardModelConfig(Section):
    """A Bradley-Terry reward model fitted to comparisons."""

    data: JudgedSource
    """Comparisons: `prompt`, `chosen`, `rejected` (plain or conversational)."""
    path: str | None = None
    """Backbone of the reward model; absent means the policy's start (after SFT if that stage ran)."""
    held_out_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the prompts kept for the accuracy; all pairs of a prompt are on one side of the split."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training pairs."""
    batch_size: int = Field(default=16, ge=1)
    """Pairs per optimiser step."""
    max_length: int = Field(default=512, ge=8)
    """Token limit of prompt plus answer; pairs that no longer differ after cutting are dropped and counted."""
    centering: float = Field(default=0.01, ge=0)
    """Weight of (score chosen + score rejected)^2, which keeps scores near 0."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Probability that a label is taken to be wrong."""
    head_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the new score head; absent means that of the trunk."""
    optim: OptimConfig = OptimConfig(learning_rate=1e-5, warmup_steps=2)
    """Optimiser of this stage."""


class EvaluateConfig(Section):
    """Held-out evaluation of the start and of every trained policy, on the same prompts with the same randomness."""

    prompts: DataSource
    """Held-out prompts; overlap with training prompts is an error."""
    score: Literal["plainspoken", "exact"] = "plainspoken"
    """Independent score: the simulated rater's noiseless rule, or equality with the answer column. Never a training reward of a learned kind."""
    score_params: Params = Field(default_factory=dict)
    """Settings of the score, as in a reward part."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Answers per held-out prompt; the interval treats the prompt as the unit."""
    sampling: SamplingConfig = SamplingConfig()
    """How answers are drawn."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the bootstrap intervals."""
