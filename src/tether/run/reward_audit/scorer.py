"""Any reward model as the audit sees it: texts in, scores or the reason of a refusal out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tether.errors import DataError, ModelError
from tether.models.reward import RewardModel
from tether.records import file_sha256
from tether.records.texts import Text
from tether.rewards.features import answer_text
from tether.rewards.linear import LinearRewardModel, load_linear
from tether.run.scorer import load_reward_model, reward_folder

__all__ = ["Audited", "Scored", "TextScorer", "load_audited", "score_all"]


class TextScorer(Protocol):
    """Raw scores of texts in order; DataError for one that cannot be scored. ``tether.models.reward.RewardModel`` has it."""

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]: ...


@dataclass(frozen=True)
class Audited:
    """A scorer with what is known of it. ``log_odds_per_unit``: of a difference of scores; ``fitted_to``: as a reward model stores it;
    ``sha256``: of its weights, or of the file of a linear one."""

    name: str
    scorer: TextScorer
    log_odds_per_unit: float = 1.0
    score_offset: float = 0.0
    fitted_to: Mapping[str, Any] = field(default_factory=dict)
    model: RewardModel | None = None
    sha256: str = ""

    @property
    def num_cut(self) -> int:
        """Texts that were cut so far, by the model's own rule."""
        return 0 if self.model is None else self.model.num_cut


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores in order, NaN where the model refused; ``refused``: why, by place from 0."""

    scores: tuple[float, ...]
    refused: Mapping[int, str] = field(default_factory=dict)


class _LinearScorer:
    """A linear reward model among the others."""

    def __init__(self, model: LinearRewardModel) -> None:
        self._model = model

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]:
        """Raw scores; prompts are not read."""
        return [self._model.score(answer_text(completion)) for completion in completions]


def load_audited(path: str) -> Audited:
    """A reward model folder or hub id in the cache (any HF classifier with one label), or the JSON file of a linear one. Of the folder of a
    run its reward model."""
    path = reward_folder(path)
    if path.endswith(".json"):
        linear = load_linear(path)
        if own := [feature.name for feature in linear.features if not feature.of_text]:
            raise ModelError(f"{path} reads {', '.join(own)} from columns of judged rows: it cannot score texts, and so not be audited")
        return Audited(Path(path).name, _LinearScorer(linear), fitted_to=linear.fitted_to, sha256=file_sha256(path))
    model = load_reward_model(path)
    return Audited(path, model, model.log_odds_per_unit, model.score_offset, model.fitted_to, model, model.weights_fingerprint())


def score_all(audited: Audited, prompts: Sequence[Text], answers: Sequence[Text], token_budget: int) -> Scored:
    """Every text that the model takes; where it refuses one, the others are asked alone."""
    try:
        return _checked(audited.scorer.score_texts(prompts, answers, token_budget=token_budget), len(answers))
    except DataError:
        scores, refused = [math.nan] * len(answers), dict[int, str]()
        for at, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            try:
                scores[at] = _checked(audited.scorer.score_texts([prompt], [answer], token_budget=token_budget), 1).scores[0]
            except DataError as error:
                refused[at] = str(error)
        return Scored(tuple(scores), refused)


def _checked(scores: Sequence[float], count: int) -> Scored:
    if len(scores) != count or not all(map(math.isfinite, scores)):
        bad = next((score for score in scores if not math.isfinite(score)), None)
        raise ModelError(f"the reward model gave {len(scores)} scores for {count} texts" if bad is None else f"the reward model gave {bad}")
    return Scored(tuple(map(float, scores)))
