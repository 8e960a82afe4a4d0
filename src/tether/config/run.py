"""The whole run: its sections, and what must hold between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tether.config.base import Section, Switchable
from tether.config.checks import ChecksConfig
from tether.config.direct import DirectConfig
from tether.config.online import ActorCriticConfig, AnyRLConfig, OnlineDPOConfig, RolloutConfig
from tether.config.settings import CheckpointConfig, ComputeConfig, ModelConfig
from tether.config.stages import EvaluateConfig, RewardModelConfig, SFTConfig

__all__ = ["RunConfig"]


def _one_or_more(value: Any) -> Any:
    """A single name stands for a list of it."""
    return (value,) if isinstance(value, str) else value


class RunConfig(Section):
    """One run from a start model to a report."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its folder is `output/name`."""
    output: str = "runs"
    """Folder that holds runs."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random: data order, heads, sampling, bootstrap."""
    hang_limit_s: Annotated[float | None, Field(gt=0), *Switchable] = 1800.0
    """Seconds without a step, pass, token or reward after which the run says where it is stuck; "off" for never. No part of any result."""
    hang_stops: bool = False
    """Stop the process then, with exit status 124, instead of waiting on; `tether resume` goes on from the newest checkpoint."""
    report_to: Annotated[tuple[Literal["tensorboard", "trackio", "wandb"], ...], BeforeValidator(_one_or_more)] = ()
    """Trackers that mirror the log, each an extra to install; empty means none. See docs/report.md."""
    model: ModelConfig = ModelConfig()
    """The start model."""
    compute: ComputeConfig = ComputeConfig()
    """Precision, memory and threads."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state of training is saved."""
    sft: SFTConfig | None = None
    """Supervised fine-tuning; its result is the start and the reference of the RL stage."""
    reward_model: RewardModelConfig | None = None
    """Reward model from comparisons."""
    rl: dict[str, AnyRLConfig] = Field(default_factory=dict)
    """Online stages by name, `[rl.NAME]`; each starts from the same weights, so that they can be compared."""
    direct: dict[str, DirectConfig] = Field(default_factory=dict)
    """Direct preference stages by name, `[direct.NAME]`; each starts from the same weights as the online ones."""
    evaluate: EvaluateConfig | None = None
    """Held-out evaluation before and after."""
    checks: ChecksConfig | None = None
    """Checks of the online stages while they train; absent means none."""

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
    if not (config.sft or config.reward_model or config.rl or config.direct or config.evaluate):
        yield "no stage: add at least one of [sft], [reward_model], [rl.NAME], [direct.NAME], [evaluate]"
    yield from _name_problems(config)
    yield from _checks_problems(config)
    for name, rl in config.rl.items():
        yield from _online_problems(config, f"rl.{name}", rl)
    if config.evaluate and config.rl:
        held = config.evaluate.prompts.path
        for name, rl in config.rl.items():
            if held == rl.prompts.path and config.evaluate.prompts.split == rl.prompts.split:
                yield f"evaluate.prompts and rl.{name}.prompts are the same data ({held}); held-out prompts must be others"


def _name_problems(config: RunConfig) -> Iterator[str]:
    """A name is a folder and the name of a policy in the evaluation."""
    for where in (*(f"rl.{name}" for name in config.rl), *(f"direct.{name}" for name in config.direct)):
        name = where.partition(".")[2]
        if not name.replace("-", "_").isidentifier():
            yield f"{where}: a stage name is made of letters, digits, - and _"
        if name == "start":
            yield f"{where}: in the evaluation 'start' is the policy before these stages; choose another name"
    for name in sorted(config.rl.keys() & config.direct.keys()):
        yield f"rl.{name} and direct.{name} share a name, and the evaluation calls policies by it; rename one"


def _checks_problems(config: RunConfig) -> Iterator[str]:
    checks = config.checks
    if checks is None:
        return
    if not config.rl:
        yield "checks has no effect without an [rl.NAME] stage; add one or drop [checks]"
    if checks.prompts is None and config.evaluate is None:
        yield "checks.prompts: is required without an [evaluate] section, whose prompts it would take"
    if checks.score is None and config.evaluate is None and checks.levels.divergence is not None:
        yield (
            "checks.score: is required without an [evaluate] section, whose score it would take; name one, or go without with "
            'checks.levels.divergence = "off"'
        )
    if checks.score is None and checks.score_params:
        yield "checks.score_params has no effect without checks.score; name the score, or drop them"
    for name, rl in config.rl.items():
        held = checks.prompts
        if held is not None and (held.path, held.split) == (rl.prompts.path, rl.prompts.split):
            yield f"checks.prompts and rl.{name}.prompts are the same data ({held.path}); held-out prompts must be others"


def _online_problems(config: RunConfig, where: str, rl: RolloutConfig) -> Iterator[str]:
    if rl.long_prompts == "filter" and rl.max_prompt_tokens is None:
        yield f"{where}.long_prompts = 'filter' has no effect without {where}.max_prompt_tokens; set a limit or drop it"
    needs_model = any(part.kind == "learned" and "path" not in part.params for part in rl.rewards)
    if needs_model and config.reward_model is None:
        yield f"{where}.rewards: a learned part without params.path needs a [reward_model] stage; add one or name a path"
    if rl.prompts_per_step * rl.samples_per_prompt < rl.minibatches:
        yield f"{where}.minibatches = {rl.minibatches} is more than the {rl.prompts_per_step * rl.samples_per_prompt} rows of a step"
    if isinstance(rl, ActorCriticConfig) and rl.critic == "reward_model" and config.reward_model is None:
        yield f"{where}.critic = 'reward_model' needs a [reward_model] stage; add one or use 'shared' or 'separate'"
    if not isinstance(rl, OnlineDPOConfig):
        return
    if rl.prompts_per_step < rl.minibatches <= rl.prompts_per_step * rl.samples_per_prompt:
        yield f"{where}.minibatches = {rl.minibatches} is more than the {rl.prompts_per_step} pairs of a step"
    if rl.refresh_reference and config.model.lora is not None:
        yield (
            f"{where}.refresh_reference with model.lora: the reference is the model with its adapters off, which never changes; "
            "set refresh_reference = 0 or drop model.lora"
        )
