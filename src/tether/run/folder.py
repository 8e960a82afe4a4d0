"""The folder of a run: who may write it, which stages are finished, what they were made from.

    runs/NAME/config.json  environment.json  events.jsonl  sft/  reward_model/  rl.STAGE/  evaluation.json  report.html

A stage is finished when its ``stage.json`` is there; it is written last, by rename. A finished stage is reused when the same run is
started again, so an interrupted run loses at most the stage it was in.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tether.config import RunConfig, resolved_json
from tether.errors import RunError
from tether.events import read_events
from tether.files import write_atomic
from tether.records import file_sha256
from tether.run.made_from import (
    added,
    as_read_now,
    differences,
    made_with,
    settings_by_stage,
    settings_of,
    stage_hash,
    stage_hashes,
    told,
)

__all__ = ["RunFolder", "set_aside", "sha256_text", "source_sha256", "verify_stage"]

_PACKAGES = ("tether", "torch", "transformers", "datasets", "numpy", "peft")


def sha256_text(text: str) -> str:
    """Hex SHA-256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()


class RunFolder:
    """A run folder that belongs to one configuration. State: the files in it. Nothing in an existing one changes before ``take_over``.

    ``earlier``: finished stages of an earlier Tether that this one would make no other way, with the settings that it did not know.
    """

    def __init__(self, config: RunConfig, *, fresh: bool = False) -> None:
        self.path = config.folder
        self.config_text = resolved_json(config)
        self.earlier: dict[str, list[str]] = {}
        self._settings, self._hashes = settings_of(config), stage_hashes(config)
        try:
            if fresh and self.path.exists():
                set_aside(self.path)
            self._refuse_other_stages(config)
        except OSError as error:
            raise self._unusable(error) from error

    def take_over(self) -> list[str]:
        """Write what the run is, once nothing speaks against it. Returns the finished stages whose end the log lacks."""
        try:
            ended = {str(event.get("stage")) for event in read_events(self.path / "events.jsonl") if event["kind"] == "stage_finished"}
            lost = sorted({marker.parent.name for marker in self.path.glob("*/stage.json")} - ended)
            for name in self.earlier:
                self._write_record(name, self._record(name) or {})
            write_atomic(self.path / "config.json", self.config_text)
            write_atomic(self.path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        except OSError as error:
            raise self._unusable(error) from error
        return lost

    def _unusable(self, error: OSError) -> RunError:
        return RunError(f"{self.path} cannot be used as a run folder ({error}); choose another output=... or name=...")

    def _refuse_other_stages(self, config: RunConfig) -> None:
        """A finished stage that this configuration would make otherwise is never overwritten."""
        stored, altered = _stored_settings(self.path / "config.json"), False
        others: list[str] = []
        changed: dict[str, None] = {}  # in order, each once
        for name, made_from in self._hashes.items():
            record, now = self._record(name), made_with(name, self._settings)
            if record is None or record["made_from"] == made_from:
                continue
            altered |= _hash_or_none(name, stored) not in {None, record["made_from"]}
            known = next((found for found in (record.get("settings"), stored) if _hash_or_none(name, found) == record["made_from"]), None)
            if known is None:
                others.append(name)
                changed[f"what {name} was made with is not recorded"] = None
                continue
            before = made_with(name, known)
            read = as_read_now(before, config)
            if stage_hash(name, read) == made_from:
                self.earlier[name] = added(before, read)
            else:
                others.append(name)
                changed |= dict.fromkeys(differences(read, now))
        if others:
            hint = f"{self.path / 'config.json'} was altered since: put it back as it was and resume. Or c" if altered else "C"
            raise RunError(
                f"{self.path} holds finished stages that were made with another configuration ({', '.join(others)}; changed: "
                f"{told([*changed])}). {hint}hoose another name=..., or start over with `tether run CONFIG --fresh`, which sets the old "
                "folder aside"
            )

    def _record(self, name: str) -> dict[str, Any] | None:
        return _stage_record(self.stage(name))

    def stage(self, name: str) -> Path:
        """Folder of a stage."""
        return self.path / name

    def checkpoints(self, name: str) -> Path:
        """Folder of a stage's checkpoints, until it is finished."""
        return self.path / "checkpoints" / name

    def finished(self, name: str) -> dict[str, Any] | None:
        """The summary of a finished stage that was made from what this configuration makes it from, else None."""
        record = self._record(name) if name in self._hashes else None
        return record["summary"] if record is not None and record["made_from"] == self._hashes[name] else None

    def summary(self, name: str) -> dict[str, Any]:
        """The summary of a finished stage; empty where it is not finished."""
        record = self._record(name)
        return {} if record is None else record["summary"]

    def finish(self, name: str, summary: Mapping[str, Any]) -> None:
        """Mark a stage as finished; call after all its files are written: their hashes are kept."""
        self._write_record(name, {"summary": dict(summary), "files": _hashes(self.stage(name))})

    def _write_record(self, name: str, record: Mapping[str, Any]) -> None:
        """``record`` with what this configuration makes the stage from."""
        made = {"made_from": self._hashes[name], "settings": made_with(name, self._settings)}
        write_atomic(self.stage(name) / "stage.json", json.dumps({**record, **made}, indent=2) + "\n")

    def verify(self, name: str) -> None:
        """Compare the files of a finished stage with their hashes. Raises RunError naming those that are gone or changed."""
        verify_stage(self.stage(name))


def verify_stage(folder: Path) -> None:
    """``RunFolder.verify`` of any folder; one that is no finished stage of a run has nothing to compare."""
    record = _stage_record(folder)
    kept = {} if record is None else record.get("files", {})
    found = _hashes(folder) if kept else {}
    if wrong := sorted(file for file, digest in kept.items() if found.get(file) != digest):
        gone = any(file not in found for file in wrong)
        what = "is not there" if gone else "is not what the finished stage wrote (SHA-256 differs)"
        raise RunError(f"{folder} is damaged: {', '.join(wrong)} {what}: {_repeat(folder)}")


def _stage_record(folder: Path) -> dict[str, Any] | None:
    """What ``finish`` wrote. Raises RunError where it cannot be read."""
    marker = folder / "stage.json"
    if not marker.exists():
        return None
    try:
        record = json.loads(marker.read_text(encoding="utf-8"))
        if isinstance(record["made_from"], str) and isinstance(record["summary"], dict):
            return record
        reason = "fields of another kind"
    except (ValueError, KeyError, TypeError) as error:
        reason = type(error).__name__
    raise RunError(f"{marker} is damaged ({reason}): {_repeat(folder)}")


def _stored_settings(path: Path) -> dict[str, Any] | None:
    """The settings in a run's config.json; None where there are none that can be read."""
    try:
        return settings_by_stage(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _hash_or_none(name: str, settings: Any) -> str | None:
    """The hash of a stage by settings that were found; None where they do not hold it."""
    try:
        return stage_hash(name, settings)
    except (KeyError, TypeError, AttributeError):
        return None


def _repeat(folder: Path) -> str:
    return f"put it back from a copy, or delete {folder} and resume, which repeats that stage"


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of what a stage wrote, by name. The model card is written anew after later stages, and says so itself."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in {"stage.json", "README.md"})
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


@cache
def source_sha256() -> str:
    """SHA-256 over the source files of the package: what "the same code" means."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """Versions and machine, for the report; no user names, no paths, no environment variables."""
    versions: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": versions,
        "revision": _git_revision(),
    }


def _git_revision() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def set_aside(path: Path) -> Path:
    """Rename what is in the way, "NAME.old1" or the next number that is free; returns its new name."""
    number = 1
    while (target := path.with_name(f"{path.stem}.old{number}{path.suffix}" if path.is_file() else f"{path.name}.old{number}")).exists():
        number += 1
    return path.rename(target)
