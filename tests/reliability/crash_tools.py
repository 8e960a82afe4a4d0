"""A small state with every kind of part, a store of checkpoints, and a shim that counts and spoils calls to the system."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tether.run import checkpoint as checkpoints
from tether.run.checkpoint import CheckpointStore
from tether.state import State

INPUTS = {"settings": {"seed": 0}, "data": "d" * 64, "code": {"tether": "0"}}


def state_of(number: int) -> State:
    """A state that differs in every file for every number."""
    generator = torch.Generator().manual_seed(number)
    tensors = {f"worker/weights/{i}": torch.randn(7, 5, generator=generator) for i in range(3)}
    return State({**tensors, "worker/count": torch.tensor(number)}, {"worker": {"steps": number}, "metrics": {"loss": 1 / (number + 3)}})


def assert_is(found: State, number: int) -> None:
    """Bit for bit what was saved."""
    told = state_of(number)
    assert found.values == told.values
    assert found.tensors.keys() == told.tensors.keys()
    assert all(torch.equal(found.tensors[name], told.tensors[name]) for name in told.tensors)


def newest(folder: Path) -> int:
    """The step of the newest whole checkpoint, after its state was compared with what was saved there."""
    found = CheckpointStore(folder).latest()
    assert found is not None
    assert_is(found.load(), found.step)
    return found.step


class Shim:
    """Counts calls to the system below ``folder``; ``on_call(number, name)`` may end the process or raise. State: the log of names."""

    def __init__(self, folder: Path, on_call: Callable[[int, str], None] = lambda number, name: None) -> None:
        self.folder, self.on_call = str(folder), on_call
        self.log: list[tuple[str, str]] = []

    def call(self, name: str, path: object) -> None:
        self.log.append((name, os.fspath(path) if isinstance(path, str | os.PathLike) else str(path)))
        self.on_call(len(self.log), name)

    def install(self, patch: pytest.MonkeyPatch) -> Shim:
        for module, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (os, "mkdir"), (os, "rmdir"), (os, "chmod"), (os, "open")):
            self._wrap(patch, module, name)
        self._wrap(patch, shutil, "rmtree")
        real_open = builtins.open

        def open_(path, mode="r", *args, **kwargs):
            mine = str(path).startswith(self.folder)
            if mine:
                self.call(f"open {mode}", path)
            file = real_open(path, mode, *args, **kwargs)
            return _Writes(file, self, str(path)) if mine and mode != "rb" and mode != "r" else file

        patch.setattr(builtins, "open", open_)
        patch.setattr(io, "open", open_)  # what pathlib calls
        real_save = checkpoints.save_file

        def save(tensors, path):
            self.call("save begins", path)
            real_save(tensors, path)
            whole = Path(path).read_bytes()
            with real_open(path, "wb") as file:
                file.write(whole[: len(whole) // 2])
            self.call("save half done", path)
            with real_open(path, "wb") as file:
                file.write(whole)

        patch.setattr(checkpoints, "save_file", save)
        return self

    def _wrap(self, patch: pytest.MonkeyPatch, module, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*args, **kwargs):
            path = args[0]
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            if str(path).startswith(self.folder) or kwargs.get("dir_fd") is not None:
                self.call(name, path)
            return real(*args, **kwargs)

        patch.setattr(module, name, wrapped)


class _Writes:
    """A file whose writes are counted, and reach the disk by halves."""

    def __init__(self, file, shim: Shim, path: str) -> None:
        self._file, self._shim, self._path = file, shim, path

    def write(self, data):
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._shim.call("write", self._path)
        return self._file.write(data[half:])

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *what):
        return self._file.__exit__(*what)

    def __getattr__(self, name):
        return getattr(self._file, name)


def in_a_child(work: Callable[[], None]) -> int:
    """Exit status of ``work`` in a forked process: 0 where it came to its end, 9 where it raised."""
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


ERRORS = {"ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EIO": errno.EIO, "EACCES": errno.EACCES}
