"""One process per run folder. The lock is the kernel's and goes with the process, so a dead one never blocks.

It lies beside the folder (``runs/.NAME.lock``), because ``--fresh`` moves the folder away while it is held.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from tether.errors import RunError

__all__ = ["RunLock"]

_LOG = logging.getLogger(__name__)


class RunLock:
    """A context that holds the folder. State: the open lock file, which names the holder for whoever is refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._path = self._folder.with_name(f".{folder.name}.lock")
        self._file: IO[str] | None = None

    def __enter__(self) -> RunLock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self._path, "a+", encoding="utf-8")
        except OSError as error:
            raise RunError(f"{self._folder} cannot be used as a run folder ({error}); choose another output=... or name=...") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise RunError(f"{self._folder} is in use by {holder}: wait for it, stop it, or choose another name=...") from None
        except OSError as error:  # a file system without locks is no reason not to train
            _LOG.warning("%s cannot be locked (%s): see to it that no second run uses this folder", self._folder, error)
        self._file = file
        with suppress(OSError):  # a full disk: the lock holds without the name of its holder
            file.seek(0)
            file.truncate()
            json.dump({"pid": os.getpid(), "host": platform.node()}, file)
            file.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        told = json.load(file)
        return f"process {told['pid']} on {told['host']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
