"""What stands around every optimiser step: numbers that are not finite, and passes that do not fit in memory.

A NaN or an infinity in a log-probability, value, advantage, loss or gradient costs the optimiser step it is in: nothing is applied, it is
counted, and the run goes on, since one bad batch must not end a night's work; ``optim.max_skipped_steps`` in a row are no accident, and
stop it with the batch kept. Three kinds of place raise at once instead. A score handed to ``learn`` by a caller is an argument: it is
refused with its row. A reward part that breaks is data (``rewards.rubric``): its rollout leaves the gradient, and too many of them stop
the run. Logits that cannot be sampled from speak of the weights, not of a batch: every later draw would fail as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from tether.backends.compute import Compute
from tether.backends.local import LocalWorker, StepReport
from tether.backends.memory_guard import MemoryGuard, Recomputable
from tether.errors import NumericsError
from tether.maths import NonFiniteError
from tether.metrics import MetricSums
from tether.run.evidence import save_evidence
from tether.state import State

__all__ = ["StepGuard"]

_LOOK_FOR = "a learning rate that is too high, overflow in bfloat16, or damaged rows"

_LOG = logging.getLogger(__name__)

Batch = Callable[[], Mapping[str, Tensor]]
"""Makes the tensors of a batch when they are to be kept."""


class StepGuard:
    """The guard of one stage. State: optimiser steps refused in a row, and what memory has asked for.

    ``models``: all that the stage trains, whose activations may be recomputed. ``folder``: where the batch of a run that stops is kept;
    None keeps nothing.
    """

    def __init__(
        self,
        compute: Compute,
        models: Sequence[Recomputable],
        max_skipped_steps: int,
        *,
        folder: Path | None = None,
        stage: str = "",
    ) -> None:
        self.memory = MemoryGuard(compute, models)
        self._limit, self._folder, self._stage = max_skipped_steps, folder, stage
        self._in_a_row = 0

    def step(self, number: int, worker: LocalWorker, passes: Callable[[MetricSums], None], batch: Batch) -> MetricSums:
        """One optimiser step of a stage whose step is one: gradients by ``passes``, then the update. Returns its metrics.

        ``passes`` is called again, with fresh metrics, where it does not fit. Raises NumericsError when this was one refusal too many.
        """

        def attempt() -> MetricSums:
            metrics = MetricSums()
            passes(metrics)
            return metrics

        try:
            metrics = self.memory.repeat(attempt, worker.discard)
        except NonFiniteError as error:
            metrics = MetricSums()
            metrics.add("loss", float("nan"))
            report = worker.refuse(str(error))
        else:
            report = worker.step()
        self.judge(report, number, batch)
        metrics.update({"grad_norm": report.grad_norm, "learning_rate": report.learning_rate, "skipped_steps": float(not report.applied)})
        return metrics

    def judge(self, report: StepReport, number: int, batch: Batch, look_for: str = _LOOK_FOR) -> None:
        """Count a refusal, or forget those before. Raises NumericsError at the last one allowed, with the batch kept, and says what may
        be the cause."""
        if report.applied:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        place = f"{self._stage}, step {number}" if self._stage else f"step {number}"
        if self._in_a_row < self._limit:
            left = f"{self._in_a_row} in a row; the run stops at optim.max_skipped_steps = {self._limit}"
            _LOG.warning("%s: the optimiser step was skipped, nothing was applied: %s (%s)", place, report.reason, left)
            return
        raise NumericsError(
            f"{place}: {self._in_a_row} optimiser steps in a row were skipped, the last because {report.reason.rstrip('.')}. "
            f"The weights are as they were before them. {self._keep(number, report.reason, batch)}"
            f"Look for {look_for}"
        )

    def state(self) -> State:
        """Refusals in a row, and what memory has asked for."""
        return State(values={"in_a_row": self._in_a_row, **self.memory.state().values})

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        self._in_a_row = int(state.values["in_a_row"])
        self.memory.restore(state)

    def _keep(self, number: int, reason: str, batch: Batch) -> str:
        """Where the batch was put, as a sentence."""
        if self._folder is None:
            return ""
        facts = {"stage": self._stage, "step": number, "reason": reason, "skipped_in_a_row": self._in_a_row}
        name = f"{self._stage or 'run'}-step-{number}"
        try:
            return f"The batch is in {save_evidence(self._folder / 'evidence' / name, batch(), facts)}. "
        except OSError as error:
            return f"The batch could not be kept ({error}). "
