"""Weighted parts -> one score per rollout, with every component kept.

Total of a rollout = sum of weight * value over the parts that apply. A part that says None or NaN does not
apply and adds nothing; if none applies, the rollout is unscorable: its total is NaN. A verifier that breaks
is a ``Failure``: its rollout gets NaN, is counted, and is never scored 0. Above ``max_failure_share`` the run
stops with a ``RewardError``. A wrong or unreadable *answer* is no failure; the verifier gives it its 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsFloat, runtime_checkable

from tether.errors import DataError, RewardError, TetherError
from tether.pulse import beat
from tether.types import Failure, Rollout, RolloutGroup, Score, StopReason

if TYPE_CHECKING:
    from tether.rewards.early import EarlyScores

__all__ = ["EarlyPart", "FailureCount", "RewardPart", "Rubric", "count_failures", "num_early_workers", "score_part", "weighted_total"]


class RewardPart(Protocol):
    """One source of reward. ``score`` gives one ``Score`` or ``Failure`` per rollout, in order."""

    @property
    def name(self) -> str: ...

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Failure]: ...


@runtime_checkable
class EarlyPart(RewardPart, Protocol):
    """A part that may be asked while other answers are still generated, by threads: ``early_workers`` of its calls at once (0: by none).

    It declares that its score of a rollout follows from that rollout alone (not from others, a generator of this process or the order of
    calls), that it may be called from several threads, and that its time is spent waiting (on a sandbox, a judge). It sets its own limit
    of time, and raises or returns a ``Failure`` when that is over.
    """

    @property
    def early_workers(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How many rollouts could not be scored, and where: ``by_boundary`` counts failures per boundary."""

    num_rollouts: int
    num_failed: int
    by_boundary: Mapping[str, int]

    @property
    def share(self) -> float:
        """Failed rollouts / rollouts; 0 when there are none."""
        return self.num_failed / self.num_rollouts if self.num_rollouts else 0.0


class Rubric:
    """Named, weighted parts. The components of a rollout are logged as NAME and, for what a part reports of
    itself, NAME/DETAIL.
    """

    def __init__(self, parts: Sequence[tuple[str, float, RewardPart]]) -> None:
        names = [name for name, _, _ in parts]
        if not parts:
            raise ValueError("a rubric needs at least one part")
        if len(set(names)) != len(names):
            raise ValueError(f"the names of reward parts must differ, got {names}")
        if bad := [name for name, weight, _ in parts if not math.isfinite(weight)]:
            raise ValueError(f"the weight of {bad} is not finite")
        for name, _, part in parts:
            if not (isinstance(workers := num_early_workers(part), int) and workers >= 0):
                raise ValueError(
                    f"reward part {name!r}: early_workers is a whole number of at least 0, got {workers!r}; 0 asks it after generation"
                )
        self.parts = tuple((name, float(weight), part) for name, weight, part in parts)

    def score(
        self, groups: Sequence[Sequence[Rollout]], max_failure_share: float = 0.1, early: EarlyScores | None = None
    ) -> list[RolloutGroup]:
        """Score every rollout; groups and order are kept. Aborted rollouts are failures and are shown to no
        part. ``early``: where the parts that it names were asked before now.
        """
        rollouts = [rollout for group in groups for rollout in group]
        live = [i for i, r in enumerate(rollouts) if r.completion.stop_reason is not StopReason.ABORT]
        results: list[dict[str, Score | Failure]] = [{} for _ in rollouts]
        for name, _, part in self.parts:
            shown = [rollouts[i] for i in live]
            told = early.results(name, shown) if early and name in early.names else score_part(name, part, shown)
            for i, result in zip(live, told, strict=True):
                results[i][name] = result
        scored = iter([self._combine(result) for result in results])
        scored_groups = [_group(group, [next(scored) for _ in group]) for group in groups]
        _stop_on_failures(scored_groups, max_failure_share)
        return scored_groups

    def _combine(self, results: Mapping[str, Score | Failure]) -> _Scored:
        if not results:
            return _Scored(math.nan, {}, Failure("sampler", "the engine aborted this rollout"))
        values, components, failure = [], {}, None
        for name, _, _ in self.parts:
            result = results[name]
            if isinstance(result, Failure):
                failure = failure or result
                values.append(math.nan)
            else:
                values.append(math.nan if result.value is None else float(result.value))
                components.update(
                    {f"{name}/{detail}": float(value) for detail, value in result.parts.items()}
                )
            components[name] = values[-1]
        total = weighted_total(values, [weight for _, weight, _ in self.parts])
        if math.isinf(total):
            failure = failure or Failure("rubric", "the weighted sum of the parts overflows")
        return _Scored(math.nan if failure else total, components, failure)


def weighted_total(values: Sequence[float], weights: Sequence[float]) -> float:
    """sum_k w_k * v_k over the finite-or-applicable values; NaN means "not applicable". All NaN gives NaN.

    Example: values (nan, 1, 0), weights (1, 2, .5) -> 2.0.
    """
    live = [(value, weight) for value, weight in zip(values, weights, strict=True) if not math.isnan(value)]
    return sum(value * weight for value, weight in live) if live else math.nan


def count_failures(groups: Sequence[RolloutGroup]) -> FailureCount:
    """Failures of scored groups, for the log."""
    failures = [failure for group in groups for failure in group.failures]
    by_boundary = Counter(failure.boundary for failure in failures if failure is not None)
    return FailureCount(len(failures), sum(by_boundary.values()), dict(by_boundary))


@dataclass(frozen=True, slots=True)
class _Scored:
    total: float
    components: Mapping[str, float]
    failure: Failure | None


def _group(rollouts: Sequence[Rollout], scored: Sequence[_Scored]) -> RolloutGroup:
    return RolloutGroup(
        rollouts=tuple(rollouts),
        scores=tuple(s.total for s in scored),
        components=tuple(s.components for s in scored),
        failures=tuple(s.failure for s in scored),
    )


def num_early_workers(part: RewardPart) -> int:
    """Calls of ``part`` that may run at once while answers are generated; 0 where it is asked afterwards, as are parts that do not say."""
    return part.early_workers if isinstance(part, EarlyPart) else 0


def score_part(name: str, part: RewardPart, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
    """The named boundary: a part that raises is asked again one rollout at a time, so that one bad row costs
    one row. Raises RewardError for a wrong number of scores, and the errors of ours that end a run.
    """
    if not rollouts:
        return []
    beat(f"reward part {name!r}")
    try:
        results = list(part.score(rollouts))
    except Exception as error:
        if isinstance(error, TetherError) and not isinstance(error, DataError):
            raise  # a run that cannot go on, not a row
        if len(rollouts) == 1:
            return [Failure(name, f"{type(error).__name__}: {error}")]
        return [result for rollout in rollouts for result in score_part(name, part, [rollout])]
    if len(results) != len(rollouts):
        raise RewardError(f"reward part {name!r} gave {len(results)} scores for {len(rollouts)} rollouts")
    return [_checked(name, result) for result in results]


def _checked(name: str, result: Score | Failure) -> Score | Failure:
    """Infinite values and values that are no numbers are faults of the part."""
    if isinstance(result, Failure):
        return result
    if not isinstance(result, Score):
        return Failure(name, f"expected a Score or a Failure, got {type(result).__name__}")
    if result.value is None:
        return result
    if not isinstance(result.value, SupportsFloat):
        return Failure(name, f"the value of the score is no number: {result.value!r}")
    value = float(result.value)
    return Failure(name, f"the score is {value}") if math.isinf(value) else result


def _stop_on_failures(groups: Sequence[RolloutGroup], max_failure_share: float) -> None:
    count = count_failures(groups)
    if count.num_failed == 0 or count.share <= max_failure_share:
        return
    place, first = next(
        (rollout.prompt.place, failure)
        for group in groups
        for rollout, failure in zip(group.rollouts, group.failures, strict=True)
        if failure is not None
    )
    raise RewardError(
        f"{count.num_failed} of {count.num_rollouts} rollouts could not be scored ({count.share:.0%}, "
        f"allowed {max_failure_share:.0%}); failures by boundary: {dict(count.by_boundary)}; "
        f"the first, of {place}: {first.reason}. "
        "Repair the verifier or its data; a wrong answer would have been scored, not counted here."
    )
