"""The policies that `tether evaluate` is asked about: model folders, hub ids, whole runs, checkpoints of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tether.config import ModelConfig, RunConfig, load_config
from tether.errors import CheckpointError, ModelError
from tether.models.adapters import LoraSpec, merged_weights
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.run.checkpoint import read_checkpoint

__all__ = ["Candidate", "find_candidates"]

_RUN_MARK, _CHECKPOINT_MARK = "environment.json", "manifest.json"


@dataclass(frozen=True)
class Candidate:
    """``label``: a name without a path, unlike all others asked. ``load`` reads the weights."""

    label: str
    load: Callable[[], Policy]


def find_candidates(names: Sequence[str], model: ModelConfig) -> list[Candidate]:
    """Every policy that the names mean, in order; a run stands for its start and every policy it trained. Raises ModelError."""
    found = [candidate for name in names for candidate in _candidates(name, model)]
    labels: list[str] = []
    unlike = []
    for candidate in found:
        number = labels.count(candidate.label) + 1
        labels.append(candidate.label)
        unlike.append(candidate if number == 1 else Candidate(f"{candidate.label} ({number})", candidate.load))
    return unlike


def _candidates(name: str, model: ModelConfig) -> list[Candidate]:
    folder = Path(name).expanduser()
    if (folder / _RUN_MARK).is_file():
        return _of_run(folder, model)
    if (folder / _CHECKPOINT_MARK).is_file():
        return [Candidate(f"{folder.parent.name}/{folder.name}", lambda: _checkpoint(folder, model))]
    path = resolve_model(name, local_files_only=model.local_files_only)
    return [Candidate(_label(name), lambda: _load(path, model))]


def _label(name: str) -> str:
    """The stage and its run where the folder is one, else the folder's name, else the name itself."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if (folder.parent / _RUN_MARK).is_file() else folder.name


def _of_run(folder: Path, model: ModelConfig) -> list[Candidate]:
    config = _config_of(folder)
    trained = [*(f"rl.{name}" for name in config.rl), *(f"direct.{name}" for name in config.direct)]
    finished = [stage for stage in trained if (folder / stage / "stage.json").is_file()]
    start = _start_of(folder, config, model)
    label = folder.resolve().name
    found = [Candidate(f"{label}/start", lambda: _load(start, model))]
    return found + [Candidate(f"{label}/{stage}", lambda path=folder / stage: _load(path, model)) for stage in finished]


def _checkpoint(folder: Path, model: ModelConfig) -> Policy:
    """The policy as a stage had it when it saved: the stage's start, with the trained weights of the checkpoint."""
    run, stage = folder.resolve().parents[2], folder.resolve().parent.name
    if not (run / "config.json").is_file() or stage == "reward_model":
        raise ModelError(f"{folder} is no checkpoint of a policy inside its run (RUN/checkpoints/STAGE/step-NUMBER)")
    config = _config_of(run)
    start = _start_of(run, config, model)
    if stage == "sft":
        start = resolve_model(config.model.path, local_files_only=model.local_files_only)
    lora = None if config.model.lora is None or stage == "sft" else LoraSpec(**config.model.lora.model_dump())
    policy = _load(start, model, lora)
    state = read_checkpoint(folder).load()
    trained = {
        name.partition("/weights/0.")[2]: tensor
        for name, tensor in state.tensors.items()
        if name.startswith(("learner/weights/0.", "worker/weights/0."))
    }
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if not parameter.requires_grad:
                continue
            if name not in trained or trained[name].shape != parameter.shape:
                raise CheckpointError(f"{folder} holds no weight {name} of shape {tuple(parameter.shape)}: another model?")
            parameter.copy_(trained[name])
        if lora is None:
            return policy
        merged = _load(start, model)  # as the stage would save it
        merged.model.load_state_dict(merged_weights(policy.model))
    return merged


def _start_of(run: Path, config: RunConfig, model: ModelConfig) -> Path:
    sft = run / "sft"
    if config.sft is not None and (sft / "stage.json").is_file():
        return sft
    return resolve_model(config.model.path, local_files_only=model.local_files_only)


def _config_of(run: Path) -> RunConfig:
    stored = run / "config.json"
    if not stored.is_file():
        raise ModelError(f"{run} looks like a run, but holds no config.json")
    return load_config(stored)


def _load(path: Path | str, model: ModelConfig, lora: Any = None) -> Policy:
    return Policy.load(path, lora=lora, local_files_only=model.local_files_only, trust_remote_code=model.trust_remote_code)
