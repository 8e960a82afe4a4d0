"""The whole run: its sections, and what must hold between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, model_validator

from tether.config.base import Section
from tether.config.online import ActorCriticConfig, AnyRLConfig
from tether.config.settings import ComputeConfig, ModelConfig
from tether.config.stages import EvaluateConfig, RewardModelConfig, SFTConfig

__all__ = ["RunConfig"]


class RunConfig(Section):
    """One run from a start model to a report."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its folder is `output/name`."""
    output: str = "runs"
    """Folder that holds runs."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random: data order, heads, sampling, bootstrap."""
    model: ModelConfig = ModelConfig()
    """The start model."""
    compute: ComputeConfig = ComputeConfig()
    """Precision, memory and threads."""
    sft: SFTConfig | None = None
    """Supervised fine-tuning; its result is the start and the reference of the RL stage."""
    reward_model: RewardModelConfig | None = None
    """Reward model from comparisons."""
    rl: dict[str, AnyRLConfig] = Field(default_factory=dict)
    """Online stages by name, `[rl.NAME]`; each starts from the same weights, so that they can be compared."""
    evaluate: EvaluateConfig | None = None
    """Held-out evaluation before and after."""

    @model_validator(mode="after")
    def _stages_fit(self) -> RunConfig:
        problems = list(_cross_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return Path(self.output) / self.name


def _cross_problems(config: RunConfig) -> Iterator[str]:
    """Problems that concern several sections."""
    if not (config.sft or config.reward_model or config.rl or config.evaluate):
        yield "no stage: add at least one of [sft], [reward_model], [rl.NAME], [evaluate]"
    for name, rl in config.rl.items():
        where = f"rl.{name}"
        if not name.replace("-", "_").isidentifier():
            yield f"{where}: a stage name is made of letters, digits, - and _"
        if rl.long_prompts == "filter" and rl.max_prompt_tokens is None:
            yield f"{where}.long_prompts = 'filter' has no effect without {where}.max_prompt_tokens; set a limit or drop it"
        needs_model = any(part.kind == "learned" and "path" not in part.params for part in rl.rewards)
        if needs_model and config.reward_model is None:
            yield f"{where}.rewards: a learned part without params.path needs a [reward_model] stage; add one or name a path"
        if rl.prompts_per_step * rl.samples_per_prompt < rl.minibatches:
            yield f"{where}.minibatches = {rl.minibatches} is more than the {rl.prompts_per_step * rl.samples_per_prompt} rows of a step"
        if isinstance(rl, ActorCriticConfig) and rl.critic == "reward_model" and config.reward_model is None:
            yield f"{where}.critic = 'reward_model' needs a [reward_model] stage; add one or use 'shared' or 'separate'"
    if config.evaluate and config.rl:
        held = config.evaluate.prompts.path
        for name, rl in config.rl.items():
            if held == rl.prompts.path and config.evaluate.prompts.split == rl.prompts.split:
                yield f"evaluate.prompts and rl.{name}.prompts are the same data ({held}); held-out prompts must be others"
