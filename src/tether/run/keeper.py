"""Between a training loop and its checkpoints: restore at the start, save when due, save and leave when asked to stop.

A loop names its stateful parts once and reports each finished step:

    start = keeper.attach({"worker": worker, "cursor": cursor})
    for step in range(start + 1, num_steps + 1):
        ...
        keeper.after_step(step)
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from tether.errors import CheckpointError, RunError, TetherError
from tether.run.checkpoint import Checkpoint, CheckpointStore, begin_again, checkpoint_bytes
from tether.run.made_from import differences, told
from tether.run.signals import StopSignal
from tether.state import State

__all__ = ["NO_KEEPER", "Keeper", "NoKeeper", "Plain", "StageKeeper", "Stateful", "other_inputs"]


class Stateful(Protocol):
    """Something whose state decides how training goes on."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Keeper(Protocol):
    """What a loop needs of it."""

    def attach(self, parts: Mapping[str, Stateful]) -> int: ...

    def after_step(self, step: int) -> None: ...


@dataclass(frozen=True)
class Plain:
    """A part whose state is a JSON object: how to read it, and how to put it back."""

    read: Callable[[], Mapping[str, Any]]
    write: Callable[[Mapping[str, Any]], object]

    def state(self) -> State:
        """The values, without tensors."""
        return State(values=dict(self.read()))

    def restore(self, state: State) -> None:
        """Put the values back."""
        self.write(state.values)


class NoKeeper:
    """Nothing is saved: for loops in a user's own process."""

    def attach(self, parts: Mapping[str, Stateful]) -> int:
        """Start at step 0."""
        return 0

    def after_step(self, step: int) -> None:
        """Nothing."""


NO_KEEPER = NoKeeper()


@dataclass
class StageKeeper:
    """The checkpoints of one stage of a run.

    ``every``: steps between saves, 0 for none but the one that a stop asks for. ``inputs``: what the stage is made from (settings, data,
    code), to which a hash of the weights it starts from is added; a checkpoint that was made from other inputs is refused with the
    differences, unless ``accept_changes``. ``also``: parts that the loop does not know of. ``goes_on``: a save that failed is a warning.
    ``seed``: of the process-wide generators, which are part of the state. ``as_now``: the inputs of a checkpoint as this version reads
    them. ``data``: where the data of the stage are read from, for the reader of a refusal.
    """

    store: CheckpointStore
    every: int
    num_steps: int
    inputs: Mapping[str, Any]
    stop: StopSignal
    say: Callable[[str], None]
    resumed: Callable[[int], None] = lambda step: None
    warn: Callable[[str, int, str], None] = lambda name, step, text: None
    accept_changes: bool = False
    asynchronous: bool = True
    goes_on: bool = False
    seed: int = 0
    as_now: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda inputs: inputs
    data: str = ""
    also: Mapping[str, Stateful] = field(default_factory=dict)
    _parts: dict[str, Stateful] = field(default_factory=dict)

    def attach(self, parts: Mapping[str, Stateful]) -> int:
        """Take the parts; put them into the state of the newest whole checkpoint. Returns the step it was saved after, else 0.

        From here until ``close`` a signal waits for the end of a step.
        """
        self._parts = {**parts, **self.also, "generators": _GlobalGenerators(self.seed)}
        start = self._state()
        self.inputs = {**self.inputs, "start": _fingerprint(start)}
        found = self.store.latest()
        if found is None:
            self._first_look(start)
            self.stop.hold()
            return 0
        self._refuse_other_inputs(found)
        self._put_back(found)
        self.say(f"goes on after step {found.step}, from {found.folder}")
        self.resumed(found.step)
        self.stop.hold()
        return found.step

    def after_step(self, step: int) -> None:
        """Save when due. When a stop was asked for: save and raise what ends the run."""
        if self.stop.asked:
            with suppress(CheckpointError):  # one that failed in the background is made good by this one
                self.store.join()
            self.store.save(step, self._state(), self.inputs)
            self.say(f"saved after step {step}")
            self.stop.leave()
        if self.every and step % self.every == 0 and step < self.num_steps:
            self._attempt(step, self.store.join)
            self._attempt(step, lambda: self.store.save(step, self._state(), self.inputs, wait=not self.asynchronous))

    def save_flagged(self, step: int, flag: str) -> Path:
        """Save after ``step`` at once, due or not; the newest checkpoint of a flag stays whatever the rule of retention says."""
        return self.store.save(step, self._state(), self.inputs, flags=(flag,))

    def close(self) -> None:
        """The loop is done: its checkpoints are of no more use, so that one which failed is only said. A signal that waited acts here."""
        try:
            self.store.join()
        except CheckpointError as error:
            self.warn("checkpoint", self.num_steps, f"the last checkpoint could not be written: {error}")
        self.stop.release()

    def _attempt(self, step: int, action: Callable[[], object]) -> None:
        try:
            action()
        except CheckpointError as error:
            if not self.goes_on:
                raise
            self.warn("checkpoint", step, f"a checkpoint could not be written, training goes on (checkpoint.on_failure): {error}")

    def _put_back(self, found: Checkpoint) -> None:
        state = found.load()
        for name, part in self._parts.items():
            try:
                part.restore(state.part(name))
            except TetherError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise CheckpointError(
                    f"{found.folder}: its state of {name!r} does not fit this version or these settings ({type(error).__name__}: {error}); "
                    f"{begin_again(found.folder.parent)}"
                ) from error

    def _state(self) -> State:
        return State.joined({name: part.state() for name, part in self._parts.items()})

    def _first_look(self, start: State) -> None:
        """Before step 1: is there room, and may we write? Training is not lost to an answer that was known before."""
        if self.every:
            saves = (self.num_steps - 1) // self.every
            self.store.require_space(_full_bytes(start), min(saves, self.store.keep + 1))

    def _refuse_other_inputs(self, found: Checkpoint) -> None:
        changed = [self._with_place(line) for line in differences(self.as_now(found.inputs), self.inputs)]
        if not changed:
            return
        if not self.accept_changes:
            raise other_inputs(found.folder, changed)
        self.say(f"goes on with changed inputs, as told: {told(changed)}")

    def _with_place(self, line: str) -> str:
        return f"{line} (read from {self.data})" if self.data and line.startswith("data: ") else line


def other_inputs(folder: Path, changed: Sequence[str]) -> RunError:
    """The refusal to go on from checkpoints that were made from something else."""
    return RunError(
        f"{folder} was made from other inputs: {told(changed)}. Put them back, or go on with --accept-changes, or start over with "
        "`tether run CONFIG --fresh`"
    )


def _full_bytes(start: State) -> int:
    """Size of a checkpoint once AdamW has two moments for every trained weight."""
    trained = {name: tensor for name, tensor in start.tensors.items() if "weights" in name.split("/")}
    return checkpoint_bytes(start) + 2 * (checkpoint_bytes(State(trained)) - checkpoint_bytes(State()))


def _fingerprint(state: State) -> str:
    """Hash of the trained weights of a state, whatever device they are on."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.tensors.items()):
        if "weights" in name.split("/"):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
            digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _GlobalGenerators:
    """The process-wide generators of Python, NumPy and torch, seeded. Tether draws from none of them; a user's reward may."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed % 2**63)

    def state(self) -> State:
        version, internal, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
        if torch.cuda.is_available():
            tensors["cuda"] = torch.cuda.get_rng_state()
        values = {
            "python": [version, list(internal), gauss],
            "numpy": [str(kind), int(position), int(has_gauss), float(cached)],
        }
        return State(tensors, values)

    def restore(self, state: State) -> None:
        try:
            version, internal, gauss = state.values["python"]
            random.setstate((version, tuple(internal), gauss))
            kind, position, has_gauss, cached = state.values["numpy"]
            np.random.set_state((kind, state.tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
            torch.set_rng_state(state.tensors["torch"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the state of the generators in the checkpoint cannot be used ({error})") from error
        if "cuda" in state.tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(state.tensors["cuda"])
