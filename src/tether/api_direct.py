"""The Python entrance to direct preference optimisation on comparisons that are already there.

    policy = tether.Policy.load("path/to/model")
    result = tether.dpo(policy, [{"prompt": "2 + 3 =", "chosen": " 5", "rejected": " 6"}, ...], epochs=2)
    print(result.held_out)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from tether.backends.compute import Compute, resolve_compute
from tether.config import ComputeConfig, DirectConfig, explain
from tether.errors import ConfigError, DataError
from tether.events import EventLog
from tether.models.policy import Policy
from tether.records import read_comparisons, read_feedback
from tether.rollout.plain import position_limit
from tether.run.direct import HeldOutPreference, num_steps, train_direct
from tether.run.direct_stage import prepare_units
from tether.run.observer import Observer, Quiet
from tether.run.recorder import Recorder
from tether.types import Comparison, Feedback

__all__ = ["DirectResult", "check_policy", "dpo", "python_compute", "refuse_given"]

_SOURCE = "comparisons"


@dataclass(frozen=True)
class DirectResult:
    """``last_step``: metrics of the last optimiser step. ``held_out``: accuracy and margin before and after, None without held-out rows."""

    last_step: Mapping[str, float]
    held_out: HeldOutPreference | None


def dpo(
    policy: Policy,
    comparisons: Iterable[Comparison | Feedback | Mapping[str, Any]],
    *,
    kind: str = "dpo",
    seed: int = 0,
    log: str | Path | None = None,
    observer: Observer | None = None,
    **settings: Any,
) -> DirectResult:
    """Train ``policy`` in place with a direct preference loss (DPO 2305.18290 and relatives), tethered to its weights at the call.

    ``comparisons``: Comparison, or rows with `prompt`, `chosen`, `rejected`; for ``kind="kto"`` also Feedback, or rows with `prompt`,
    `completion`, `label`. ``settings`` are the fields of a section ``[direct.NAME]`` (``beta``, ``epochs``, ``optim={...}``, ...) and
    ``compute={...}``. Raises ConfigError for wrong settings, DataError naming every row that cannot be used.
    """
    check_policy(policy)
    config, compute = _settings(kind, dict(settings))
    positions = position_limit(policy.config.get_text_config().to_dict())
    units = prepare_units(_records(comparisons, kind), config, policy.format, _SOURCE, seed, positions)
    policy.to(compute.device)
    with TemporaryDirectory() as scratch:
        events = EventLog(log if log is not None else Path(scratch) / "events.jsonl")
        recorder = Recorder(events, observer or Quiet(), f"direct.{kind}", num_steps(len(units.training), config))
        try:
            recorder.message(str(units))
            held_out = train_direct(policy, units.training, units.held_out, config, compute, recorder, seed)
        finally:
            events.close()
    return DirectResult(recorder.last, held_out)


def check_policy(policy: object) -> None:
    """Raises TypeError for what is no Policy, with the way to one."""
    if not isinstance(policy, Policy):
        raise TypeError(
            f"policy: expected a tether.Policy, got {type(policy).__name__}; use tether.Policy.load(path), or "
            "tether.Policy(model, tokenizer) for a transformers model"
        )


def python_compute(given: object) -> Compute:
    """``compute={...}`` resolved. Raises ConfigError whose paths begin with `compute`."""
    try:
        return resolve_compute(ComputeConfig.model_validate(given))
    except ValidationError as error:
        problems = [problem if problem.startswith(" = ") else f".{problem}" for problem in explain(error, ComputeConfig)]
        raise ConfigError([f"compute{problem}" for problem in problems]) from None


def refuse_given(settings: Mapping[str, Any], arguments: Mapping[str, str], kind: str) -> None:
    """Raises ConfigError for settings of a file that are arguments here; they would have no effect."""
    if problems := [f"{name}: give it as the argument {arguments[name]!r} of the function" for name in arguments if name in settings]:
        raise ConfigError(problems, f"the settings of {kind}")


def _settings(kind: str, settings: dict[str, Any]) -> tuple[DirectConfig, Compute]:
    refuse_given(settings, {"data": "comparisons"}, kind)
    compute = python_compute(settings.pop("compute", {}))
    try:
        return DirectConfig.model_validate({"kind": kind, "data": {"path": "(given in Python)"}, **settings}), compute
    except ValidationError as error:
        raise ConfigError(explain(error, DirectConfig), f"the settings of {kind}") from None


def _records(given: Iterable[Any], kind: str) -> list[Comparison] | list[Feedback]:
    """Rows are read, records taken as they are; a Comparison among KTO's answers gives two."""
    rows = [_as_row(item) for item in given]
    if rows and all(isinstance(row, str) for row in rows):  # what a DataFrame, a DatasetDict and columns give when they are walked
        raise DataError(
            f"{_SOURCE}: expected a list of rows, got a {type(given).__name__} that yields {rows[0]!r:.40}; pick a split of a DatasetDict, "
            'use frame.to_dict("records") of a DataFrame'
        )
    return read_feedback(rows, _SOURCE) if kind == "kto" else read_comparisons(rows, _SOURCE)


def _as_row(item: Any) -> Any:
    if isinstance(item, Comparison):
        return {name: _plain(getattr(item, name)) for name in ("prompt", "chosen", "rejected", "margin", "label")}
    if isinstance(item, Feedback):
        return {"prompt": _plain(item.prompt), "completion": _plain(item.completion), "label": item.liked}
    return item


def _plain(value: Any) -> Any:
    """Text, numbers, and turns as rows hold them."""
    return [{"role": turn.role, "content": turn.content} for turn in value] if isinstance(value, tuple) else value
