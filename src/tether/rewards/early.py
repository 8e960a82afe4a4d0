"""Scores that are asked for while other answers are still generated: for parts that wait for something outside of this process.

A part declares it by ``early_workers``, the number of its calls that may run at once. Every rollout is handed to it the moment it is
finished, one rollout a call, in threads that this object owns; the loop takes the results when it would have asked for them. Totals, order,
failures and errors are those of asking afterwards, since nothing is decided here: a result, and an exception too, waits in its place.

Other parts are asked afterwards as ever. One that computes in this process (a rule, a reward model) would only take time from the sampler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import SimpleQueue

from tether.pulse import beat
from tether.rewards.rubric import RewardPart, Rubric, num_early_workers, score_part
from tether.types import Failure, Rollout, Score, StopReason

__all__ = ["EarlyScores"]

_Result = Future[Score | Failure]


class EarlyScores:
    """The early scores of one batch of rollouts: a context that owns the threads. State: what was handed over, and its results.

    Leaving without an error waits for the threads, which have nothing left to do. With one (an interruption, a broken sampler) calls that
    did not begin never do, and those under way are left to end by themselves: nobody waits for a slow judge to stop a run.
    """

    def __init__(self, rubric: Rubric) -> None:
        self._clock = _BusyClock()
        workers = {name: num_early_workers(part) for name, _, part in rubric.parts}
        self._crews = {name: _Crew(name, part, workers[name], self._clock) for name, _, part in rubric.parts if workers[name]}

    @property
    def names(self) -> frozenset[str]:
        """The parts that are asked early."""
        return frozenset(self._crews)

    def hand_over(self, rollout: Rollout) -> None:
        """``rollout`` is finished. One that the engine aborted is shown to no part."""
        if rollout.completion.stop_reason is not StopReason.ABORT:
            for crew in self._crews.values():
                crew.ask(rollout)

    def busy_s(self) -> float:
        """Seconds until now in which at least one early call ran; two at once count once."""
        return self._clock.seconds()

    def results(self, name: str, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        """What part ``name`` says of ``rollouts``, in their order; waits for it, and asks for those that were not handed over.

        Raises what ends a run (see ``score_part``) for the first rollout that met it.
        """
        return self._crews[name].results(rollouts)

    def __enter__(self) -> EarlyScores:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for crew in self._crews.values():
            crew.dismiss(wait=kind is None)


class _Crew:
    """The threads of one part. They are daemons, unlike those of an executor: a call that hangs must not keep the process from ending."""

    def __init__(self, name: str, part: RewardPart, workers: int, clock: _BusyClock) -> None:
        self._name, self._part, self._workers, self._clock = name, part, workers, clock
        self._asked: dict[int, tuple[Rollout, _Result]] = {}  # by identity, which lasts as long as the rollout is held here
        self._waiting: SimpleQueue[tuple[Context, Rollout, _Result] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def ask(self, rollout: Rollout) -> _Result:
        """The result to come, asked for once per rollout."""
        if id(rollout) not in self._asked:
            self._hire()
            result: _Result = Future()
            self._asked[id(rollout)] = (rollout, result)
            self._waiting.put((copy_context(), rollout, result))
        return self._asked[id(rollout)][1]

    def results(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        told: list[Score | Failure] = []
        for result in [self.ask(rollout) for rollout in rollouts]:
            beat(f"reward part {self._name!r}")  # what the loop waits for now: the call itself may have begun long ago
            told.append(result.result())
        return told

    def dismiss(self, *, wait: bool) -> None:
        """No call begins from here on."""
        for _, result in self._asked.values():
            result.cancel()
        for _ in self._threads:
            self._waiting.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _hire(self) -> None:
        if len(self._threads) < self._workers:
            name = f"tether-reward-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            context, rollout, result = task
            if not result.set_running_or_notify_cancel():
                continue
            try:
                with self._clock:
                    (scored,) = context.run(score_part, self._name, self._part, [rollout])
            except BaseException as error:  # raised again where the result is taken
                result.set_exception(error)
            else:
                result.set_result(scored)


class _BusyClock:
    """Seconds in which at least one holder is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._since, self._total = 0, 0.0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._since = time.perf_counter()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._total += time.perf_counter() - self._since

    def seconds(self) -> float:
        with self._lock:
            return self._total + (time.perf_counter() - self._since if self._inside else 0.0)
