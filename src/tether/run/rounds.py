"""The frame of an online round, whatever its loss: begun again where it does not fit, skipped where a number is not finite, counted.

``run.learner`` and ``run.online_dpo`` fill it. Axes: B sequences, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

import torch

from tether.backends.compute import Compute
from tether.backends.local import LocalWorker
from tether.config import RolloutConfig
from tether.data.batches import TextBatch, pad_examples
from tether.maths.masked import NonFiniteError
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.value import Critic
from tether.run.evidence import text_tensors
from tether.run.guard import StepGuard
from tether.run.rows import RolloutRow, check_rows
from tether.state import State
from tether.text.chat import sampled_example

__all__ = ["RoundLearner"]

C = TypeVar("C", bound=RolloutConfig)


class RoundLearner(ABC, Generic[C]):
    """Rounds of learning on one policy. State: weights, optimiser, rounds done, what was refused.

    ``folder``: of the run, and ``stage``: where a learner that stops for numbers that are not finite leaves the batch.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Reference,
        config: C,
        compute: Compute,
        *,
        beside: Sequence[Critic] = (),
        head_names: tuple[str, ...] = (),
        head_learning_rate: float | None = None,
        seed: int = 0,
        total_rounds: int | None = None,
        folder: Path | None = None,
        stage: str = "",
    ) -> None:
        self.policy, self.reference, self.config, self.compute = policy, reference, config, compute
        self._seed = seed
        self._round = 0
        self.guard = StepGuard(compute, [policy, *beside], config.optim.max_skipped_steps, folder=folder, stage=stage)
        steps = (total_rounds or config.steps) * config.epochs * config.minibatches
        self.worker = LocalWorker(
            [policy, *beside], config.optim, steps, head_names=head_names, head_learning_rate=head_learning_rate
        )

    @property
    @abstractmethod
    def beta(self) -> float:
        """Strength of the tether in force."""

    @abstractmethod
    def _learn(self, rows: Sequence[RolloutRow], texts: TextBatch, part_weights: Sequence[float]) -> MetricSums:
        """The round. It is called again, and nothing of the first call is kept, when it does not fit before the first optimiser step has
        ended: the old log-probabilities are of the same passes."""

    def _round_ended(self) -> None:
        """After a round that was counted, learned or skipped."""

    def learn(self, rows: Sequence[RolloutRow], part_weights: Sequence[float] = ()) -> dict[str, float]:
        """One round over ``rows``; returns its metrics. ``part_weights``: weights of the reward parts that the rows carry (GDPO).

        Where a number is not finite before the first update the round is skipped: its metrics say so. Raises RatioError when the policy
        moved before the first update, NumericsError when scores are not finite or one step too many was skipped.
        """
        check_rows(rows)
        texts = pad_examples([sampled_example(row.query_ids, row.response_ids) for row in rows], self.policy.format.pad_id)
        texts = texts.to(self.compute.device)
        try:
            metrics = self.guard.memory.repeat(lambda: self._learn(rows, texts, part_weights), self.worker.discard)
        except NonFiniteError as error:
            return self.skip(str(error), texts)
        self._count_round()
        return metrics.means()

    def skip(self, reason: str, texts: TextBatch | None = None) -> dict[str, float]:
        """A round that updates nothing, for a reason that is said and counted; without ``texts`` because none has a score. Returns its
        metrics."""
        report = self.worker.refuse(reason, steps=self.config.epochs * self.config.minibatches)
        if texts is None:
            self.guard.judge(report, self._round + 1, dict, "a reward that does not apply to these prompts, or lacks a `return`")
        else:
            self.guard.judge(report, self._round + 1, lambda: text_tensors(texts))
        self._count_round()
        return {"skipped_steps": 1.0, "optimiser_steps": 0.0, "beta": self.beta, "learning_rate": report.learning_rate}

    def _count_round(self) -> None:
        self._round += 1
        self._round_ended()

    def _shuffler(self) -> torch.Generator:
        """The randomness of this round's minibatches, from the seed and the round alone."""
        return torch.Generator().manual_seed((self._seed * 1_000_003 + self._round) % 2**63)

    def state(self) -> State:
        """Weights, optimiser, the number of rounds done and what was refused."""
        worker = self.worker.state()
        return State(
            worker.tensors, {"worker": dict(worker.values), "rounds": self._round, "guard": dict(self.guard.state().values)}
        )

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        self.worker.restore(State(state.tensors, state.values["worker"]))
        self._round = int(state.values["rounds"])
        self.guard.restore(State(values=state.values["guard"]))
