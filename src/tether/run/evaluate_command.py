"""`tether evaluate`: from words of the command line to an evaluation, a file and a table."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from tether.backends.compute import resolve_compute
from tether.config import ComputeConfig, EvaluateConfig, ModelConfig, explain, load_config
from tether.errors import ConfigError
from tether.files import write_atomic
from tether.run.evaluate_models import Opponents, evaluate_models
from tether.run.evaluate_text import as_text
from tether.run.win_rate import Judge

__all__ = ["EvaluateRequest", "as_text", "evaluate_command", "pair_from_word", "settings_from_words"]


@dataclass(frozen=True)
class EvaluateRequest:
    """What the user asked for; None is "not said". ``config``: a run configuration whose [evaluate], [model], [compute] and seed are the
    defaults. ``settings``: fields of [evaluate] that replace its own. ``judge``: MODULE:FUNCTION."""

    models: tuple[str, ...]
    config: Path | None = None
    settings: Mapping[str, Any] | None = None
    against: str | None = None
    reference: str | None = None
    reward_model: str | None = None
    judge: str | None = None
    seed: int | None = None
    num_seeds: int = 1
    output: Path | None = None


def evaluate_command(request: EvaluateRequest, say: Callable[[str], None] = lambda text: None) -> tuple[dict[str, Any], Path]:
    """The evaluation and the file it was written to. Raises ConfigError for what cannot be asked, all of it at once."""
    if not request.models:
        raise ConfigError("evaluate: name at least one model: a folder, a run, a checkpoint of a run, or a hub id")
    if request.num_seeds < 1:
        raise ConfigError(f"--num-seeds {request.num_seeds}: at least one sampling seed is needed")
    evaluate, model, compute, seed = _settings(request)
    opponents = Opponents(request.against, request.reference, request.reward_model, _judge(request.judge), request.judge or "")
    seeds = range(seed, seed + request.num_seeds)
    found = evaluate_models(request.models, evaluate, resolve_compute(compute), opponents, seeds=seeds, model=model, say=say)
    found |= {"judge": request.judge} if request.judge else {}
    text = json.dumps(found, indent=2) + "\n"
    target = request.output or Path("evaluations") / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    return found, write_atomic(target, text)


def _settings(request: EvaluateRequest) -> tuple[EvaluateConfig, ModelConfig, ComputeConfig, int]:
    """The [evaluate] section under the words of the command line."""
    told: dict[str, Any] = {}
    model, compute, seed = ModelConfig(), ComputeConfig(), 0
    if request.config is not None:
        run = load_config(request.config)
        model, compute, seed = run.model, run.compute, run.seed
        told = {} if run.evaluate is None else run.evaluate.model_dump(mode="json")
    for name, value in (request.settings or {}).items():
        own = told.get(name)
        told[name] = {**own, **value} if isinstance(own, dict) and isinstance(value, Mapping) and name != "score_params" else value
    if "prompts" not in told:
        raise ConfigError("evaluate: which prompts? Give --prompts FILE, or --config RUN.toml with an [evaluate] section")
    try:
        evaluate = EvaluateConfig.model_validate(told)
    except ValidationError as error:
        raise ConfigError(explain(error, EvaluateConfig), "the settings of evaluate") from None
    return evaluate, model, compute, seed if request.seed is None else request.seed


def settings_from_words(
    prompts: str | None,
    score: str | None,
    score_params: Sequence[str],
    samples: int | None,
    max_new_tokens: int | None,
    temperature: float | None,
    limit: int | None,
) -> dict[str, Any]:
    """Fields of [evaluate] from options that were given. Example of ``score_params``: ["column=answer"]."""
    told: dict[str, Any] = {
        "prompts": {key: value for key, value in (("path", prompts), ("limit", limit)) if value is not None},
        "score": score,
        "score_params": dict(pair_from_word("--score-param", word) for word in score_params) or None,
        "samples_per_prompt": samples,
        "sampling": {key: value for key, value in (("max_new_tokens", max_new_tokens), ("temperature", temperature)) if value is not None},
    }
    return {name: value for name, value in told.items() if value not in (None, {})}


def pair_from_word(option: str, word: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is some. Example: "low=5" -> ("low", 5)."""
    name, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"{option} {word}: write NAME=VALUE, e.g. column=answer")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _judge(name: str | None) -> Judge | None:
    """The function MODULE:FUNCTION; modules of the current folder are found too."""
    if name is None:
        return None
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = vars(importlib.import_module(module)).get(function) if module and function else None
    except Exception as error:  # the boundary of a stranger's module
        raise ConfigError(f"--judge {name}: the module cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found):
        raise ConfigError(f"--judge {name}: expected MODULE:FUNCTION, a function (prompt, first, second) -> 1, 0.5, 0 or None")
    return cast(Judge, found)
