"""What a stage is made from: its section, the model, the machine settings, the seed, and the stages before it. Known by one hash.

Settings are plain JSON by name: {"model": ..., "compute": ..., "seed": 0, "sft": ..., "rl.NAME": ..., "evaluate": ...}. A finished stage
keeps those it was made from (``run.folder``), a checkpoint too (``run.keeper``).

**A new setting's default must be the old behaviour.** By that promise what an earlier Tether made is still what this one would make where
it differs by nothing but settings that were absent then and have their default now: it is reused, and the settings are named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tether.config import RunConfig
from tether.run.sources import stage_sections

__all__ = ["added", "as_read_now", "differences", "made_with", "settings_by_stage", "settings_of", "stage_hash", "stage_hashes", "told"]

_ALWAYS = ("model", "compute", "seed")


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Everything that stages of ``config`` are made from."""
    return settings_by_stage(config.model_dump(mode="json"))


def settings_by_stage(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a configuration as `config.json` holds it, which another version may have written."""
    found = {name: stored[name] for name in (*_ALWAYS, "sft", "reward_model") if stored.get(name) is not None}
    found |= {f"{kind}.{name}": section for kind in ("rl", "direct") for name, section in stored.get(kind, {}).items()}
    return found | ({"evaluate": stored["evaluate"]} if stored.get("evaluate") is not None else {})


def stage_hashes(config: RunConfig) -> dict[str, str]:
    """What each stage is made from, by stage name, in the order in which they run."""
    settings = settings_of(config)
    return {name: stage_hash(name, settings) for name in settings if name not in _ALWAYS}


def stage_hash(name: str, settings: Mapping[str, Any]) -> str:
    """Hex SHA-256 of what stage ``name`` is made from. Raises KeyError where ``settings`` lack a part of it."""
    before = [stage_hash(stage, settings) for stage in _before(name, settings)]
    parts = [settings[name], settings["model"], settings["compute"], settings["seed"], before]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def made_with(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``settings`` that stage ``name`` is made from."""
    return {part: settings[part] for part in (*_ALWAYS, *_before(name, settings), name)}


def as_read_now(old: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """``old`` as this version reads it: settings that it lacks have their default, or that of their kind. What cannot be read any more
    stays as it is, and so does a stage that ``config`` has no section for."""
    sections = {"model": config.model, "compute": config.compute, **stage_sections(config), "evaluate": config.evaluate}
    read: dict[str, Any] = {}
    for name, stored in old.items():
        read[name], section = stored, sections.get(name)
        if section is not None:
            try:
                read[name] = type(section).model_validate(stored).model_dump(mode="json")
            except ValidationError:
                continue
    return read


def added(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that ``new`` has and ``old`` has not: "path = value"."""
    known = _flat(old)
    return [f"{path} = {_short(value)}" for path, value in _flat(new).items() if path not in known]


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """One entry per value that differs: "path: old -> new". Example: ({"a": 1}, {"a": 2}) -> ["a: 1 -> 2"]."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted({*old, *new})
        return [line for name in names for line in differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))]
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def told(lines: Sequence[str]) -> str:
    """The first eight of ``lines`` as one text, and how many there are besides."""
    return "; ".join(lines[:8]) + (f"; and {len(lines) - 8} more" if len(lines) > 8 else "")


def _before(name: str, settings: Mapping[str, Any]) -> list[str]:
    """The stages that ``name`` builds on, of those there are."""
    if name == "sft":
        return []
    if name == "evaluate":
        return [stage for stage in settings if stage not in {*_ALWAYS, "evaluate"}]
    stages = ("sft", "reward_model") if name.startswith("rl.") else ("sft",)
    return [stage for stage in stages if stage in settings]


def _short(value: Any) -> str:
    text = "absent" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:12] + "..."


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {k: v for name, item in value.items() for k, v in _flat(item, f"{path}.{name}" if path else name).items()}
    return {path: value}
