"""What a run would do, without doing it: every setting with where it came from, and the plan stage by stage.

The text is itself a valid TOML configuration: provenance and plan are comments. Does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from tether.collect.recognise import is_database
from tether.config import (
    OFF,
    ChecksConfig,
    DataSource,
    DirectConfig,
    EvaluateConfig,
    OnlineDPOConfig,
    PolicyGradientConfig,
    RewardModelConfig,
    RolloutConfig,
    RunConfig,
    Section,
    SFTConfig,
    is_switchable,
)
from tether.data.load import load_prompts
from tether.errors import TetherError
from tether.plan.machine import available_bytes, multiplies_bfloat16
from tether.plan.memory import plan_memory
from tether.plan.model import Dims, dims_of, parameter_count
from tether.records.texts import prompt_key
from tether.run.sources import load_comparisons, load_demonstrations, load_feedback, load_judgements
from tether.types import Comparison, Ranking

__all__ = ["NOT_READY", "Origin", "plan_lines", "render"]

Source = TypeVar("Source", bound=DataSource)

NOT_READY = "NOT READY"
"""Marks a line of the plan that names something missing."""


class Origin:
    """Where each setting came from. State: the parsed file and the override paths."""

    def __init__(self, file: Mapping[str, Any], overrides: Sequence[str]) -> None:
        self._file = file
        self._overrides = [tuple(item.partition("=")[0].strip().split(".")) for item in overrides]

    def of(self, path: Sequence[str]) -> str:
        """``override``, ``file`` or ``default``.

        Example: with the file {"sft": {"epochs": 2}} and no override, ("sft", "epochs") -> "file".
        """
        if any(tuple(path[: len(override)]) == override for override in self._overrides):
            return "override"
        node: Any = self._file
        for key in path:
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                return "default"
        return "file"


def render(config: RunConfig, origin: Origin) -> str:
    """The resolved configuration as TOML, one setting a line, its origin behind it."""
    return "\n".join(_table(config, (), (), origin)).strip() + "\n"


def _table(
    section: BaseModel | Mapping[str, Any], path: tuple[str, ...], header: tuple[str, ...], origin: Origin
) -> Iterator[str]:
    """Scalars first, then sub-tables, as TOML wants it. ``header`` is ``path`` without list indices."""
    items = (
        {name: getattr(section, name) for name in type(section).model_fields}
        if isinstance(section, BaseModel)
        else dict(section)
    )
    nested: list[tuple[str, Any]] = []
    for name, value in items.items():
        if _is_table(value) or _is_table_list(value):
            nested.append((name, value))
        else:
            yield _line(name, _with_off(section, name, value), _origin(section, name, origin.of((*path, name))))
    for name, value in nested:
        inner = (*header, name)
        tables = value if _is_table_list(value) else (value,)
        for index, table in enumerate(tables):
            where = (*path, name, str(index)) if _is_table_list(value) else (*path, name)
            title = ".".join(_key(part) for part in inner)
            lines = list(_table(table, where, inner, origin))
            if lines:
                yield ""
                yield f"[[{title}]]" if _is_table_list(value) else f"[{title}]"
                yield from lines


def _with_off(section: Any, name: str, value: Any) -> Any:
    return OFF if value is None and isinstance(section, Section) and is_switchable(type(section), name) else value


def _origin(section: Any, name: str, found: str) -> str:
    """A default that the kind of the section chose is named after it."""
    kind = section.__dict__.get("kind") if isinstance(section, Section) else None
    chosen = found == "default" and kind is not None and name in type(section).preset_of({"kind": kind})
    return f"default of {kind}" if chosen else found


def _is_table(value: Any) -> bool:
    return isinstance(value, BaseModel | Mapping)


def _is_table_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) > 0 and all(_is_table(item) for item in value)


def _key(name: str) -> str:
    return name if name.replace("-", "_").isidentifier() and name.isascii() else json.dumps(name)


def _line(name: str, value: Any, origin: str) -> str:
    setting = f"# {_key(name)} is absent" if value is None else f"{_key(name)} = {_toml(value)}"
    return f"{setting:<48}  # {origin}"


def _toml(value: Any) -> str:
    """A scalar or a flat list in TOML; JSON and TOML agree on strings, integers, booleans and lists."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def plan_lines(config: RunConfig) -> list[str]:
    """The plan: model, then per stage rows, steps and the most tokens. Raises what reading data raises."""
    lines = [f"model {config.model.path}: {_model_size(config.model.path)}"]
    if config.sft:
        lines.append(_plan_sft(config.sft))
    if config.reward_model:
        lines.append(_plan_reward_model(config.reward_model))
    for name, rl in config.rl.items():
        rollouts = rl.steps * rl.prompts_per_step * rl.samples_per_prompt
        lines.append(
            f"rl.{name} ({rl.kind}): {_rows_text(rl.prompts, 'prompts')}, {rl.steps:,} steps x "
            f"{rl.prompts_per_step * rl.samples_per_prompt:,} answers = {rollouts:,} answers, "
            f"at most {rl.steps * rl.epochs * rl.minibatches:,} optimiser steps, "
            f"at most {rollouts * rl.sampling.max_new_tokens:,} tokens generated; {_tether_text(rl)}"
        )
        if rl.rollouts_ahead:
            lines.append(f"rl.{name}: {_ahead_text(rl, config)}")
    lines += [_plan_direct(name, direct) for name, direct in config.direct.items()]
    if config.evaluate:
        lines.append(_plan_evaluate(config.evaluate, 1 + len(config.rl) + len(config.direct)))
    if config.checks and config.rl:
        lines.append(_plan_checks(config, config.checks))
    lines += _plan_memory(config)
    lines.append(f"folder {config.folder}: events.jsonl, one model per stage, evaluation.json, report.html")
    return lines


def _tether_text(rl: RolloutConfig) -> str:
    if isinstance(rl, PolicyGradientConfig):
        if rl.kl.beta:
            return f"tether in the {rl.kl.where}, beta {rl.kl.beta:g}"
        elsewhere = "the KL is measured at the looks of the checks and in the evaluation alone (kl.reference_pass = false)"
        return "no tether (kl.beta = 0)" if rl.kl.reference_pass else f"no tether (kl.beta = 0), and {elsewhere}"
    return f"tether in the preference loss, beta {rl.beta:g}" if isinstance(rl, OnlineDPOConfig) else ""


def _ahead_text(rl: RolloutConfig, config: RunConfig) -> str:
    """Who draws, what corrects for it, and the memory it takes."""
    text = "answers are drawn beside the update of the round before, by weights one round older than those they are learned with; "
    if isinstance(rl, PolicyGradientConfig):
        high = rl.sampler_correction.high
        text += f"corrected by sampler_correction {rl.sampler_correction.mode}, {'no bound' if high is None else f'at most {high:g}'}; "
    else:
        text += "a preference loss needs no correction for it; "
    held = "the adapters" if config.model.lora else "the weights, at most 4 bytes each (docs/asynchronous.md)"
    return f"{text}in memory once more: {held}"


def _plan_sft(sft: SFTConfig) -> str:
    rows = _count_rows(sft.data, load_demonstrations)
    text = f"sft: {_rows_text(sft.data, 'demonstrations', rows)}"
    if rows is None:
        return text
    steps = sft.epochs * math.ceil(rows / sft.batch_size)
    return f"{text}, {steps:,} optimiser steps, at most {sft.epochs * rows * sft.max_length:,} tokens"


def _plan_reward_model(reward: RewardModelConfig) -> str:
    by_prompt = reward.batch_by == "prompts"
    rows = _count_rows(reward.data, lambda source: _units(load_judgements(source), by_prompt))
    text = f"reward_model: {_rows_text(reward.data, 'prompts with comparisons' if by_prompt else 'comparisons', rows)}"
    if rows is None:
        return text
    train = round(rows * (1 - reward.held_out_share))
    steps = reward.epochs * math.ceil(train / reward.batch_size)
    told = f"{text}, about {train:,} for training and {rows - train:,} held out, about {steps:,} optimiser steps"
    return told if by_prompt else f"{told}, at most {reward.epochs * train * 2 * reward.max_length:,} tokens"


def _units(records: Sequence[Comparison | Ranking], by_prompt: bool) -> list[Any]:
    """What a batch of the reward model counts: prompts, or pairs; a ranking of K answers holds K (K - 1) / 2."""
    if by_prompt:
        return list({prompt_key(record.prompt) for record in records})
    return [None for record in records for _ in range(math.comb(len(record.answers), 2) if isinstance(record, Ranking) else 1)]


def _plan_direct(name: str, direct: DirectConfig) -> str:
    """Rows, steps and tokens; what is held out goes by prompts, so that the count of rows is near."""
    kto, free = direct.kind == "kto", direct.kind in {"orpo", "simpo"}
    rows = _count_rows(direct.data, load_feedback if kto else load_comparisons)
    text = f"direct.{name} ({direct.kind}): {_rows_text(direct.data, 'judged answers' if kto else 'comparisons', rows)}"
    if rows is None:
        return text
    train = round(rows * (1 - direct.held_out_share))
    steps = direct.epochs * math.ceil(train / direct.batch_size)
    tether = "no reference in the loss" if free else f"tether in the preference loss, beta {direct.beta:g}"
    return (
        f"{text}, about {train:,} for training and {rows - train:,} held out, about {steps:,} optimiser steps, at most "
        f"{(direct.epochs + 1) * train * 2 * direct.max_length:,} tokens (one pass of the start included); {tether}"
    )


def _plan_evaluate(evaluate: EvaluateConfig, num_models: int) -> str:
    rows = _count_rows(evaluate.prompts, load_prompts)
    prompts = _rows_text(evaluate.prompts, "held-out prompts", rows)
    text = f"evaluate ({evaluate.score}): {prompts}, {num_models} models"
    if rows is None:
        return text
    tokens = rows * evaluate.samples_per_prompt * num_models * evaluate.sampling.max_new_tokens
    return f"{text}, at most {tokens:,} tokens generated"


def _plan_checks(config: RunConfig, checks: ChecksConfig) -> str:
    looks = sum(1 - (-rl.steps // checks.every) for rl in config.rl.values())
    answers = checks.num_prompts * checks.samples_per_prompt
    tokens = sum(
        (1 - (-rl.steps // checks.every)) * answers * rl.sampling.max_new_tokens for rl in config.rl.values()
    )
    return (
        f"checks ({checks.on_alarm}): {looks:,} looks of at most {answers:,} answers, at most {tokens:,} tokens generated; "
        f"false alarms at most {checks.false_alarms:.2%} per stage"
    )


def _rows_text(source: DataSource, noun: str, rows: int | None = None) -> str:
    rows = _count_rows(source, load_prompts) if rows is None else rows
    return (
        f"{noun} from {source.path} (counted when loaded)"
        if rows is None
        else f"{rows:,} {noun} from {source.path}"
    )


def _count_rows(source: Source, read: Callable[[Source], Sequence[object]]) -> int | None:
    """Rows of local or bundled data, each looked at; None for a hub id, which a dry run does not download."""
    path = source.path
    local = path.startswith("tether:") or Path(path).exists() or Path(path).suffix in {".jsonl", ".parquet"} or is_database(path)
    if not local:
        return None
    return len(read(source))


def _plan_memory(config: RunConfig) -> list[str]:
    """The most that each stage holds, and what this machine has."""
    dims = _dims(config.model.path)
    if dims is None:
        return ["memory: not planned, the sizes of the model are not known before it is loaded"]
    narrow = config.compute.dtype == "bfloat16" or (config.compute.dtype == "auto" and multiplies_bfloat16())
    lines = [f"memory of {plan}" for plan in plan_memory(config, dims, narrow, _dims)]
    available = available_bytes()
    return lines if available is None else [*lines, f"memory of this machine: {available / 2**20:,.0f} MiB available now"]


def _dims(name: str) -> Dims | None:
    from tether.models.resolve import resolve_model

    if name == "tiny":  # made on the spot, which takes torch
        return None
    try:
        return dims_of(Path(resolve_model(name)))
    except TetherError:  # said by the line of the model
        return None


def _model_size(name: str) -> str:
    if name == "tiny":
        return "made on the spot"
    from tether.models.resolve import resolve_model

    try:
        folder = Path(resolve_model(name))
    except TetherError as error:
        return f"{NOT_READY}: {error}"
    count = parameter_count(folder)
    return "size known when loaded" if count is None else f"{count:,} parameters in {folder}"
