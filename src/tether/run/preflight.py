"""What can be known to fail before anything is trained is said before anything is trained, all of it at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tether.config import ChecksConfig, DataSource, DirectConfig, EvaluateConfig, RewardModelConfig, RolloutConfig, RunConfig
from tether.data.load import load_prompts
from tether.data.overlap import overlap_warnings
from tether.errors import ConfigError, DataError, TetherError
from tether.records import refuse_bad_rows
from tether.rewards.build import build_part, build_rubric
from tether.rewards.exact import ExactPart
from tether.run.checks.stage import panel_prompts, panel_score
from tether.run.fit import Base, check_comparisons, check_judged, check_lora, check_prompts, load_base, local_folder
from tether.run.sources import load_comparisons, load_demonstrations, load_feedback
from tether.text.chat import Text
from tether.trackers import require_trackers
from tether.types import Failure, Prompt

__all__ = ["preflight"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class _NoScores:
    """Stands for the reward model that a later stage will train."""

    score_offset = 0.0

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]:
        """Never asked."""
        raise AssertionError("the placeholder of the reward model was asked for scores")


@dataclass
class _Findings:
    """Problems so far. State: each sentence with the places it holds for, so that it is said once."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, where: str, problem: str) -> None:
        found = self.places.setdefault(problem, [])
        if where not in found:
            found.append(where)

    def attempt(self, where: str, action: Callable[[], T]) -> T | None:
        """The result of ``action``, or None and its problems."""
        try:
            return action()
        except ConfigError as error:
            for problem in error.problems:
                self.add(where, problem)
        except TetherError as error:
            self.add(where, str(error))
        return None

    def sentences(self) -> list[str]:
        return [f"{', '.join(places)}: {problem}".replace("\n", "\n  ") for problem, places in self.places.items()]


def preflight(config: RunConfig) -> None:
    """Read every data source, build every reward part, look for the columns they need, for prompts that the model cannot take, for
    adapters without a layer and for overlap with held-out prompts.

    Raises ConfigError with every problem, each once. What cannot be looked at yet is a warning in the log.
    """
    found = _Findings()
    found.attempt("report_to", lambda: require_trackers(config.report_to))
    base = found.attempt("model", lambda: _base(config.model.path, config))
    if base is not None and config.model.lora is not None:
        for odd in found.attempt("model.lora.targets", lambda: check_lora(base, config.model)) or ():
            _LOG.warning("model.lora.targets: %s", odd)
    if (sft := config.sft) is not None:
        found.attempt("sft.data", lambda: load_demonstrations(sft.data))
    if config.reward_model is not None:
        _look_at_reward_model(found, config, config.reward_model, base)
    training = [prompt for name, rl in config.rl.items() for prompt in _look_at_rl(found, f"rl.{name}", rl, base)]
    asked = [prompt.text for prompt in training]
    for name, direct in config.direct.items():
        asked += _look_at_direct(found, f"direct.{name}", direct, base, config.seed)
    if config.evaluate is not None:
        held = _look_at_evaluation(found, config.evaluate, base)
        if overlap := overlap_warnings(asked, [p.text for p in held]):
            found.add("evaluate.prompts", "; ".join(overlap) + "; remove these rows from one of the two sets")
    if config.checks is not None:
        _look_at_checks(found, config, config.checks, base, asked)
    if problems := found.sentences():
        raise ConfigError(problems, f"the run {config.name}, found before training")


def _base(name: str, config: RunConfig) -> Base | None:
    model = config.model
    folder = local_folder(name, local_files_only=model.local_files_only)
    if folder is None:
        _LOG.warning("%s is not on this machine yet: whether prompts and adapters fit it is seen when it is loaded", name)
        return None
    return load_base(folder, trust_remote_code=model.trust_remote_code)


def _look_at_reward_model(found: _Findings, config: RunConfig, section: RewardModelConfig, base: Base | None) -> None:
    comparisons = found.attempt("reward_model.data", lambda: load_comparisons(section.data))
    if section.path is not None:
        base = found.attempt("reward_model.path", lambda: _base(str(section.path), config))
    if comparisons is not None and base is not None:
        found.attempt(
            "reward_model.data", lambda: check_comparisons(base, comparisons, section, section.data.path, config.seed)
        )


def _look_at_rl(found: _Findings, where: str, rl: RolloutConfig, base: Base | None) -> list[Prompt]:
    prompts = found.attempt(f"{where}.prompts", lambda: load_prompts(rl.prompts)) or []
    if prompts and base is not None:
        found.attempt(f"{where}.prompts", lambda: check_prompts(base, prompts, rl.prompts.path, rl.sampling.max_new_tokens, rl))
    for part in rl.rewards:
        if part.kind == "learned" and "path" in part.params:
            found.attempt(f"{where}.rewards", lambda path=str(part.params["path"]): local_folder(path, local_files_only=True))
        else:
            _look_at_part(found, f"{where}.rewards", part, rl.prompts, prompts)
    return prompts


def _look_at_direct(found: _Findings, where: str, direct: DirectConfig, base: Base | None, seed: int) -> list[Text]:
    """The prompts that the stage trains on."""
    load = load_feedback if direct.kind == "kto" else load_comparisons
    records = found.attempt(f"{where}.data", lambda: load(direct.data)) or []
    if records and base is not None:
        found.attempt(f"{where}.data", lambda: check_judged(base, records, direct, direct.data.path, seed))
    return [record.prompt for record in records]


def _look_at_evaluation(found: _Findings, evaluate: EvaluateConfig, base: Base | None) -> list[Prompt]:
    source = evaluate.prompts
    prompts = found.attempt("evaluate.prompts", lambda: load_prompts(source)) or []
    if prompts and base is not None:
        found.attempt("evaluate.prompts", lambda: check_prompts(base, prompts, source.path, evaluate.sampling.max_new_tokens))
    part = found.attempt("evaluate.score_params", lambda: build_part(evaluate.score, dict(evaluate.score_params)))
    if isinstance(part, ExactPart) and prompts:
        found.attempt("evaluate.score_params", lambda: _refuse_unreadable(part, source, prompts))
    return prompts


def _look_at_checks(found: _Findings, config: RunConfig, checks: ChecksConfig, base: Base | None, asked: Sequence[Text]) -> None:
    """The panel: its prompts fit the model and are held out, and its score can be computed on them."""
    source = panel_prompts(config, checks)
    prompts = (found.attempt("checks.prompts", lambda: load_prompts(source)) or [])[: checks.num_prompts]
    budget = max((rl.sampling.max_new_tokens for rl in config.rl.values()), default=1)
    if prompts and base is not None:
        found.attempt("checks.prompts", lambda: check_prompts(base, prompts, source.path, budget))
    if checks.prompts is not None and (overlap := overlap_warnings(asked, [p.text for p in prompts])):
        found.add("checks.prompts", "; ".join(overlap) + "; remove these rows from one of the two sets")
    part = found.attempt("checks.score_params", lambda: panel_score(checks, config.evaluate))
    if isinstance(part, ExactPart) and prompts:
        found.attempt("checks.score_params", lambda: _refuse_unreadable(part, source, prompts))


def _look_at_part(found: _Findings, where: str, config: Any, source: DataSource, prompts: Sequence[Prompt]) -> None:
    rubric = found.attempt(where, lambda: build_rubric([config], reward_model=_NoScores()))
    for _, _, part in rubric.parts if rubric else ():
        if isinstance(part, ExactPart) and prompts:
            found.attempt(where, lambda part=part: _refuse_unreadable(part, source, prompts))


def _refuse_unreadable(part: ExactPart, source: DataSource, prompts: Sequence[Prompt]) -> None:
    """DataError for prompts whose answer column cannot be compared with."""
    known = sorted({name for prompt in prompts for name in prompt.columns})
    if part.column not in known:
        raise DataError(f"{source.path} has no column {part.column!r} (it has: {', '.join(known) or 'none'}); add it or name another")
    golds = {row: part.gold(prompt) for row, prompt in enumerate(prompts, start=1)}
    refuse_bad_rows({row: gold.reason for row, gold in golds.items() if isinstance(gold, Failure)}, source.path, len(prompts))
