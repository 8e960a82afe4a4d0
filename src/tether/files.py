"""Files that are whole or absent: temporary file, fsync, rename, fsync of the folder. Imports no torch.

Every file and folder that Tether relies on after a crash is written through here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from tether.errors import RunError

__all__ = [
    "free_bytes", "is_altered", "json_ready", "overwritten", "refuse_altered", "sealed", "sync_file", "sync_folder", "temporary_beside",
    "write_atomic", "write_atomic_bytes",
]  # fmt: skip

_TEMPORARY = ".tmp-"


def write_atomic(path: str | Path, text: str) -> Path:
    """Write a text (UTF-8) whole or not at all."""
    return write_atomic_bytes(path, [text.encode("utf-8")])


def write_atomic_bytes(path: str | Path, parts: Iterable[bytes]) -> Path:
    """Write parts one after the other; if any of it fails, an older file stays as it was and nothing else is left behind."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(target) as temporary:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    sync_folder(target.parent)
    return target


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """A name on the same file system, in the same folder; what is left under it at the end is removed."""
    temporary = target.with_name(f"{_TEMPORARY}{target.name}.{os.getpid()}")
    remove(temporary)
    try:
        yield temporary
    finally:
        remove(temporary)


def remove_leftovers(folder: Path, alive: Callable[[int], bool]) -> None:
    """Temporary names of processes that are gone."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        pid = path.name.rpartition(".")[2]
        if not pid.isdigit() or not alive(int(pid)):
            remove(path)


def remove(path: Path) -> bool:
    """Remove a file or a folder as far as that is possible, trying twice; True when nothing is left. Never raises: it is called while
    errors pass by, which must not be hidden by one of its own."""
    for _ in range(2):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            continue
        return True
    return not os.path.lexists(path)


def sync_file(path: Path) -> None:
    """Bring a file that something else wrote to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Bring a rename to the disk. File systems that cannot sync folders make it as durable as it gets; a disk that fails raises."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(handle)


def overwritten(written: Mapping[str, Path | None], read: Iterable[str | None]) -> list[str]:
    """What speaks against writing these files, by the option that names each: it is one of those that are ``read``, or written twice."""
    taken = {Path(name).expanduser().resolve(): "is read by this command, and would be lost" for name in read if name}
    problems: list[str] = []
    for option, path in written.items():
        if path is None:
            continue
        place = path.expanduser().resolve()
        if place in taken:
            problems.append(f"{option} {path}: this file {taken[place]}; name another one")
        taken.setdefault(place, f"is what {option} writes, too")
    return problems


def free_bytes(folder: Path) -> int:
    """Bytes that this process may still write where ``folder`` is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def json_ready(value: Any) -> Any:
    """A value as JSON holds it: dataclasses and mappings as objects, tuples as lists, numbers that are not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return json_ready(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the SHA-256 of the rest of it in its field "sha256"."""
    return {**data, "sha256": _seal(data)}


def is_altered(data: Mapping[str, Any]) -> bool:
    """True where an object is not what was ``sealed``. One without the field (written before there was one) is taken as it is."""
    return data.get("sha256") not in {None, _seal(data)}


def refuse_altered(data: Mapping[str, Any], path: Path) -> None:
    """Raises RunError where the evaluation of a run, read from ``path``, is altered."""
    if is_altered(data):
        raise RunError(f"{path} is damaged: it does not match its own SHA-256; put it back from a copy, or delete it and resume "
                       f"(`tether resume {path.parent}`), which evaluates again")  # fmt: skip


def _seal(data: Mapping[str, Any]) -> str:
    told = {key: value for key, value in data.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
