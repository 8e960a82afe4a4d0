"""Six simulated people of whom three have a habit, under names that people have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tether.collect.judgement import Choice, Judgement
from tether.collect.simulate import SimulatedStudy, Study, simulate

NAMES = ("Ann", "Ben", "Chloë", "Dora", "Emil", "فاطمة")
HASTY, LEFT, LONG = "Ann", "Ben", "Chloë"
PAUSES = "Dora"


def six_people(num_prompts: int = 200, seed: int = 0) -> Study:
    """Ann tosses coins within a second or two, Ben mostly clicks the left answer, Chloë the longer one; Dora is careful and takes a long
    break every twentieth time. The simulated annotators carry these names.
    """
    settings = {"num_annotators": 6, "tie_threshold": 0.2, "temperature": 0.5, "gold_share": 0.08, "skip_share": 0.02, "repeat_share": 0.05}
    made = simulate(SimulatedStudy(num_prompts=num_prompts, seed=seed, **settings))
    rng = np.random.default_rng(seed)
    items = {item.item_id: item for item in made.items}
    found = [_habit(j, NAMES[int(j.annotator.rpartition("-")[2])], items[j.item_id].answers, made.lengths, rng) for j in made.judgements]
    return replace(made, judgements=tuple(found))


def _habit(j: Judgement, name: str, answers: tuple[str, ...], lengths: dict[str, int], rng: np.random.Generator) -> Judgement:
    draw = float(rng.random())
    j = replace(j, annotator=name)
    if j.choice is Choice.SKIP:
        return j
    if name == HASTY:
        return replace(j, choice=Choice.FIRST if draw < 0.5 else Choice.SECOND, seconds=round(0.6 + 1.2 * draw, 2))
    wanted = j.shown[0] if name == LEFT else max(answers, key=lambda answer: lengths[answer])
    if name in (LEFT, LONG) and draw < 0.6:
        return replace(j, choice=Choice.FIRST if wanted == answers[0] else Choice.SECOND)
    return replace(j, seconds=1500.0) if name == PAUSES and draw < 0.05 else j
