"""Which class of transformers a module is, exactly: what is known of one does not hold for a subclass."""

from __future__ import annotations

__all__ = ["FAMILIES", "class_path", "family_class"]

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Decoders of one plan: norm, attention with rotated heads, norm, gated unit."""


def class_path(module: object) -> str:
    """``package.module.Class`` of this very object."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def family_class(family: str, kind: str) -> str:
    """Path of a family's class. Example: "Qwen2", "RMSNorm" -> transformers.models.qwen2.modeling_qwen2.Qwen2RMSNorm."""
    return f"transformers.models.{family.lower()}.modeling_{family.lower()}.{family}{kind}"
