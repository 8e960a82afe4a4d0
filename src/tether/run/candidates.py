"""The policies that `tether evaluate` is asked about: model folders, hub ids, whole runs, checkpoints of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from tether.config import ModelConfig, RunConfig, load_config
from tether.errors import CheckpointError, ModelError
from tether.models.adapters import LoraSpec, merged_weights
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.reward import SETTINGS_FILE
from tether.run.checkpoint import read_checkpoint
from tether.run.folder import verify_stage

__all__ = ["Candidate", "final_candidates", "find_candidates"]

_RUN_MARK, _CHECKPOINT_MARK = "environment.json", "manifest.json"
_PATH_STARTS = ("./", "../", "/", "~", "runs/")
_MAX_BESIDE = 8


@dataclass(frozen=True)
class Candidate:
    """``label``: a name without a path, unlike all others asked. ``load`` reads the weights. ``note``: what a reader must know of it."""

    label: str
    load: Callable[[], Policy]
    note: str = ""


def find_candidates(names: Sequence[str], model: ModelConfig) -> list[Candidate]:
    """Every policy that the names mean, in order; a run stands for its start and every policy it trained. Raises ModelError."""
    return _unlike([candidate for name in names for candidate in _candidates(name, model)])


def final_candidates(names: Sequence[str], model: ModelConfig) -> list[Candidate]:
    """One policy for each name; a run stands for the policy that it trained last, and labels say run and stage. Raises ModelError."""
    return _unlike([_final(name, model) for name in names])


def _final(name: str, model: ModelConfig) -> Candidate:
    folder = Path(name).expanduser()
    if (folder / _RUN_MARK).is_file():
        return _final_of_run(folder, model)
    (found,) = _candidates(name, model)
    run = folder.resolve().parents[2] if (folder / _CHECKPOINT_MARK).is_file() and len(folder.resolve().parents) > 2 else None
    named = run is not None and (run / _RUN_MARK).is_file() and not (folder / "config.json").is_file()
    return replace(found, label=f"{run.name}/{found.label}") if run is not None and named else found


def _final_of_run(folder: Path, model: ModelConfig) -> Candidate:
    _, *found = _of_run(folder, model)  # the first one is the start; refuses a run without any policy
    config = _config_of(folder)
    label = folder.resolve().name
    wanted = len(config.rl) + len(config.direct)
    if not wanted and (folder / "sft" / "stage.json").is_file():
        return Candidate(f"{label}/sft", lambda: _load(folder / "sft", model))
    finished = ", ".join(str(folder / one.label.partition("/")[2]) for one in found)
    if len(found) < max(wanted, 1):
        told = f"what is finished has a folder of its own: {finished}" if finished else "none of its policies is finished"
        raise ModelError(f"{folder} is unfinished, and its last policy is not there: go on with `tether resume {folder}`; {told}")
    if len(found) > 1:
        raise ModelError(f"{folder} trained {len(found)} policies side by side, and none is the last: name those you mean: {finished}")
    return found[0]


def _unlike(found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with labels that no two of them share."""
    labels: list[str] = []
    unlike = []
    for candidate in found:
        number = labels.count(candidate.label) + 1
        labels.append(candidate.label)
        unlike.append(candidate if number == 1 else replace(candidate, label=f"{candidate.label} ({number})"))
    return unlike


def _candidates(name: str, model: ModelConfig) -> list[Candidate]:
    folder = Path(name).expanduser()
    if (folder / _RUN_MARK).is_file():
        return _of_run(folder, model)
    if (folder / _CHECKPOINT_MARK).is_file() and not (folder / "config.json").is_file():  # fetched models have a manifest too
        return [Candidate(f"{folder.parent.name}/{folder.name}", lambda: _checkpoint(folder, model))]
    path = _resolve(name, folder, model)
    _refuse_reward_model(name, path)
    return [Candidate(_label(name), lambda: _load(path, model))]


def _resolve(name: str, folder: Path, model: ModelConfig) -> Path:
    """The folder of the weights. A name that looks like a path is answered as one, not as a hub id."""
    if folder.is_file():
        raise ModelError(f"{name} is a file: expected a folder that holds a model; is it {folder.parent}?")
    if name.startswith(_PATH_STARTS) and not folder.exists():
        raise ModelError(_no_folder(name, folder))
    try:
        return resolve_model(name, local_files_only=model.local_files_only)
    except ModelError as error:
        if "/" in name and not folder.exists() and folder.parent.exists():
            raise ModelError(_no_folder(name, folder)) from error
        raise


def _no_folder(name: str, folder: Path) -> str:
    """Names the first part of the path that is missing, and what lies beside it, the most alike first."""
    missing = folder
    while not missing.parent.is_dir():
        missing = missing.parent
    beside = sorted(path.name for path in missing.parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    near = get_close_matches(missing.name, beside, n=3)
    shown = [*near, *(other for other in beside if other not in near)][:_MAX_BESIDE]
    more = f" and {len(beside) - len(shown)} more" if len(beside) > len(shown) else ""
    place = "this folder" if str(missing.parent) == "." else str(missing.parent)
    told = f"{place} has {', '.join(shown)}{more}" if shown else f"{place} has no folders"
    guess = f"; did you mean {missing.parent / near[0]}?" if near else ""
    return f"there is no folder {name}{f' (no {missing})' if missing != folder else ''}; {told}{guess}"


def _refuse_reward_model(name: str, path: Path) -> None:
    """A model that scores writes no answers: say where it belongs."""
    try:
        kinds = json.loads((path / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        kinds = []  # the loader says what is wrong
    if (path / SETTINGS_FILE).is_file() or any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        raise ModelError(
            f"{name} is a reward model: it scores answers and writes none. Name a policy as MODEL, and give --reward-model {name}"
        )


def _label(name: str) -> str:
    """The stage and its run where the folder is one, else the folder's name, else the name itself."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if (folder.parent / _RUN_MARK).is_file() else folder.name


def _of_run(folder: Path, model: ModelConfig) -> list[Candidate]:
    config = _config_of(folder)
    label = folder.resolve().name
    trained = [*(f"rl.{name}" for name in config.rl), *(f"direct.{name}" for name in config.direct)]
    wanted = [*(["sft"] if config.sft is not None else []), *trained]
    if not wanted:
        reward_model = f"; its reward model is for --reward-model {folder / 'reward_model'}" if config.reward_model is not None else ""
        raise ModelError(
            f"{folder} is a run without any policy (no [sft], [rl.NAME] or [direct.NAME]){reward_model}. Name a policy as MODEL"
        )
    finished = [stage for stage in trained if (folder / stage / "stage.json").is_file()]
    start = _start_of(folder, config, model)
    lacks = [stage for stage in wanted if not (folder / stage / "stage.json").is_file()]
    found = [Candidate(f"{label}/start", lambda: _load(start, model), _unfinished(label, lacks))]
    return found + [Candidate(f"{label}/{stage}", lambda path=folder / stage: _load(path, model)) for stage in finished]


def _unfinished(label: str, lacks: Sequence[str]) -> str:
    if not lacks:
        return ""
    start = f" {label}/start is the model before SFT." if "sft" in lacks else ""
    return f"{label} is unfinished: it lacks {', '.join(lacks)}.{start} Only what is finished is evaluated; go on with `tether resume`."


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
    verify_stage(Path(path))
    return Policy.load(path, lora=lora, local_files_only=model.local_files_only, trust_remote_code=model.trust_remote_code)
