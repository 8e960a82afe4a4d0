"""Between a training loop and its checkpoints: restore at the start, save when due, save and leave when asked to stop.

A loop names its stateful parts once and reports each finished step:

    start = keeper.attach({"worker": worker, "cursor": cursor})
    for step in range(start + 1, num_steps + 1):
        ...
        keeper.after_step(step)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from tether.errors import CheckpointError, RunError
from tether.run.checkpoint import Checkpoint, CheckpointStore, checkpoint_bytes
from tether.run.signals import StopSignal
from tether.state import State

__all__ = ["NO_KEEPER", "Keeper", "NoKeeper", "Plain", "StageKeeper", "Stateful", "differences"]


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
    code); a checkpoint that was made from other inputs is refused with the differences, unless ``accept_changes``.
    """

    store: CheckpointStore
    every: int
    num_steps: int
    inputs: Mapping[str, Any]
    stop: StopSignal
    say: Callable[[str], None]
    resumed: Callable[[int], None] = lambda step: None
    accept_changes: bool = False
    asynchronous: bool = True
    _parts: dict[str, Stateful] = field(default_factory=dict)

    def attach(self, parts: Mapping[str, Stateful]) -> int:
        """Take the parts; put them into the state of the newest whole checkpoint. Returns the step it was saved after, else 0."""
        self._parts = {**parts, "generators": _GlobalGenerators()}
        found = self.store.latest()
        if found is None:
            self._first_look()
            return 0
        self._refuse_other_inputs(found)
        state = found.load()
        for name, part in self._parts.items():
            part.restore(state.part(name))
        self.say(f"goes on after step {found.step}, from {found.folder}")
        self.resumed(found.step)
        return found.step

    def after_step(self, step: int) -> None:
        """Save when due. When a stop was asked for: save and raise what ends the run."""
        asked = self.stop.asked
        if asked or (self.every and step % self.every == 0 and step < self.num_steps):
            self.store.save(step, self._state(), self.inputs, wait=asked or not self.asynchronous)
        if asked:
            self.say(f"saved after step {step}")
            self.stop.leave()

    def close(self) -> None:
        """Wait for a save in flight."""
        self.store.join()

    def _state(self) -> State:
        return State.joined({name: part.state() for name, part in self._parts.items()})

    def _first_look(self) -> None:
        """Before step 1: is there room, and may we write? Training is not lost to an answer that was known before."""
        if self.every:
            self.store.require_space(checkpoint_bytes(self._state()) * 3)  # moments of the optimiser are still to come

    def _refuse_other_inputs(self, found: Checkpoint) -> None:
        changed = differences(found.inputs, self.inputs)
        if not changed:
            return
        told = "; ".join(changed[:8]) + (f"; and {len(changed) - 8} more" if len(changed) > 8 else "")
        if self.accept_changes:
            self.say(f"goes on with changed inputs, as told: {told}")
            return
        raise RunError(
            f"{found.folder} was made from other inputs: {told}. Put them back, or go on with --accept-changes, or start over with --fresh"
        )


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """One entry per value that differs: "path: old -> new". Example: ({"a": 1}, {"a": 2}) -> ["a: 1 -> 2"]."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted({*old, *new})
        return [line for name in names for line in differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))]
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class _GlobalGenerators:
    """The process-wide generators of Python, NumPy and torch. Tether draws from none of them; a user's reward may."""

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
