"""Mirrors of the event log: TensorBoard, trackio and Weights & Biases, where ``report_to`` names them.

The log stays the truth; a mirror repeats its numbers where people look at other runs. Each stage is one run of the tracker, called
NAME-STAGE, so that PPO and GRPO of one file are two curves in one chart. Names are those of ``tether metrics``; where TRL has a number of
the same definition it is repeated under TRL's name, so that a dashboard made for TRL finds it.

A package is imported only when it is named. A mirror that fails is left out from then on with one warning: it never stops a run.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tether.errors import ConfigError

__all__ = ["TRACKERS", "TRL_NAMES", "Mirror", "Tracker", "TrackerSpec", "named", "require_trackers"]

_LOG = logging.getLogger(__name__)

TRL_NAMES: Mapping[str, str] = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "reward": "train/reward",
    "dead_group_share": "train/frac_reward_zero_std",
    "kl_k3_token": "train/kl",
    "entropy": "train/entropy",
    "clip_low_share": "train/clip_ratio/low_mean",
    "clip_high_share": "train/clip_ratio/high_mean",
    "response_length": "train/completions/mean_length",
    "response_length_max": "train/completions/max_length",
    "truncated_share": "train/completions/clipped_ratio",
    "sampler_gap_mean": "train/sampling/sampling_logp_difference/mean",
    "sampler_gap_max": "train/sampling/sampling_logp_difference/max",
    "pair_accuracy": "train/accuracy",
    "pair_margin": "train/margin",
    "score_mean": "train/mean_reward",
    "implied_reward_chosen": "train/rewards/chosen",
    "implied_reward_rejected": "train/rewards/rejected",
    "implied_margin": "train/rewards/margins",
    "implied_accuracy": "train/rewards/accuracies",
}
"""Registered name -> name in TRL. Left out: numbers that TRL defines otherwise (reward_std is within groups there, logps/* are not
against the start, clip_ratio/region_mean has the sign of the advantage)."""

_PART = "reward/"  # reward/PART -> train/rewards/PART/mean
_PANEL = "panel/"  # what a look of the checks says


def named(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers under their registered names and, where it has them, under TRL's."""
    values = _finite(metrics)
    return values | {alias: value for name, value in values.items() if (alias := _alias(name))}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}


def _alias(name: str) -> str | None:
    return f"train/rewards/{name.removeprefix(_PART)}/mean" if name.startswith(_PART) else TRL_NAMES.get(name)


class Tracker(Protocol):
    """One run of a tracker, open."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """What a tracker is told when a stage starts. ``step``: the last one that is settled; what an earlier attempt told after it is void."""

    project: str
    name: str
    folder: Path
    config: Mapping[str, Any]
    step: int = 0


@dataclass(frozen=True, slots=True)
class TrackerSpec:
    """How a tracker is had. ``packages``: modules, any of which will do; ``open``: (module, opening) -> tracker."""

    extra: str
    packages: tuple[str, ...]
    open: Callable[[Any, Opening], Tracker]


class _TensorBoard:
    """Event files in RUN/tensorboard/STAGE; no network."""

    def __init__(self, module: Any, told: Opening) -> None:
        folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR") or told.folder / "tensorboard") / told.name
        self._writer = module.SummaryWriter(str(folder), purge_step=told.step + 1 if told.step else None)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    """A run of trackio: one file on this machine (TRACKIO_DIR), unless the user's own environment names a Space or a server."""

    def __init__(self, module: Any, told: Opening) -> None:
        quiet: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = module.init(project=told.project, name=told.name, config=dict(told.config), resume="allow", **quiet)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _Wandb:
    """A run of Weights & Biases; WANDB_MODE, WANDB_PROJECT and the rest of its environment hold. It goes to the network by itself."""

    def __init__(self, module: Any, told: Opening) -> None:
        project = os.environ.get("WANDB_PROJECT") or told.project
        self._run = module.init(project=project, name=told.name, dir=str(told.folder), config=dict(told.config), reinit="create_new")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, TrackerSpec] = {
    "tensorboard": TrackerSpec("tensorboard", ("tensorboardX", "torch.utils.tensorboard"), _TensorBoard),
    "trackio": TrackerSpec("trackio", ("trackio",), _Trackio),
    "wandb": TrackerSpec("wandb", ("wandb",), _Wandb),
}


def require_trackers(names: Sequence[str]) -> None:
    """Import what is named. Raises ConfigError with every package that is missing or cannot be imported: before anything is trained."""
    problems: list[str] = []
    for name in names:
        try:
            _module(name)
        except ImportError as error:
            spec = TRACKERS[name]
            problems.append(f"{name} cannot be imported ({error}); pip install 'tether[{spec.extra}]', or drop it")
    if problems:
        raise ConfigError(problems)


def _module(name: str) -> Any:
    *others, last = TRACKERS[name].packages
    for package in others:
        try:
            return importlib.import_module(package)
        except ImportError:
            continue
    return importlib.import_module(last)


@dataclass
class Mirror:
    """Repeats the events of a log to trackers; its ``listen`` takes it. State: the trackers of the stage that is open, and the
    names of those that failed.
    """

    names: Sequence[str]
    run: str
    folder: Path
    config: Mapping[str, Any]
    _stage: str = ""
    _step: int = 0
    _open: dict[str, Tracker] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take one event. Never raises."""
        kind = event["kind"]
        if kind == "stage_started":
            self._close()
            self._stage, self._step = str(event["stage"]), 0
        elif kind == "resumed":
            self._step = int(event["step"])
        elif kind == "step":
            self._tell(named(event["metrics"]), int(event["step"]))
        elif kind == "panel":
            self._tell({_PANEL + name: value for name, value in _finite(event["values"]).items()}, int(event["step"]))
        elif kind in {"stage_finished", "interrupted", "run_finished"}:
            self._close()

    def close(self) -> None:
        """Close what is open: a run that ends in an error logs no end."""
        self._close()

    def _tell(self, values: Mapping[str, float], step: int) -> None:
        for name in self.names:
            if name not in self._failed:
                self._guarded(name, lambda name=name: self._tracker(name).log(values, step))

    def _tracker(self, name: str) -> Tracker:
        if name not in self._open:
            project = os.environ.get("TETHER_PROJECT") or "tether"
            told = Opening(project, f"{self.run}-{self._stage}", self.folder, self.config, self._step)
            self._open[name] = TRACKERS[name].open(_module(name), told)
        return self._open[name]

    def _close(self) -> None:
        opened, self._open = self._open, {}
        for name, tracker in opened.items():
            self._guarded(name, tracker.close)

    def _guarded(self, name: str, action: Callable[[], object]) -> None:
        """The boundary: whatever a tracker raises is one warning, and the tracker is left alone from then on."""
        try:
            with redirect_stdout(sys.stderr):  # stdout is the report's path and nothing else
                action()
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                self._open.pop(name, None)
                _LOG.warning("%s failed and gets nothing more of this run; the log has it all (%s: %s)", name, type(error).__name__, error)
