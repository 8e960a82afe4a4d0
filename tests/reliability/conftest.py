"""A store with two checkpoints."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_tools import INPUTS, state_of

from tether.run.checkpoint import CheckpointStore


@pytest.fixture
def folder() -> Iterator[Path]:
    """A store's folder with checkpoints of steps 2 and 4; in memory where that is possible, since hundreds of saves are tried on it."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        store = CheckpointStore(Path(scratch) / "checkpoints")
        for step in (2, 4):
            store.save(step, state_of(step), INPUTS)
        yield store.folder
