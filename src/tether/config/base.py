"""What every section of a configuration is: frozen, closed to unknown names, with defaults that merge by depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

__all__ = ["OFF", "Params", "Section", "Switchable", "is_switchable"]

OFF = "off"
"""TOML has no null: a setting that may be absent although its default is a number is switched off by this word."""


class _Off:
    """Marks a field that takes "off"."""


def _read_off(value: Any) -> Any:
    return None if value == OFF else value


def _write_off(value: Any) -> Any:
    return OFF if value is None else value


Switchable = (BeforeValidator(_read_off), PlainSerializer(_write_off, when_used="json"), _Off())
"""Metadata of such a field: ``Annotated[float | None, Field(gt=0), *Switchable]``."""


def _by_name(value: Any) -> Any:
    return {name: _by_name(value[name]) for name in sorted(value, key=str)} if isinstance(value, dict) else value


Params = Annotated[dict[str, Any], AfterValidator(_by_name)]
"""Free settings of a part. Their order says nothing, so that there is one order: stages are known by the hash of their section."""


def is_switchable(section: type[BaseModel], name: str) -> bool:
    """True where None is written "off"."""
    return any(isinstance(item, _Off) for item in section.model_fields[name].metadata)


class Section(BaseModel):
    """A table of the file. Settings come from the file, else from the preset that ``kind`` names, else from the class."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _merge_by_depth(cls, data: Any) -> Any:
        """A section given in part keeps the rest of what its preset, or its parent, chose for it."""
        if not isinstance(data, dict):
            return data
        merged = _merged(cls.preset_of(data), data)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, BaseModel) and isinstance(merged.get(name), dict):
                merged[name] = {**field.default.model_dump(exclude_unset=True), **merged[name]}
        return merged

    @classmethod
    def preset_of(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that the kind of ``data`` stands for; empty where a section has no presets."""
        field = cls.model_fields.get("kind")
        kind = data.get("kind", field.default if field else None)
        return cls.presets.get(kind, {}) if isinstance(kind, str) else {}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        lower = merged.get(name)
        merged[name] = _merged(lower, value) if isinstance(lower, Mapping) and isinstance(value, Mapping) else value
    return merged


