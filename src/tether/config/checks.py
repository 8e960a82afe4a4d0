"""Checks of an online stage while it trains: a held-out panel at intervals, rules that trip, and what happens then."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tether.config.base import Section, Switchable
from tether.config.settings import DataSource

__all__ = ["CheckLevelsConfig", "ChecksConfig"]


class CheckLevelsConfig(Section):
    """How far is too far, rule by rule; `off` leaves a rule out. Changes are against the look before step 1 unless said otherwise."""

    divergence: Annotated[float | None, Field(ge=0), *Switchable] = 0.0
    """The independent score fell by more than this (its units) against the start or the best look, while the training reward rose."""
    too_long: Annotated[float | None, Field(gt=1), *Switchable] = 2.0
    """Mean length grew by more than this factor."""
    too_short: Annotated[float | None, Field(gt=0, lt=1), *Switchable] = 0.5
    """Mean length fell below this share."""
    entropy: Annotated[float | None, Field(gt=0, lt=1), *Switchable] = 0.2
    """Entropy (nats per token) fell below this share."""
    distinct: Annotated[float | None, Field(gt=0, lt=1), *Switchable] = 0.5
    """The share of distinct answers fell below this share of what it was: mode collapse."""
    repetition: Annotated[float | None, Field(gt=0, lt=1), *Switchable] = 0.2
    """Mean share of repeated trigrams inside an answer rose by more than this."""
    negative_kl: Annotated[float | None, Field(gt=0), *Switchable] = 1.0
    """Mean k1 below minus this many nats per sequence: no KL is negative, so the answers were not drawn from the policy that is read."""
    dead_groups: Annotated[float | None, Field(gt=0, le=1), *Switchable] = 0.9
    """Share of training groups whose rewards are all equal at or above this, step after step."""
    explained_variance: Annotated[float | None, Field(lt=0), *Switchable] = -0.5
    """Explained variance of the value function at or below this, step after step."""
    sampler_gap: Annotated[float | None, Field(gt=0), *Switchable] = 0.1
    """Mean absolute difference of sampler and trainer log-probabilities (nats per token) at or above this, step after step."""


class ChecksConfig(Section):
    """Held-out checks of every online stage; see docs/checks.md. They look and never touch: weights, beta and training randomness stay."""

    every: int = Field(default=5, ge=1)
    """Steps between looks at the panel; there is one before step 1 and one after the last step as well."""
    prompts: DataSource | None = None
    """Held-out prompts of the panel; absent means those of [evaluate]."""
    num_prompts: int = Field(default=32, ge=8)
    """The first so many of them are asked at every look; below about 30 the rules see large changes only."""
    samples_per_prompt: int = Field(default=2, ge=1)
    """Answers per panel prompt, drawn with the same randomness at every look."""
    score: Literal["plainspoken", "exact", "format", "length"] | None = None
    """Independent score that the training reward is held against; absent means that of [evaluate]."""
    score_params: dict[str, Any] = Field(default_factory=dict)
    """Settings of the score, as in a reward part."""
    on_alarm: Literal["pause", "warn"] = "pause"
    """`pause`: save, explain and end the run with status 3, to go on with `tether resume RUN --acknowledge`; `warn`: save, explain, go on."""
    false_alarms: float = Field(default=0.05, gt=0, lt=0.5)
    """Chance at most that a healthy stage trips any rule at any of its looks; shared evenly by the rules, then by their looks."""
    levels: CheckLevelsConfig = CheckLevelsConfig()
    """The rules with their levels."""
