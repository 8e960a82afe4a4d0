"""What several answers to one prompt say where the score is 0 or 1: pass@k, mean@k, majority vote. numpy only.

Axes: P prompts, G answers per prompt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tether.rewards.exact import ExactPart
from tether.stats import Interval, bootstrap_mean, pass_at_k
from tether.types import Rollout, RolloutGroup

__all__ = ["Attempts", "attempts", "judges_right_or_wrong", "ks_up_to"]


@dataclass(frozen=True)
class Attempts:
    """Intervals over prompts, by k. ``majority_at_k`` is empty where no answer column is compared with."""

    pass_at_k: Mapping[str, Interval]
    mean_at_k: Mapping[str, Interval]
    majority_at_k: Mapping[str, Interval]


def judges_right_or_wrong(scores_PG: Sequence[Sequence[float]]) -> bool:
    """True where every score that there is, is 0 or 1."""
    known = [score for scores_G in scores_PG for score in scores_G if not math.isnan(score)]
    return bool(known) and all(score in (0.0, 1.0) for score in known)


def ks_up_to(num_samples: int) -> list[int]:
    """Powers of two, and ``num_samples`` itself. Example: 6 -> [1, 2, 4, 6]."""
    powers = [2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples]
    return sorted({*powers, num_samples})


def attempts(groups: Sequence[RolloutGroup], part: object, *, confidence: float, seed: int) -> Attempts | None:
    """None unless there are several answers per prompt and every score is 0 or 1. Prompts with unscored answers count with the rest of
    theirs, and are left out of a k that is above it."""
    scores_PG = [[score for score in group.scores if not math.isnan(score)] for group in groups]
    num_samples = max((len(group.scores) for group in groups), default=0)
    if num_samples < 2 or not judges_right_or_wrong(scores_PG):
        return None

    def over_prompts(values: Sequence[float]) -> Interval:
        return bootstrap_mean(values, confidence=confidence, seed=seed)

    passed = {
        str(k): over_prompts([pass_at_k(len(scores_G), int(sum(scores_G)), k) for scores_G in scores_PG if len(scores_G) >= k])
        for k in ks_up_to(num_samples)
        if any(len(scores_G) >= k for scores_G in scores_PG)
    }
    mean = over_prompts([sum(scores_G) / len(scores_G) for scores_G in scores_PG if scores_G])
    voted: dict[str, Interval] = {}
    if isinstance(part, ExactPart):
        votes = [majority(group, part.stated) for group in groups if not all(map(math.isnan, group.scores))]
        voted = {str(num_samples): over_prompts(votes)}
    return Attempts(passed, {str(num_samples): mean}, voted)


def majority(group: RolloutGroup, stated: Callable[[Rollout], Any]) -> float:
    """1 if the answer that most rollouts state is right; rollouts that state none do not vote, and no vote is 0.

    Of several answers with equally many votes one is drawn, so the value is the share of them that is right: (12, 12, 13, 13), 12 right
    -> 0.5.
    """
    votes: Counter[Any] = Counter()
    right: set[Any] = set()
    for rollout, score in zip(group.rollouts, group.scores, strict=True):
        answer = stated(rollout)
        if answer is not None:
            votes[answer] += 1
            if score == 1.0:
                right.add(answer)
    if not votes:
        return 0.0
    most = max(votes.values())
    leaders = [answer for answer, count in votes.items() if count == most]
    return sum(answer in right for answer in leaders) / len(leaders)
