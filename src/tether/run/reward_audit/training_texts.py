"""Answers that a reward model was trained on, found by the configuration of the run whose folder it lies in."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tether.collect.recognise import is_database
from tether.config import RunConfig
from tether.errors import TetherError
from tether.models.reward import RewardModel
from tether.records import read_judgements
from tether.records.texts import Text
from tether.rewards.seen import stored_hashes, was_seen
from tether.run.sources import comparison_rows
from tether.types import Comparison, Ranking

__all__ = ["LEAST", "AnswerTo", "TrainingTexts", "training_texts"]

AnswerTo = tuple[Text, Text]
"""(prompt, answer)."""
LEAST = 60
"""Answers that a limit is set by: with fewer, an order statistic for 2.5 % says too little."""
_FIT, _LIMIT = 320, 200  # most answers that are read
_STILL_THERE = 0.9  # of the training prompts, in a database that has other rows now; withdrawn judgements may take some away


@dataclass(frozen=True)
class TrainingTexts:
    """``fit``: answers to training prompts. ``limit``: in-distribution answers that are not among them; ``limit_from`` says which."""

    fit: tuple[AnswerTo, ...]
    limit: tuple[AnswerTo, ...]
    source: str
    limit_from: str


def training_texts(path: str, model: RewardModel, seed: int = 0) -> TrainingTexts | str:
    """The texts, or the reason why there are none, as the end of a sentence: the folder is not of a run of ours, its data are gone or
    others now, or there are too few.

    A database that was judged on since the training has other rows, but never other texts of the same answers: there the answers to the
    prompts that the model says it was trained on are still texts of its training, up to answers that were added to these prompts. What it
    was *not* trained on may be new and unlike, so no limit is set by that. A file may have been rewritten, and is refused.
    """
    folder = Path(path).expanduser().absolute()
    settings, seen = folder.parent / "config.json", stored_hashes(model.fitted_to)
    if not seen or not settings.is_file():
        return "it does not lie in the folder of a run of ours, which would say what it was trained on"
    try:
        told = RunConfig.model_validate(json.loads(settings.read_text("utf-8")))
        if told.reward_model is None:
            return f"{settings} has no section reward_model"
        source = told.reward_model.data
        rows = comparison_rows(source).rows
        records = read_judgements(rows.rows, rows.source)
    except (TetherError, ValueError, OSError) as error:
        return f"the data of its run cannot be read ({str(error).splitlines()[0][:160]})"
    answers, told_of = _answers(records), source.path
    if grown := rows.sha256 != model.fitted_to.get("data_sha256"):
        still = {prompt for prompt, _ in answers if was_seen(prompt, seen)}
        if not is_database(source.path):
            return f"{source.path} is no longer what it was trained on (another SHA-256); keep the files of a run as they were"
        if len(still) < _STILL_THERE * len(seen):
            return (
                f"{source.path} holds {len(still)} of the {len(seen)} prompts that it was trained on; keep a copy of what a run was "
                "trained on (`tether collect dump`)"
            )
        told_of += f" (judged on since; the {len(still)} of its {len(seen)} training prompts that are there)"
    training = [one for one in answers if was_seen(one[0], seen)]
    held_out = [one for one in answers if not was_seen(one[0], seen)]
    where = "held-out answers of its run"
    if grown or len(held_out) < LEAST:
        prompts = list(dict.fromkeys(prompt for prompt, _ in training))
        apart = set(random.Random(seed).sample(prompts, len(prompts) // 5))
        held_out, training = [a for a in training if a[0] in apart], [a for a in training if a[0] not in apart]
        where = "answers to a fifth of its training prompts, left out of the fit"
    if min(len(held_out), len(training)) < LEAST:
        return (
            f"its data have {len(answers)} different answers, too few to set a limit by: it takes {LEAST} held-out ones and {LEAST} of "
            f"training prompts, or else about {5 * LEAST} of training prompts, a fifth of which is then left out of the fit"
        )
    return TrainingTexts(_some(training, _FIT, seed), _some(held_out, _LIMIT, seed), told_of, where)


def _answers(records: Sequence[Comparison | Ranking]) -> list[AnswerTo]:
    every = [
        (record.prompt, answer)
        for record in records
        for answer in ((record.chosen, record.rejected) if isinstance(record, Comparison) else record.answers)
    ]
    return list(dict.fromkeys(every))


def _some(texts: Sequence[AnswerTo], most: int, seed: int) -> tuple[AnswerTo, ...]:
    return tuple(texts if len(texts) <= most else random.Random(seed).sample(list(texts), most))
