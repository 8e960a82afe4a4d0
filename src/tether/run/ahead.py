"""The answers of the next round, drawn while the present one is learned from (``rollouts_ahead = 1``).

    round t:  take the answers of t                begin those of t + 1, by the weights that the sampler holds: those after round t - 1
              learn from them                      ... are drawn, in a thread of their own ...
              wait until all are there, then publish the weights after round t

So the answers of round t were drawn by the weights after round t - 2 (the start's in the first two rounds), whichever side is faster: a
run is still a function of its configuration. Nothing is written to the weights that draw: they are a ``Snapshot``, taken at a publish.

Between two rounds whole answers wait, and a checkpoint keeps those rather than the older weights that drew them: 16 bytes a token instead
of 4 a weight, and nothing has to be drawn again. What a crash interrupts is drawn by weights that the checkpoint has, since sampler
and trainer hold the same ones there. The journal keeps what was finished of it, as ever.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch

from tether.data.batches import pad_examples
from tether.metrics import MetricSums
from tether.models.memory import free_memory, is_out_of_memory
from tether.models.snapshot import Snapshot
from tether.pulse import beat, stop_at_beats
from tether.run.describe import describe_agreement
from tether.run.rows import RolloutRow, drawn_logprobs, rows_of, state_of_rows
from tether.state import State
from tether.text.chat import sampled_example

__all__ = ["AnswersAhead", "Collected", "compare_with_snapshot"]

_PATIENCE_S = 30.0  # for a reward that is asked when the run stops; what draws hears of it at the next token
_COMPARED_TOKENS = 2048  # padded, in one pass

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collected:
    """The answers of a round, scored: ``rows`` to learn from, ``samples`` for the log, and the metrics so far."""

    rows: Sequence[RolloutRow]
    samples: Sequence[Mapping[str, Any]]
    metrics: MetricSums


class AnswersAhead:
    """Gives a loop the answers of its rounds, by ``collect``, which is called for one round at a time. State: the answers that wait.

    A context: leaving it ends what is still drawn. With ``rounds_ahead`` 0 nothing is drawn but what is asked for.
    """

    def __init__(self, collect: Callable[[int], Collected], rounds_ahead: int, num_rounds: int) -> None:
        self._collect, self._ahead, self._last = collect, rounds_ahead > 0, num_rounds
        self._waiting: Collected | None = None
        self._drawing: _Drawing | None = None

    def take(self, step: int) -> Collected:
        """The answers of ``step``. Those of the next round are drawn from here until ``settle``."""
        waiting, self._waiting = self._waiting, None
        collected = self._collect(step) if waiting is None else waiting
        if self._ahead and step < self._last:
            self._drawing = _Drawing(self._collect, step + 1)
        return collected

    def settle(self) -> dict[str, float]:
        """Wait until nothing is drawn, so that weights can be published; the metrics of that.

        Raises what ended the drawing, with a note of where. The round that was learned meanwhile is lost with it: without the answers of
        the next there is nothing to save that could go on exactly.
        """
        if self._drawing is None:
            return {}
        started = time.perf_counter()
        self._waiting = self._drawing.result()
        self._drawing = None
        return {"draw_wait_seconds": time.perf_counter() - started}

    def state(self) -> State:
        """The answers that wait; nothing where there are none. Times are not kept."""
        if self._waiting is None:
            return State()
        rows = state_of_rows(self._waiting.rows)
        sums = {name: pair for name, pair in self._waiting.metrics.sums().items() if not name.endswith("seconds")}
        told = json.dumps({"samples": list(self._waiting.samples), "metrics": sums})  # a text: it may hold NaN
        return State(rows.tensors, {"rows": dict(rows.values), "told": told})

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        if not state.values:
            self._waiting = None
            return
        told = json.loads(state.values["told"])
        rows = rows_of(State(state.tensors, state.values["rows"]))
        self._waiting = Collected(rows, told["samples"], MetricSums.of(told["metrics"]))

    def __enter__(self) -> AnswersAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawing is not None:
            self._drawing.stop()


class _Drawing:
    """One round in the making. A daemon: a reward that hangs must not keep the process from ending."""

    def __init__(self, collect: Callable[[int], Collected], step: int) -> None:
        self._step = step
        self._result: Future[Collected] = Future()
        self._stopped = threading.Event()
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work, collect), name=f"tether-answers-{step}", daemon=True)
        self._thread.start()

    def result(self) -> Collected:
        beat(f"the answers of step {self._step}, drawn ahead")  # the loop waits for them from here on
        error = self._result.exception()
        if error is not None:
            error.add_note(f"This ended the drawing of the answers of step {self._step}, beside the update of step {self._step - 1} "
                           "(rollouts_ahead = 1); the update was stopped with it")  # fmt: skip
            raise error
        return self._result.result()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            _LOG.warning("the drawing of the answers of step %d did not stop within %.0f s and is left: a reward?", self._step, _PATIENCE_S)

    def _work(self, collect: Callable[[int], Collected]) -> None:
        stop_at_beats(self._stopped)
        torch.autocast_increment_nesting()  # the last to leave an autocast empties the casts of ALL threads: here nobody is the last
        try:
            collected = collect(self._step)
            beat(f"the update of step {self._step - 1}; the answers of step {self._step} are drawn")
        except BaseException as error:  # raised again where the answers are taken
            self._result.set_exception(error)
        else:
            self._result.set_result(collected)


def compare_with_snapshot(metrics: MetricSums, rows: Sequence[RolloutRow], snapshot: Snapshot, temperature: float) -> None:
    """What the sampler reported against the trainer's pass by the very weights that drew: of the first answers, what fits one pass."""
    examples = [sampled_example(row.query_ids, row.response_ids) for row in rows]
    width = max((len(example.token_ids) for example in examples), default=1)
    count = min(len(rows), max(1, _COMPARED_TOKENS // width))
    while count:
        beat(f"a pass of {count} answers by the weights that drew them")
        texts = pad_examples(examples[:count], snapshot.policy.format.pad_id).to(snapshot.policy.device)
        try:
            trainer_BT = snapshot.logprobs(texts, temperature)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            describe_agreement(metrics, drawn_logprobs(texts.response_mask_BT, rows[:count]), trainer_BT, texts.response_mask_BT)
            return
        free_memory()
        count //= 2
    if rows:
        _LOG.warning("sampler and trainer could not be compared on the answers of a round: not even one of them fits beside the update")
