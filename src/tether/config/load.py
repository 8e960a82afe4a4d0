"""From a file and overrides to a validated run, and from validation errors to sentences."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from tether.config.direct import DirectConfig
from tether.config.online import ActorCriticConfig, CriticFreeConfig, OnlineDPOConfig
from tether.config.run import RunConfig
from tether.errors import ConfigError

_KINDS: dict[str, type[BaseModel]] = {
    kind: model
    for model in (ActorCriticConfig, CriticFreeConfig, OnlineDPOConfig)
    for kind in get_args(model.model_fields["kind"].annotation)
}

__all__ = ["explain", "load_config", "parse_config", "parse_text", "resolved_json", "rl_kind"]


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a TOML or YAML file, apply ``dotted.path=value`` overrides, validate.

    Raises :class:`ConfigError` with every problem at once: unknown keys with the nearest known name, wrong values with their path.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the file ({error}); give the path of a .toml, .yaml or .json file", str(path)) from error
    return parse_config(text, source.suffix, overrides, str(path))


def parse_config(text: str, suffix: str, overrides: Sequence[str] = (), source: str = "") -> RunConfig:
    """Like :func:`load_config`, from a string; ``suffix`` is ``.toml``, ``.yaml``, ``.yml`` or ``.json``."""
    data = parse_text(text, suffix, source)
    for override in overrides:
        _apply_override(data, override, source)
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig), source) from None


def parse_text(text: str, suffix: str, source: str) -> dict[str, Any]:
    try:
        if suffix == ".toml":
            data: Any = tomllib.loads(text)
        elif suffix in {".yaml", ".yml"}:
            _refuse_repeated(yaml.compose(text, yaml.SafeLoader), source)
            data = yaml.safe_load(text)
        elif suffix == ".json":
            data = json.loads(text, object_pairs_hook=partial(_unique, source=source))
        else:
            raise ConfigError(f"a configuration ends in .toml, .yaml, .yml or .json, not {suffix!r}", source)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"not readable as {suffix[1:]}: {error}", source) from error
    if not isinstance(data, dict):
        raise ConfigError(f"expected sections, got a {type(data).__name__}; start with e.g. [model]", source)
    return data


def _refuse_repeated(node: yaml.Node | None, source: str) -> None:
    """YAML takes the last of two equal keys without a word; TOML refuses them."""
    if isinstance(node, yaml.MappingNode):
        _unique(((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)), source)
        for _, value in node.value:
            _refuse_repeated(value, source)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_repeated(value, source)


def _unique(pairs: Iterable[tuple[str, Any]], source: str) -> dict[str, Any]:
    """A mapping of the pairs. Raises ConfigError for a key that stands twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"{key} stands twice in one section; keep one of them", source)
        found[key] = value
    return found


def _apply_override(data: dict[str, Any], override: str, source: str) -> None:
    """``a.b.c=value`` with the value read as TOML (a bare word is a string). Unknown names are found at validation."""
    path, equals, raw = override.partition("=")
    named = path.strip().startswith(("rl.", "direct."))  # the NAME is the user's and stays as written
    keys = path.strip().split(".") if named else path.strip().replace("-", "_").split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r}: expected dotted.path=value, e.g. sft.epochs=2", source)
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    node: Any = data
    for depth, key in enumerate(keys[:-1]):
        node = _descend(node, key, ".".join(keys[: depth + 1]), source)
    if isinstance(node, list):
        index = _list_index(node, keys[-1], path, source)
        node[index] = value
    else:
        node[keys[-1]] = value


def _descend(node: Any, key: str, path: str, source: str) -> Any:
    if isinstance(node, list):
        return node[_list_index(node, key, path, source)]
    child = node.setdefault(key, {})
    if not isinstance(child, dict | list):
        raise ConfigError(f"override {path}: {path} is the value {child!r}, not a section", source)
    return child


def _list_index(node: list[Any], key: str, path: str, source: str) -> int:
    if not key.isdigit() or int(key) >= len(node):
        raise ConfigError(f"override {path}: expected an index from 0 to {len(node) - 1}, got {key!r}", source)
    return int(key)


def explain(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One sentence per problem of ``root``: dotted path, value, what was expected, and the nearest name of an unknown setting."""
    return [line for item in error.errors(include_url=False) for line in _sentences(item, root)]


def _sentences(item: Any, root: type[BaseModel]) -> list[str]:
    loc: tuple[int | str, ...] = item["loc"]
    path = ".".join(str(part) for index, part in enumerate(loc) if not (index == 2 and loc[0] == "rl"))
    kind, message = item["type"], item["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return [_unknown_key(path, loc, root)]
    if kind == "missing":
        return [f"{path}: is required"]
    if kind == "value_error":
        return [f"{path}: {line}" if path else line for line in message.split("\n")]
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return [_wrong_kind(path, item)]
    if kind == "literal_error":
        return [f"{path} = {_short(item['input'])}: expected {item['ctx']['expected']}"]
    if kind == "too_short":
        return [f"{path} = {_short(item['input'])}: expected at least {item['ctx']['min_length']} in the list"]
    if kind == "string_pattern_mismatch" and loc[-1] in _PATTERNS:
        return [f"{path} = {_short(item['input'])}: expected {_PATTERNS[str(loc[-1])]}"]
    expected = _EXPECTED.get(kind, message[:1].lower() + message[1:])
    return [f"{path} = {_short(item['input'])}: {expected}"]


_EXPECTED = {
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "expected a section with settings, not a single value"),
    "string_type": "expected text, in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "expected a list, in [ ]"),
}


_PATTERNS = {
    "device": "auto, cpu, cuda or cuda:N",
    "name": "letters, digits, '.', '_' and '-', the first a letter or a digit; `output` is the folder around it",
}


def rl_kind(algorithm: str) -> type[BaseModel]:
    """The section of an online algorithm by its kind. Raises ConfigError with the nearest name."""
    if algorithm not in _KINDS:
        raise ConfigError(f"algorithm = {algorithm!r}: no such algorithm; {_nearest_kind(algorithm)}")
    return _KINDS[algorithm]


def _nearest_kind(given: str) -> str:
    if given.endswith("dpo") and given not in {"gdpo", "online_dpo"}:
        return "on the policy's own answers it is 'online_dpo'; on a file of comparisons it is a section [direct.NAME]"
    near = difflib.get_close_matches(given, _KINDS, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_KINDS)}"


def _wrong_kind(path: str, item: Any) -> str:
    if item["type"] == "union_tag_not_found":
        return f"{path}.kind: is required; one of {', '.join(_KINDS)}" if isinstance(item["input"], dict) else (
            f"{path} = {_short(item['input'])}: expected a section with settings, not a single value"
        )
    given = str(item["ctx"]["tag"])
    return f"{path}.kind = {given!r}: no such algorithm; {_nearest_kind(given)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(path: str, loc: tuple[int | str, ...], root: type[BaseModel]) -> str:
    parent, wrong = _section_at(loc[:-1], root), str(loc[-1])
    known = sorted(parent.model_fields) if parent else []
    if inside := _one_level_down(parent, wrong):
        return f"{path}: unknown setting here; did you mean {' or '.join(map(repr, inside))}?"
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return f"{path}: unknown setting; {hint}"


def _one_level_down(parent: type[BaseModel] | None, name: str) -> list[str]:
    """Where a section of ``parent`` has a setting of exactly that name. Example: learning_rate -> ["optim.learning_rate"]."""
    fields = parent.model_fields if parent else {}
    single = {section: field for section, field in fields.items() if get_origin(field.annotation) not in {dict, list, tuple}}
    models = {section: _model_in(field.annotation) for section, field in single.items()}
    return [f"{section}.{name}" for section, model in models.items() if model is not None and name in model.model_fields]


def _section_at(loc: Sequence[int | str], root: type[BaseModel]) -> type[BaseModel] | None:
    """The config model that a location of a validation error points into."""
    model: type[BaseModel] | None = root
    parts = list(loc)
    if len(parts) >= 3 and parts[0] == "rl":
        model, parts = _KINDS.get(str(parts[2])), parts[3:]
    elif len(parts) >= 2 and parts[0] == "direct":
        model, parts = DirectConfig, parts[2:]
    for part in parts:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
    return None


def resolved_json(config: RunConfig) -> str:
    """The whole configuration, defaults included, as stable JSON: what is stored beside a run and read by `tether resume`.

    Stages keep the order of the file: it is the order in which they run, and part of what the evaluation is made from.
    """
    return json.dumps(config.model_dump(mode="json"), indent=2) + "\n"
