"""Write docs/configuration.md from the models of tether.config; ``--check`` tells if it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tether.config import ActorCriticConfig, CriticFreeConfig, DirectConfig, OnlineDPOConfig, RunConfig

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

Generated from `tether.config` by `python tools/config_doc.py`; do not edit by hand.

A run is one TOML file (YAML and JSON work too). A stage runs if and only if its section is present. On the
command line any setting is replaced by its dotted path: `tether run FILE sft.epochs=2`, `--sft.epochs 2`;
`-` and `_` are alike. Unknown names are errors that name the nearest known one. `tether config show FILE`
prints every value with where it came from, `tether config schema` the JSON schema for an editor.
"""


def sections() -> list[tuple[str, type[BaseModel]]]:
    """Every table a file can hold, as (path, model), parents first; the two kinds of [rl.NAME] apart."""
    found = [("", RunConfig), *_children(RunConfig, "")]
    for kind, model in (("ppo", ActorCriticConfig), ("grpo", CriticFreeConfig), ("online_dpo", OnlineDPOConfig)):
        found += [(f"rl.NAME ({kind})", model), *_children(model, f"rl.NAME ({kind})")]
    return [*found, ("direct.NAME", DirectConfig), *_children(DirectConfig, "direct.NAME")]


def _children(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        child = _model_in(field.annotation)
        if child is not None and name not in {"rl", "direct"}:
            inner = f"{path}.{name}" if path else name
            yield inner + ("[]" if get_origin(field.annotation) is tuple else ""), child
            yield from _children(child, inner)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def document() -> str:
    """The whole page."""
    parts, described = [HEAD], {}
    for path, model in sections():
        kind = path.partition("(")[2].partition(")")[0]
        plain = path.replace(f" ({kind})", "") if kind else path
        title = f"`[{plain}]`" if plain else "Top level"
        if plain.endswith("[]"):
            title = f"`[[{plain.removesuffix('[]')}]]`"
        if kind:
            title += f' with kind = "{kind}"'
        parts.append(f"\n## {title}\n\n{(model.__doc__ or '').strip()}\n")
        if model in described:
            parts.append(
                f"\nSettings as in {described[model]}; defaults of the section win over those of the parts.\n"
            )
            continue
        described[model] = title
        parts.append("\n| setting | type | default | meaning |\n|---|---|---|---|\n")
        parts += [_row(name, field) for name, field in model.model_fields.items()]
    return "".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    limits = ", ".join(_limit(item) for item in field.metadata if _limit(item))
    kind = _type_text(field.annotation) + (f", {limits}" if limits else "")
    meaning = " ".join((field.description or "").split())
    cells = (f"`{name}`", kind, _default_text(field), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _limit(item: Any) -> str:
    signs = {Ge: ("ge", ">="), Gt: ("gt", ">"), Le: ("le", "<="), Lt: ("lt", "<")}
    if type(item) in signs:
        attribute, sign = signs[type(item)]
        return f"{sign} {getattr(item, attribute):g}"
    return f"at least {item.min_length}" if isinstance(item, MinLen) else ""


def _type_text(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(args[0])
    if origin is Literal:
        return " or ".join(f"`{_value(value)}`" for value in args)
    if origin in (Union, UnionType):
        return " or ".join("absent" if arg is NoneType else _type_text(arg) for arg in args)
    if origin is tuple:
        return f"list of {_type_text(args[0])}"
    if origin is dict or annotation is dict:
        return "table" if not _model_in(annotation) else "tables by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return getattr(annotation, "__name__", str(annotation))


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        own = default.model_dump(exclude_unset=True)
        return ", ".join(f"`{key} = {_value(value)}`" for key, value in own.items()) or "its defaults"
    if default is None or default == {} or default is PydanticUndefined:
        return "absent"
    return f"`{_value(default)}`"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it."""
    text = document()
    if arguments == ["--check"]:
        fresh = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
        if not fresh:
            print(
                f"{TARGET} is not what tether.config says; run: python tools/config_doc.py", file=sys.stderr
            )
        return 0 if fresh else 1
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
