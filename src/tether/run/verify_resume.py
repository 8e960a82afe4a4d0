"""Proof of exact resume on a user's own configuration: each training stage, shortened, once unbroken and once interrupted and resumed.

The two are compared bit for bit: what a checkpoint holds one step before the end (weights, optimiser, data cursor, generators, a hash
over every answer that was sampled), the numbers and texts that every step logged, and the weights that came out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from tether.config import (
    ActorCriticConfig,
    CheckpointConfig,
    DataSource,
    DirectConfig,
    RewardModelConfig,
    RolloutConfig,
    RunConfig,
    SFTConfig,
)
from tether.errors import ConfigError, DataError
from tether.events import read_events, settled
from tether.run.checkpoint import CheckpointStore
from tether.run.observer import Quiet
from tether.run.pipeline import run
from tether.state import State

__all__ = ["ResumeVerdict", "StageVerdict", "shortened", "verify_resume"]

_STEPS = 4
_ROWS = (8, 64, None)  # rows of data that are tried in turn: a few may all be of one prompt, or one label
_TIMED = ("seconds", "per_second")
_SHOWN = 5


@dataclass(frozen=True)
class StageVerdict:
    """One stage: its steps here, the checkpoint that it went on from, and what differs (nothing, if all is well)."""

    stage: str
    steps: int
    resumed_after: int
    differences: tuple[str, ...]

    def __str__(self) -> str:
        place = f"{self.stage}: {self.steps} steps, interrupted in step {self.resumed_after + 1}, resumed after step {self.resumed_after}"
        if not self.differences:
            return f"{place}: weights, optimiser, answers and metrics equal bit for bit"
        more = f" and {len(self.differences) - _SHOWN} more" if len(self.differences) > _SHOWN else ""
        return f"{place}: NOT equal: {'; '.join(self.differences[:_SHOWN])}{more}"


@dataclass(frozen=True)
class ResumeVerdict:
    """All training stages of a configuration."""

    stages: tuple[StageVerdict, ...]

    @property
    def ok(self) -> bool:
        """True where nothing differs."""
        return not any(stage.differences for stage in self.stages)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.ok:
            return f"resume is exact here: {len(self.stages)} stage(s) interrupted and resumed, no bit differs"
        wrong = ", ".join(stage.stage for stage in self.stages if stage.differences)
        return (
            f"resume is NOT exact for {wrong}. Look for a reward with a state of its own, and on a GPU for kernels that are not "
            "deterministic; see docs/resume.md"
        )


def verify_resume(config: RunConfig, *, say: Callable[[str], None] = lambda text: None) -> ResumeVerdict:
    """Run the training stages of ``config``, a few steps each, unbroken and interrupted, in a scratch folder beside its runs.

    Raises ConfigError when there is no training stage, and what the stages raise.
    """
    if not (config.sft or config.reward_model or config.rl or config.direct):
        raise ConfigError("no stage trains anything: there is nothing to resume")
    output = config.folder.absolute().parent
    output.mkdir(parents=True, exist_ok=True)
    for rows in _ROWS:
        with tempfile.TemporaryDirectory(prefix=".verify-resume-", dir=output) as scratch:
            try:
                return _verify(shortened(config, rows, Path(scratch)), say)
            except DataError:
                if rows is _ROWS[-1]:
                    raise
    raise AssertionError("unreachable")


def shortened(config: RunConfig, rows: int | None, output: Path) -> RunConfig:
    """The same settings over so many rows, with few steps, prompts and tokens, a checkpoint every step, and nothing evaluated."""
    changed: dict[str, Any] = {
        "output": str(output),
        "checkpoint": CheckpointConfig(every=1, keep=2, asynchronous=False),
        "evaluate": None,
        "checks": None,
        "rl": {name: _short_online(stage, rows) for name, stage in config.rl.items()},
        "direct": {name: _short_file_stage(stage, rows) for name, stage in config.direct.items()},
    }
    if config.sft is not None:
        changed["sft"] = _short_file_stage(config.sft, rows)
    if config.reward_model is not None:
        changed["reward_model"] = _short_file_stage(config.reward_model, rows)
    return config.model_copy(update=changed)


def _limited(data: DataSource, rows: int | None) -> DataSource:
    return data if rows is None else data.model_copy(update={"limit": min(rows, data.limit or rows)})


def _short_file_stage(stage: SFTConfig | RewardModelConfig | DirectConfig, rows: int | None) -> Any:
    """Two epochs of two or so steps, so that a border of epochs is crossed."""
    size = min(stage.batch_size, _STEPS)
    return stage.model_copy(update={"data": _limited(stage.data, rows), "batch_size": size, "epochs": 2})


def _short_online(stage: RolloutConfig, rows: int | None) -> RolloutConfig:
    sampling = stage.sampling.model_copy(update={"max_new_tokens": min(stage.sampling.max_new_tokens, 16)})
    changed = {
        "prompts": _limited(stage.prompts, None if rows is None else max(3, rows // 2)),
        "steps": _STEPS,
        "prompts_per_step": min(stage.prompts_per_step, 2),
        "samples_per_prompt": min(stage.samples_per_prompt, 4),
        "epochs": min(stage.epochs, 2),
        "minibatches": min(stage.minibatches, 2),
        "sampling": sampling,
    }
    if isinstance(stage, ActorCriticConfig):
        changed["value_pretrain_steps"] = min(stage.value_pretrain_steps, 1)  # so that the policy's steps are seen too
    return stage.model_copy(update=changed)


# -- the two runs ------------------------------------------------------------------------------------------------------------


class _Interruption(Exception):
    """Ends a run the hard way, as a crash would."""


@dataclass
class _Watcher(Quiet):
    """Reads the checkpoint before the last step of every stage, and interrupts each stage once where it is told to.

    State: the lengths of the stages, what was read, and where stages were interrupted.
    """

    folder: Path
    interrupts: bool
    steps: dict[str, int] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    interrupted: dict[str, int] = field(default_factory=dict)

    def stage_started(self, stage: str, num_steps: int) -> None:
        """Remember its length."""
        self.steps[stage] = num_steps

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """After the step was logged, before it is saved."""
        last = self.steps[stage]
        if self.interrupts and stage not in self.interrupted and step == last // 2 + 1:
            self.interrupted[stage] = step
            raise _Interruption
        if step == last and (found := CheckpointStore(self.folder / "checkpoints" / stage).latest()) is not None:
            self.states[stage] = found.load()


def _verify(config: RunConfig, say: Callable[[str], None]) -> ResumeVerdict:
    whole, broken = (config.model_copy(update={"name": name}) for name in ("unbroken", "interrupted"))
    say("once unbroken ...")
    one = _Watcher(whole.folder, interrupts=False)
    run(whole, observer=one)
    say("once interrupted in every stage, and resumed ...")
    two = _Watcher(broken.folder, interrupts=True)
    while True:
        try:
            run(broken, observer=two)
        except _Interruption:
            continue
        break
    resumed = {event["stage"]: event["step"] for event in read_events(broken.folder / "events.jsonl") if event["kind"] == "resumed"}
    verdicts = []
    for stage, steps in one.steps.items():
        found = tuple(_differences(stage, one, two))
        verdicts.append(StageVerdict(stage, steps, resumed.get(stage, 0), found))
        say(str(verdicts[-1]))
    return ResumeVerdict(tuple(verdicts))


# -- the comparison ----------------------------------------------------------------------------------------------------------


def _differences(stage: str, one: _Watcher, two: _Watcher) -> Iterator[str]:
    if stage not in two.interrupted:
        yield "it was not interrupted"
    if (stage in one.states) != (stage in two.states):
        yield "only one of the two runs had a checkpoint before its last step"
    if stage in one.states and stage in two.states:
        yield from _state_differences(one.states[stage], two.states[stage])
    for told, retold in zip(_logged(one.folder, stage), _logged(two.folder, stage), strict=False):
        if told != retold:
            yield f"logged otherwise: {_first_difference(told, retold)}"
            break
    if len(_logged(one.folder, stage)) != len(_logged(two.folder, stage)):
        yield "another number of steps was logged"
    for name, content in _weight_files(one.folder / stage).items():
        if _weight_files(two.folder / stage).get(name) != content:
            yield f"the file {stage}/{name} differs"


def _state_differences(one: State, two: State) -> Iterator[str]:
    for name in sorted({*one.tensors, *two.tensors}):
        first, second = one.tensors.get(name), two.tensors.get(name)
        if first is None or second is None:
            yield f"{name} is in one of the two checkpoints only"
        elif not _same_bits(first, second):
            gap = float((first.double() - second.double()).abs().max()) if first.shape == second.shape else float("nan")
            yield f"{name} differs by up to {gap:.3g}"
    for part in sorted({*one.values, *two.values} - {"metrics"}):  # the metrics are compared in the log, without times
        if repr(one.values.get(part)) != repr(two.values.get(part)):
            yield "the sampled answers differ" if part == "answers" else f"the state of {part} differs"


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return torch.equal(one.contiguous().flatten().view(torch.uint8), two.contiguous().flatten().view(torch.uint8))


def _logged(folder: Path, stage: str) -> list[str]:
    """What every step said, without times, as text (NaN differs from itself)."""
    events = [e for e in settled(read_events(folder / "events.jsonl")) if e.get("stage") == stage and e["kind"] in {"step", "samples"}]
    return [f"step {event['step']}: {_untimed(event)}" for event in events]


def _untimed(event: Mapping[str, Any]) -> str:
    if event["kind"] == "samples":
        return repr(event["rows"])
    return ", ".join(f"{name} {value!r}" for name, value in event["metrics"].items() if not name.endswith(_TIMED))


def _first_difference(one: str, two: str) -> str:
    pairs = zip(one.split(", "), two.split(", "), strict=False)
    place = one.partition(":")[0]
    return next((f"{place}, {first} against {second}" for first, second in pairs if first != second), place)


def _weight_files(folder: Path) -> dict[str, str]:
    files: Sequence[Path] = sorted(folder.rglob("*.safetensors"))
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest() for file in files}
