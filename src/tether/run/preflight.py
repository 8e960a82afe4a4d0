"""What can be known to fail before anything is trained is said before anything is trained, all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tether.config import DataSource, RunConfig
from tether.data.load import load_comparisons, load_demonstrations, load_prompts
from tether.data.overlap import overlap_warnings
from tether.errors import ConfigError, TetherError
from tether.rewards.build import build_part, build_rubric
from tether.text.chat import Text
from tether.types import Prompt

__all__ = ["preflight"]


class _NoScores:
    """Stands for the reward model that a later stage will train."""

    score_offset = 0.0

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]:
        """Never asked."""
        raise AssertionError("the placeholder of the reward model was asked for scores")


def preflight(config: RunConfig) -> None:
    """Read every data source, build every reward part, look for the columns they need and for overlap with held-out prompts.

    Raises ConfigError with one problem per place.
    """
    problems = list(_problems(config))
    if problems:
        raise ConfigError(problems, f"the run {config.name}, found before training")


def _problems(config: RunConfig) -> Iterator[str]:
    if config.sft is not None:
        yield from _caught("sft.data", lambda source=config.sft.data: load_demonstrations(source))
    if config.reward_model is not None:
        yield from _caught("reward_model.data", lambda source=config.reward_model.data: load_comparisons(source))
    training: list[Prompt] = []
    for name, rl in config.rl.items():
        where = f"rl.{name}"
        yield from _caught(f"{where}.prompts", lambda source=rl.prompts: training.extend(load_prompts(source)))
        parts = [part for part in rl.rewards if part.kind != "learned" or "path" not in part.params]
        yield from _caught(f"{where}.rewards", lambda parts=parts: build_rubric(parts, reward_model=_NoScores()) if parts else None)
        for part in rl.rewards:
            if part.kind == "exact":
                yield from _without_column(f"{where}.rewards", rl.prompts, part.params)
    if config.evaluate is not None:
        held: list[Prompt] = []
        yield from _caught("evaluate.prompts", lambda source=config.evaluate.prompts: held.extend(load_prompts(source)))
        yield from _caught("evaluate.score_params", lambda e=config.evaluate: build_part(e.score, dict(e.score_params)))
        if config.evaluate.score == "exact":
            yield from _without_column("evaluate.score_params", config.evaluate.prompts, config.evaluate.score_params)
        if overlap := overlap_warnings([p.text for p in training], [p.text for p in held]):
            yield "evaluate.prompts: " + "; ".join(overlap) + "; remove these rows from one of the two sets"


def _caught(where: str, attempt: Callable[[], Any]) -> Iterator[str]:
    try:
        attempt()
    except ConfigError as error:
        yield from (f"{where}: {problem}" for problem in error.problems)
    except TetherError as error:
        yield f"{where}: {error}"


def _without_column(where: str, source: DataSource, params: dict[str, Any]) -> Iterator[str]:
    column = str(params.get("column", "answer"))
    try:
        prompts = load_prompts(source)
    except TetherError:
        return  # said already
    rows = [number for number, prompt in enumerate(prompts, start=1) if prompt.columns.get(column) is None]
    if rows:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        problem = f"{len(rows)} of {len(prompts)} rows of {source.path} have no column {column!r} (rows {shown})"
        yield f"{where}: {problem}; add it or name another"
