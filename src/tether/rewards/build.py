"""Reward parts by the names that the configuration uses. Wrong names and settings are ``ConfigError``s that
name the nearest one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Protocol, get_type_hints

from pydantic import TypeAdapter, ValidationError

from tether.errors import ConfigError, ModelError
from tether.rewards.exact import ExactPart
from tether.rewards.format import FormatPart
from tether.rewards.learned import LearnedPart, TextScorer, load_learned
from tether.rewards.length import LengthPart, OverlongPart
from tether.rewards.linear import LinearPart
from tether.rewards.rubric import RewardPart, Rubric
from tether.rewards.simulated_rater import PlainspokenPart

__all__ = ["EVALUATION_ONLY", "KINDS", "PartConfig", "build_part", "build_rubric"]

_RULES: dict[str, Callable[..., RewardPart]] = {
    "exact": ExactPart,
    "format": FormatPart,
    "length": LengthPart,
    "overlong": OverlongPart,
    "plainspoken": PlainspokenPart,
}
KINDS = ("learned", "linear", *_RULES)
"""Every kind of part."""
EVALUATION_ONLY = frozenset({"plainspoken"})
"""Kinds that are an independent score: never a training reward."""


class PartConfig(Protocol):
    """What ``build_rubric`` reads of one entry of ``rewards`` in the configuration."""

    @property
    def kind(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


def build_part(
    kind: str,
    params: Mapping[str, Any] | None = None,
    *,
    reward_model: TextScorer | None = None,
    load: Callable[[str], TextScorer] = load_learned,
) -> RewardPart:
    """The part called ``kind`` with its settings. ``learned`` takes ``reward_model`` unless params name a
    ``path``, which ``load`` reads.
    """
    params = dict(params or {})
    if kind == "learned":
        return _build_learned(params, reward_model, load)
    if kind == "linear":
        return _build_linear(params)
    if kind not in _RULES:
        raise ConfigError(
            f"rewards.kind: there is no reward part {kind!r}{_nearest(kind, KINDS)}; "
            f"known: {', '.join(KINDS)}"
        )
    part_class = _RULES[kind]
    known = {field.name: field for field in fields(part_class)}  # pyright: ignore[reportArgumentType]
    missing = [name for name, field in known.items() if field.default is MISSING and name not in params]
    problems = _unknown(kind, params, list(known)) + [
        f"rewards.{kind}.params.{name}: missing; this part needs it" for name in missing
    ]
    problems += _wrong_types(kind, params, part_class)
    if problems:
        raise ConfigError(problems)
    try:
        return part_class(**params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rewards.{kind}.params: {error}") from error


def build_rubric(
    parts: Sequence[PartConfig], *, reward_model: TextScorer | None = None, load: Callable[[str], TextScorer] = load_learned
) -> Rubric:
    """The training rubric of a configuration. A kind used twice is named KIND, KIND_2, ... unless
    ``params.name`` says otherwise. ``load`` reads reward models that are named by path.
    """
    named: dict[str, tuple[str, float, RewardPart]] = {}
    for part in parts:
        if part.kind in EVALUATION_ONLY:
            raise ConfigError(
                f"rewards.kind: {part.kind!r} is the independent score of the evaluation and cannot be "
                f"a training reward; "
                "train on 'learned', and name it in evaluate.score"
            )
        built = build_part(part.kind, part.params, reward_model=reward_model, load=load)
        number = 1 + sum(key == built.name or key.startswith(f"{built.name}_") for key in named)
        name = built.name if number == 1 else f"{built.name}_{number}"
        while name in named:  # taken by a ``params.name``
            number += 1
            name = f"{built.name}_{number}"
        named[name] = (name, part.weight, built)
    return Rubric(list(named.values()))


def _build_learned(params: dict[str, Any], reward_model: TextScorer | None, load: Callable[[str], TextScorer]) -> RewardPart:
    if problems := _unknown("learned", params, ["path", "token_budget", "name"]):
        raise ConfigError(problems)
    path = params.pop("path", None)
    if path is None and reward_model is None:
        raise ConfigError(
            "rewards.learned.params.path: missing, and the run has no reward_model stage; "
            "add one or name a folder"
        )
    model = load(str(path)) if path is not None else reward_model
    assert model is not None
    try:
        return LearnedPart(model, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rewards.learned.params: {error}") from error


def _build_linear(params: dict[str, Any]) -> RewardPart:
    if problems := _unknown("linear", params, ["path", "name"]):
        raise ConfigError(problems)
    if not isinstance(params.get("path"), str):
        raise ConfigError("rewards.linear.params.path: missing; name the file that `tether reward linear` wrote")
    try:
        return LinearPart(**params)
    except (TypeError, ValueError, ModelError) as error:
        raise ConfigError(f"rewards.linear.params: {error}") from error


def _unknown(kind: str, params: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    return [
        f"rewards.{kind}.params.{name}: no such setting{_nearest(name, known)}; known: {', '.join(known)}"
        for name in params
        if name not in known
    ]


def _wrong_types(kind: str, params: Mapping[str, Any], part_class: Callable[..., RewardPart]) -> Iterator[str]:
    """Values that are not what the field of the part says, e.g. a number as a marker."""
    for name, hint in get_type_hints(part_class).items():
        if name in params:
            try:
                TypeAdapter(hint).validate_python(params[name], strict=True)
            except ValidationError as error:
                expected = error.errors()[0]["msg"].removeprefix("Input should be ")
                yield f"rewards.{kind}.params.{name} = {params[name]!r:.60}: expected {expected}"


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""
