"""The stages without rollouts of their own: SFT, reward model, evaluation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tether.config.base import Params, Section
from tether.config.settings import DataSource, JudgedSource, LoRAConfig, OptimConfig, SamplingConfig

__all__ = ["EvaluateConfig", "NormaliseConfig", "RewardModelConfig", "SFTConfig", "TiesConfig"]


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

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> SFTConfig:
        if self.data.judgements is not None and self.data.judgements.labels != "majority":
            raise ValueError("data.judgements.labels has an effect on reward models alone; drop it here")
        return self


class TiesConfig(Section):
    """Ties as an outcome of their own; without this section a tie is a comparison with label .5."""

    model: Literal["rao_kupper", "davidson"] = "davidson"
    """`davidson`: P(tie) has the weight nu sqrt(e^s_i e^s_j); `rao_kupper`: a tie where the scores lie within about eta."""
    parameter: float = Field(default=1.0, gt=0)
    """nu (at equal scores the odds of a tie against either win) or eta (log-odds); the first value where it is learned."""
    learned: bool = True
    """Fit the parameter with the scores, at the learning rate of the head."""


class NormaliseConfig(Section):
    """Where the scores of the finished model lie; the offset is stored and added where it scores, never hidden in the weights."""

    to: Literal["mean_std", "mean", "none"] = "mean_std"
    """`mean_std`: mean 0 and std 1 on the reference samples; `mean`: mean 0, the scale stays log-odds; `none`: as they were learned."""
    reference: DataSource | None = None
    """Demonstrations whose answers are the reference samples; absent means both sides of the held-out comparisons."""

    @model_validator(mode="after")
    def _reference_is_used(self) -> NormaliseConfig:
        if self.to == "none" and self.reference is not None:
            raise ValueError('reference has no effect with to = "none"; drop it, or choose mean or mean_std')
        return self


class RewardModelConfig(Section):
    """A Bradley-Terry reward model fitted to comparisons. More than 15 settings: what a reward model is taught is said here in full."""

    data: JudgedSource
    """Comparisons: `prompt`, `chosen`, `rejected`, optional `label` and `margin`; or rankings: `prompt`, `answers`, `ranking`."""
    path: str | None = None
    """Backbone of the reward model; absent means the policy's start (after SFT if that stage ran)."""
    held_out_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the prompts kept for the accuracy; all pairs of a prompt are on one side of the split."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training pairs."""
    batch_size: int = Field(default=16, ge=1)
    """Pairs per optimiser step; prompts where batch_by = "prompts"."""
    batch_by: Literal["pairs", "prompts"] = "pairs"
    """`prompts`: all pairs of a prompt in one step, each answer read once, every prompt with the same weight (InstructGPT eq. 1)."""
    max_length: int = Field(default=512, ge=8)
    """Token limit of prompt plus answer; pairs that no longer differ after cutting are dropped and counted. Stored with the model."""
    truncation: Literal["right", "left", "error"] = "right"
    """Longer texts, in training and when the model scores: cut at the end, cut at the beginning (counted), or refused by row."""
    ties: TiesConfig | None = None
    """A model of ties; absent means Bradley-Terry, where label .5 pulls two scores together."""
    centering: float = Field(default=0.01, ge=0)
    """Weight of (score chosen + score rejected)^2, which keeps scores near 0."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Probability that a label is taken to be wrong."""
    heads: int = Field(default=1, ge=1, le=64)
    """Score heads on one trunk, each with its own random weights of the prompts (Bayesian bootstrap): a score with a standard deviation."""
    normalise: NormaliseConfig = NormaliseConfig()
    """Mean and scale of the finished scores."""
    lora: LoRAConfig | None = None
    """Low-rank adapters on the trunk, merged when saved; absent trains all weights."""
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
