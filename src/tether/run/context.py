"""What the stages of a run share: its folder, log and machine, and how a stage is built once and reused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tether import __version__
from tether.backends.compute import Compute
from tether.config import RolloutConfig, RunConfig, Section
from tether.errors import CheckpointError, RunError
from tether.events import EventLog
from tether.files import remove
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy, ValueHead
from tether.models.snapshot import Snapshot
from tether.plan.memory import StagePlan
from tether.rewards.learned import TextScorer
from tether.rollout.journal import JournalledSampler
from tether.rollout.local import LocalSampler
from tether.rollout.proof import WeightProof
from tether.run.cards import write_cards
from tether.run.checkpoint import CheckpointStore
from tether.run.folder import RunFolder, sha256_text, source_sha256
from tether.run.keeper import StageKeeper, Stateful, other_inputs
from tether.run.made_from import as_read_now, differences
from tether.run.memory import mib, peak_memory
from tether.run.observer import Observer
from tether.run.recorder import Recorder
from tether.run.scorer import scorer_loader
from tether.run.signals import StopSignal
from tether.run.sources import data_path, stage_rows, stage_sections
from tether.run.warnings import Warnings

__all__ = [
    "Context", "build_stage", "load_policy", "load_scorer", "proof_for", "refuse_other_settings", "sampler_for", "snapshot_for",
]

_CHUNK = 4  # a journal's chunk in fillings of the sampler: long enough that its ragged end costs little


@dataclass(frozen=True)
class Context:
    config: RunConfig
    folder: RunFolder
    log: EventLog
    observer: Observer
    compute: Compute
    warnings: Warnings
    stop: StopSignal = field(default_factory=StopSignal)
    accept_changes: bool = False
    said: set[str] = field(default_factory=set)
    stores: list[CheckpointStore] = field(default_factory=list)
    plans: Mapping[str, StagePlan] = field(default_factory=dict)

    def say_once(self, text: str) -> None:
        """One sentence, logged and shown, that would hold for several stages or models: said for the first of them."""
        if text not in self.said:
            self.said.add(text)
            self.log.write("message", stage="run", text=text)
            self.observer.message(text)

    def recorder(self, stage: str, num_steps: int) -> Recorder:
        self.warnings.stage = stage
        return Recorder(self.log, self.observer, stage, num_steps, self.folder.path)

    def keeper(
        self, recorder: Recorder, section: Section, data_sha256: str, also: Mapping[str, Stateful] | None = None
    ) -> StageKeeper:
        """The checkpoints of the stage that ``recorder`` records, which reads ``section`` and data of that hash. ``also``: parts that
        its loop does not know of."""
        config = self.config.checkpoint
        name = recorder.stage
        store = CheckpointStore(self.folder.checkpoints(name), config.keep)
        self.stores.append(store)
        return StageKeeper(
            store,
            config.every,
            recorder.num_steps,
            stage_inputs(self.config, name, section, data_sha256) | {"before": self._weights_before(name)},
            self.stop,
            lambda text: recorder.message(f"{name}: {text}"),
            recorder.resumed,
            recorder.warning,
            self.accept_changes,
            config.asynchronous,
            config.on_failure == "continue",
            self.config.seed,
            lambda inputs: {**inputs, "settings": as_read_now(inputs.get("settings", {}), self.config)},
            data_path(stage_sections(self.config)[name]),
            also or {},
        )

    def _weights_before(self, name: str) -> dict[str, str]:
        """Hashes of what the finished stages left that ``name`` may build on."""
        found = {stage: self.folder.finished(stage) for stage in ("sft", "reward_model") if stage != name}
        return {stage: summary["weights_sha256"] for stage, summary in found.items() if summary is not None}

    def settle(self) -> None:
        """Wait for saves in flight, whatever ended the run; what they raise would hide it."""
        for store in self.stores:
            with suppress(CheckpointError):
                store.join()

    def journalled(self, sampler: LocalSampler, name: str, section: Section, data_sha256: str) -> JournalledSampler:
        """The sampler of an online stage, with what it has finished kept beside the checkpoints."""
        identity = sha256_text(json.dumps(stage_inputs(self.config, name, section, data_sha256)))
        return JournalledSampler(sampler, self.folder.checkpoints(name), identity, _CHUNK * sampler.max_rows)


def stage_inputs(config: RunConfig, name: str, section: Section, data_sha256: str) -> dict[str, Any]:
    """What the state of a stage follows from: kept in its checkpoints, and compared before it goes on."""
    parts = {"model": config.model, "compute": config.compute, name: section}
    return {
        "settings": {key: part.model_dump(mode="json") for key, part in parts.items()} | {"seed": config.seed},
        "data": data_sha256,
        "code": {"tether": __version__, "source": source_sha256(), "torch": torch.__version__},
    }


def refuse_other_settings(config: RunConfig, folder: RunFolder) -> None:
    """Before anything is written: a stage that was interrupted goes on with the settings it had.

    Raises RunError with the differences. Data, code and weights are compared when the stage begins, by ``StageKeeper``.
    """
    for name, section in stage_sections(config).items():
        found = CheckpointStore(folder.checkpoints(name)).newest_inputs()
        if found is not None:
            before = as_read_now(found.get("settings", {}), config)
            changed = differences(before, stage_inputs(config, name, section, "")["settings"], "settings")
            if changed:
                raise other_inputs(folder.checkpoints(name), changed)


def build_stage(context: Context, name: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Reuse a finished stage, or build it in a clean folder and mark it finished."""
    folder = context.folder.stage(name)
    if context.folder.finished(name) is not None:
        context.folder.verify(name)
        _refuse_other_data(context, name)
        context.observer.message(f"{name}: finished before, reused from {folder}")
        remove(context.folder.checkpoints(name))  # what a crash kept from being removed
        return folder
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with peak_memory(context.compute) as peak:
        summary = build(folder)
    _say_memory(context, name, peak.bytes)
    context.folder.finish(name, summary)
    write_cards(context.config, context.folder.path)
    remove(context.folder.checkpoints(name))  # the finished stage is what they were for
    return folder


def _say_memory(context: Context, name: str, peak: int | None) -> None:
    """What the stage held at most, beside its plan."""
    plan, metrics = context.plans.get(name), dict[str, float]()
    told = []
    if peak is not None:
        metrics["memory_peak"] = mib(peak)
        told.append(f"{mib(peak):,.0f} MiB of memory at most")
    if plan is not None:
        metrics["memory_planned"] = mib(plan.peak_bytes)
        told.append(f"{mib(plan.peak_bytes):,.0f} MiB planned")
    if told:
        context.log.write("memory", stage=name, metrics=metrics)
        context.observer.message(f"{name}: {', '.join(told)}")


def _refuse_other_data(context: Context, name: str) -> None:
    """A finished stage is reused for the data that it was made from. Raises RunError where they have changed, unless told to go on."""
    summary = context.folder.summary(name)
    rows = stage_rows(stage_sections(context.config)[name])
    if summary.get("data_sha256") in {None, rows.sha256}:
        return
    told = f"{context.folder.stage(name)} was made from other data: {rows.source} has changed since (SHA-256 differs)"
    if not context.accept_changes:
        raise RunError(
            f"{told}. Choose another name=... to train on them as they are now, start over with `tether run CONFIG --fresh`, which sets "
            "the old folder aside, or go on with what was made then by --accept-changes"
        )
    context.observer.message(f"{told}; reused as told")


def load_policy(context: Context, path: Path | str, *, value_head: ValueHead = ValueHead.NONE, lora: LoraSpec | None = None) -> Policy:
    model = context.config.model
    policy = Policy.load(
        path,
        value_head=value_head,
        lora=lora,
        local_files_only=model.local_files_only,
        trust_remote_code=model.trust_remote_code,
        seed=context.config.seed,
    )
    return policy.to(context.compute.device)


def load_scorer(context: Context, folder: Path | None) -> TextScorer | None:
    return None if folder is None else scorer_loader(context.compute)(folder)


def sampler_for(context: Context, policy: Policy, max_rows: int, snapshot: Snapshot | None = None) -> LocalSampler:
    """``snapshot``: of the policy, to draw by in its place between two publishes."""
    model = policy.model if snapshot is None else snapshot.policy.model
    sampler = LocalSampler(model, policy.format.eos_ids, policy.format.pad_id, context.compute.dtype, max_rows, snapshot=snapshot)
    if not sampler.plain:  # which warns of itself
        context.say_once(sampler.description)
    return sampler


def snapshot_for(context: Context, policy: Policy, config: RolloutConfig) -> Snapshot | None:
    """A twin of ``policy`` for answers that are drawn ahead; None where none are."""
    return Snapshot(policy, context.compute.dtype) if config.rollouts_ahead else None


def proof_for(context: Context, policy: Policy, sampler: LocalSampler) -> WeightProof:
    """What every publish to ``sampler`` is checked by."""
    return WeightProof(policy, sampler, context.compute.dtype, context.compute.autocast)
