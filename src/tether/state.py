"""The state of training as a value: tensors by name and plain JSON values. What is saved, and what is put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tether.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["State"]


@dataclass(frozen=True)
class State:
    """What a training loop needs to go on: tensors by name, and plain JSON values."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Mapping[str, State]) -> State:
        """One state of several: tensors are named PART/NAME, values stand under their part."""
        tensors = {f"{part}/{name}": tensor for part, state in parts.items() for name, tensor in state.tensors.items()}
        return cls(tensors, {part: dict(state.values) for part, state in parts.items()})

    def part(self, name: str) -> State:
        """The state that was joined under ``name``. Raises CheckpointError when there is none."""
        if name not in self.values:
            raise CheckpointError(f"the checkpoint holds no state of {name!r} (it holds {', '.join(self.values)}): another kind of run?")
        prefix = f"{name}/"
        tensors = {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}
        return State(tensors, self.values[name])
