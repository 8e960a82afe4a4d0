"""The pairs of an audit beside the scores that the model gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.records.texts import prompt_key
from tether.rewards.features import feature_from
from tether.rewards.linear import pair_features
from tether.run.reward_audit.figures import correct
from tether.run.reward_audit.pairs import AuditPairs, Vote
from tether.run.reward_audit.scorer import Audited
from tether.stats import Interval
from tether.types import Comparison

__all__ = ["Judged", "interval_dict", "nll"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """The pairs that both have scores. ``gap_B`` in log-odds, ``scores_2B`` as the model gave them: chosen, then rejected. ``cluster``
    numbers the prompts; ``votes`` is empty where no single judgements are known."""

    pairs: tuple[Comparison, ...]
    rows: tuple[Mapping[str, Any], ...]
    scores_2B: Array
    gap_B: Array
    label_B: Array
    cluster: tuple[int, ...]
    votes: tuple[tuple[Vote, ...], ...] = ()

    @classmethod
    def of(cls, audited: Audited, given: AuditPairs, scores_2B: Array, kept: NDArray[np.intp]) -> Judged:
        """Those of ``given`` at the places ``kept``."""
        chosen, rejected = scores_2B[kept], scores_2B[kept + len(given.pairs)]
        pairs = tuple(given.pairs[at] for at in kept)
        numbers: dict[str, int] = {}
        cluster = tuple(numbers.setdefault(prompt_key(pair.prompt), len(numbers)) for pair in pairs)
        label_B = np.array([pair.label for pair in pairs])
        rows = tuple(given.rows[at] for at in kept) if given.rows else ({},) * len(pairs)
        votes = tuple(given.votes[at] for at in kept) if given.votes else ()
        gap_B = (chosen - rejected) * audited.log_odds_per_unit
        return cls(pairs, rows, np.concatenate([chosen, rejected]), gap_B, label_B, cluster, votes)

    @property
    def right_B(self) -> Array:
        """Against the label; NaN for ties."""
        return correct(self.gap_B, self.label_B)

    @property
    def preferred_B(self) -> Array:
        """1 where the model prefers chosen, .5 where its scores are equal."""
        return np.where(self.gap_B == 0, 0.5, (self.gap_B > 0).astype(float))

    def differences(self, names: Sequence[str]) -> Array:
        """Chosen minus rejected, one column a feature."""
        chosen_BF, rejected_BF = pair_features([feature_from(name) for name in names], self.pairs)
        return chosen_BF - rejected_BF


def nll(gap_B: Array, label_B: Array) -> Array:
    """Of every pair, in nats."""
    return label_B * np.logaddexp(0, -gap_B) + (1 - label_B) * np.logaddexp(0, gap_B)


def interval_dict(interval: Interval) -> dict[str, Any]:
    """As it stands in the JSON."""
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "units": interval.num_units}
