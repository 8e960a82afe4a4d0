"""What a run tells the outside while it works: the terminal display and tests implement this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Observer", "Quiet"]


class Observer(Protocol):
    """Receives progress; must not raise and must not change anything of the run."""

    def stage_started(self, stage: str, num_steps: int) -> None:
        """A stage begins; ``num_steps`` is 0 where the number is unknown."""
        ...

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Step ``step`` (from 1) of a stage is done."""
        ...

    def stage_finished(self, stage: str, summary: Mapping[str, Any]) -> None:
        """A stage is done."""
        ...

    def message(self, text: str) -> None:
        """One sentence for the reader."""
        ...


class Quiet:
    """An observer that shows nothing."""

    def stage_started(self, stage: str, num_steps: int) -> None:
        """Ignored."""

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Ignored."""

    def stage_finished(self, stage: str, summary: Mapping[str, Any]) -> None:
        """Ignored."""

    def message(self, text: str) -> None:
        """Ignored."""
