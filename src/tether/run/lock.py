"""One process per run folder. The lock is the kernel's and goes with the process, so a dead one never blocks."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from pathlib import Path
from types import TracebackType
from typing import IO

from tether.errors import RunError

__all__ = ["RunLock"]


class RunLock:
    """A context that holds the folder. State: the open lock file, which names the holder for whoever is refused."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> RunLock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self._path, "a+", encoding="utf-8")
        except OSError as error:
            folder = self._path.parent
            raise RunError(f"{folder} cannot be used as a run folder ({error}); choose another output=... or name=...") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(file)
            file.close()
            raise RunError(f"{self._path.parent} is in use by {holder}: wait for it, stop it, or choose another name=...") from None
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": platform.node()}, file)
        file.flush()
        self._file = file
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        told = json.load(file)
        return f"process {told['pid']} on {told['host']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
