"""Checkpoints: one atomic folder each, verified before use, retained by a rule that never leaves none.

    FOLDER/step-00000012/  weights.safetensors  values.json  manifest.json

``manifest.json`` is written last and holds size and SHA-256 of every other file; the folder gets its name by one rename after
everything in it is on the disk. So a name without ``.tmp-`` is complete, or damaged and known to be so. Safetensors and JSON only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tether.errors import CheckpointError
from tether.files import free_bytes, remove, remove_leftovers, sync_file, sync_folder, temporary_beside
from tether.records import file_sha256
from tether.state import State

__all__ = ["FORMAT", "Checkpoint", "CheckpointStore", "begin_again", "checkpoint_bytes"]

FORMAT = 1
"""Version of the folder's layout. Older ones load; a newer one is refused."""

_WEIGHTS, _VALUES, _MANIFEST = "weights.safetensors", "values.json", "manifest.json"
_PREFIX = "step-"
_RESERVE = 1.02  # file systems need a little more than the bytes
_LOG = logging.getLogger(__name__)


class _NewerFormatError(CheckpointError):
    """Whole, but of a layout that this version does not know."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk. ``inputs`` is what the run was made from (configuration, data, code)."""

    folder: Path
    step: int
    inputs: Mapping[str, Any]
    flags: tuple[str, ...]

    def load(self) -> State:
        """Read the state. Raises CheckpointError when a file is not what the manifest says."""
        verify(self.folder)
        try:
            tensors = load_file(self.folder / _WEIGHTS)
            values = json.loads((self.folder / _VALUES).read_text(encoding="utf-8"))
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{self.folder} cannot be read ({error})") from error
        return State(tensors, values)


class CheckpointStore:
    """The checkpoints of one stage. State: the folder, and the save in flight.

    ``keep``: newest checkpoints that stay; flagged ones ("best", "alert", ...) stay besides, the newest of each flag.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep}: at least one checkpoint stays, or there would be nothing to resume from")
        self.folder, self.keep = Path(folder), keep
        self._saving: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(
        self, step: int, state: State, inputs: Mapping[str, Any], *, flags: tuple[str, ...] = (), wait: bool = True
    ) -> Path:
        """Write a checkpoint of ``step``; returns the name it has, or (``wait=False``) will have.

        Without waiting the tensors are copied first, so that the next optimiser step cannot reach into the file; a failure is raised by
        the next ``save`` or ``join``. Raises CheckpointError naming path, bytes needed and bytes free.
        """
        self.join()
        target = self._name(step)
        if wait:
            self._write(target, step, state, inputs, flags)
            return target
        copied = State({name: tensor.detach().to("cpu", copy=True) for name, tensor in state.tensors.items()}, _frozen(state.values))
        self._saving = threading.Thread(target=self._write_apart, args=(target, step, copied, inputs, flags), name="tether-checkpoint")
        self._saving.start()
        return target

    def join(self) -> None:
        """Wait for a save in flight; raises what it raised."""
        if self._saving is not None:
            self._saving.join()
            self._saving = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; damaged ones are passed over with a warning that names both.

        Raises CheckpointError when there are only damaged ones, or the newest was written by a newer Tether.
        """
        damaged: list[str] = []
        for folder in self._folders():
            try:
                found = read_checkpoint(folder)
            except _NewerFormatError:
                raise  # whole, and further than anything that we could fall back to
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            if damaged:
                _LOG.warning("%s; going on from %s instead", "; ".join(damaged), folder)
            return found
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder} is whole: {'; '.join(damaged)}. Put one back from a copy, or {begin_again(self.folder)}"
            )
        return None

    def newest_inputs(self) -> Mapping[str, Any] | None:
        """What the newest checkpoint was made from, by its manifest alone; None where there is none that can be read."""
        for folder in self._folders():
            with suppress(CheckpointError):
                return read_manifest(folder).inputs
        return None

    def require_space(self, num_bytes: int, copies: int = 1) -> None:
        """Raise CheckpointError unless ``copies`` checkpoints of ``num_bytes`` fit here; writes and removes a small file."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary_beside(self.folder / "probe") as probe:
                probe.write_bytes(b"tether")
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written to ({error}); choose another output=...") from error
        free, needed = free_bytes(self.folder), int(copies * num_bytes * _RESERVE)
        if free < needed:
            raise CheckpointError(
                f"{self.folder}: {copies} checkpoint(s) need {needed:,} bytes (checkpoint.keep, and one while it is written) and {free:,} "
                "are free; make room, lower checkpoint.keep, or set checkpoint.every = 0"
            )

    # ------------------------------------------------------------------------------------------------------------------------

    def _check_space(self, num_bytes: int) -> None:
        free = free_bytes(self.folder)
        needed = int(num_bytes * _RESERVE)
        if free < needed:
            raise CheckpointError(
                f"{self.folder}: a checkpoint needs {needed:,} bytes and {free:,} are free; make room, or set checkpoint.every = 0. "
                "The checkpoints before it are as they were"
            )

    def _write_apart(self, target: Path, step: int, state: State, inputs: Mapping[str, Any], flags: tuple[str, ...]) -> None:
        try:
            self._write(target, step, state, inputs, flags)
        except BaseException as error:
            self._failure = error

    def _write(self, target: Path, step: int, state: State, inputs: Mapping[str, Any], flags: tuple[str, ...]) -> None:
        num_bytes = checkpoint_bytes(state)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder, _alive)
            self._check_space(num_bytes)
            with temporary_beside(target) as temporary:
                temporary.mkdir()
                _fill(temporary, step, state, inputs, flags)
                os.replace(temporary, target)
            sync_folder(self.folder)
        except (OSError, SafetensorError) as error:
            free = free_bytes(self.folder)
            raise CheckpointError(
                f"{target} could not be written ({error}): it needs {num_bytes:,} bytes and {free:,} are free. "
                "The checkpoints before it are as they were"
            ) from error
        try:
            self._retire()
        except OSError as error:
            _LOG.warning("%s: a checkpoint that is no longer needed could not be removed (%s); its space is not free", self.folder, error)

    def _retire(self) -> None:
        """Remove what the rule does not keep. A folder leaves its name first, so that half of one is never taken for a checkpoint."""
        kept: set[Path] = set()
        flagged: set[str] = set()
        for folder in self._folders():
            try:
                checkpoint = read_manifest(folder)
            except CheckpointError:
                continue  # damaged, and no longer needed: a whole one was just written
            fresh_flags = set(checkpoint.flags) - flagged
            if len(kept) < self.keep or fresh_flags:
                kept.add(folder)
            flagged |= fresh_flags
        for folder in [f for f in self._folders() if f not in kept] if kept else []:
            leaving = folder.with_name(f".tmp-{folder.name}.{os.getpid()}")
            os.replace(folder, leaving)
            remove(leaving)
        remove_leftovers(self.folder, lambda pid: pid != os.getpid() and _alive(pid))

    def _name(self, step: int) -> Path:
        """A step saved twice (again, with a flag) gets a second name: the first stays until the second is whole."""
        name, again = f"{_PREFIX}{step:08d}", 0
        while (self.folder / (name if not again else f"{name}-r{again}")).exists():
            again += 1
        return self.folder / (name if not again else f"{name}-r{again}")

    def _folders(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob(f"{_PREFIX}*"), reverse=True) if self.folder.is_dir() else []


def begin_again(folder: Path) -> str:
    """The remedy where nothing in ``folder`` can be used: no more than this one stage is lost."""
    return f"remove {folder} and resume: this stage begins again from its first step, and finished stages are kept"


def checkpoint_bytes(state: State) -> int:
    """Bytes on disk of a state, the header and the manifest estimated."""
    tensors = sum(tensor.numel() * tensor.element_size() + len(name) + 80 for name, tensor in state.tensors.items())
    return tensors + len(_as_json(state.values)) + 2048


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """A checkpoint after every file was compared with the manifest. Raises CheckpointError naming the file."""
    verify(Path(folder))
    return read_manifest(Path(folder))


def read_manifest(folder: Path) -> Checkpoint:
    """What the manifest says, the files not looked at."""
    manifest = _manifest(folder)
    return Checkpoint(folder, manifest["step"], manifest["inputs"], tuple(manifest["flags"]))


def verify(folder: Path) -> None:
    """Compare size and SHA-256 of every file. Raises CheckpointError naming the first that differs."""
    manifest = _manifest(folder)
    for name, told in manifest["files"].items():
        path = folder / name
        try:
            same = path.stat().st_size == told["bytes"] and file_sha256(path) == told["sha256"]
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error})") from error
        if not same:
            raise CheckpointError(f"{path} is damaged: it is not the file that was written (SHA-256 or size differs)")


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        manifest = json.loads(text)
        body = {key: value for key, value in manifest.items() if key != "sha256"}
        told = manifest["sha256"]
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is missing or not readable ({type(error).__name__})") from error
    if told != _digest(body):
        raise CheckpointError(f"{path} is damaged: it does not match its own SHA-256")
    if body["format"] > FORMAT:
        raise _NewerFormatError(f"{path} has format {body['format']}, this version of Tether reads up to {FORMAT}: update Tether")
    if text != _manifest_text(body):
        raise CheckpointError(f"{path} is damaged: it is not the file that was written")
    return body


def _manifest_text(body: Mapping[str, Any]) -> str:
    return _as_json({**body, "sha256": _digest(body)})


def _fill(folder: Path, step: int, state: State, inputs: Mapping[str, Any], flags: tuple[str, ...]) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in state.tensors.items()}, folder / _WEIGHTS)
    sync_file(folder / _WEIGHTS)
    _write_synced(folder / _VALUES, _as_json(state.values))
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)} for name in (_WEIGHTS, _VALUES)}
    body = {"format": FORMAT, "step": step, "flags": list(flags), "inputs": dict(inputs), "files": files}
    _write_synced(folder / _MANIFEST, _manifest_text(body))
    os.chmod(folder / _WEIGHTS, stat.S_IMODE((folder / _VALUES).stat().st_mode))  # safetensors gives 0600 whatever the umask says
    sync_folder(folder)


def _as_json(values: Mapping[str, Any]) -> str:
    """NaN and infinities as Python's JSON writes them: a number that went wrong must not cost the run its checkpoint."""
    return json.dumps(values, indent=1) + "\n"


def _write_synced(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values))


