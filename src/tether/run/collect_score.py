"""Scores of all answers of a collection by reward models: what the choice of the next item reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tether.backends.compute import resolve_compute
from tether.collect.entries import Answer, Text
from tether.collect.settings import Strategy
from tether.collect.store import Store
from tether.config import ComputeConfig
from tether.errors import ConfigError, DataError
from tether.records.texts import answer_like
from tether.run.scorer import RunScorer, load_reward_model, reward_folder

__all__ = ["score_answers"]

_BATCH = 512  # answers per call; the model splits them by tokens


def score_answers(database: str, reward_models: Sequence[str]) -> Iterator[str]:
    """Score every answer with one model after the other and store the scores, in log-odds, whatever a unit of the model is; yields a line
    for each.

    The scorer's id is the folder's name and the first letters of the hash of its weights, so that a model that was trained further is
    another scorer. Raises errors of the database and of models, and DataError for an answer that is longer than a model takes.
    """
    if not reward_models:
        raise ConfigError("score: name at least one folder of a reward model")
    compute = resolve_compute(ComputeConfig())
    with Store.open(database) as store:
        prompts = {prompt.prompt_id: prompt.text for prompt in store.prompts()}
        for name in reward_models:
            model = load_reward_model(name)
            asking = RunScorer(model, compute)
            scorer = f"{Path(reward_folder(name)).resolve().name}@{model.weights_fingerprint()[:12]}"
            scores: dict[str, float] = {}
            answers = store.answers()
            while batch := list(islice(answers, _BATCH)):
                raw = _raw_scores(asking, [(prompts[one.prompt_id], one) for one in batch], compute.token_budget)
                scores |= {one.answer_id: score * model.log_odds_per_unit for one, score in zip(batch, raw, strict=True)}
            if not scores:
                raise DataError(f"{store.place} holds no answers to score")
            store.set_scores(scorer, scores)
            yield f"{scorer}: {len(scores)} answers"
        if store.settings.strategy is Strategy.RANDOM:
            yield "the strategy of this database is random: the scores are stored and do not choose"
        elif store.settings.strategy is Strategy.DISAGREEMENT and len(store.scorers()) < 2:
            yield "the strategy disagreement needs the scores of two or more models"


def _raw_scores(asking: RunScorer, batch: Sequence[tuple[Text, Answer]], token_budget: int) -> list[float]:
    """In order. Raises DataError naming the first answer that is refused."""

    def score(some: Sequence[tuple[Text, Answer]]) -> list[float]:
        answers = [answer_like(prompt, one.text) if isinstance(one.text, str) else one.text for prompt, one in some]
        return asking.score_texts([prompt for prompt, _ in some], answers, token_budget=token_budget)

    try:
        return score(batch)
    except DataError:
        for one in batch:
            try:
                score([one])
            except DataError as error:
                raise DataError(f"answer {one[1].answer_id} to prompt {one[1].prompt_id}: {error}") from error
        raise
