"""Out of memory in a pass: the optimiser step begins again with smaller passes, then with recomputed activations, and that stays so.

Losses are sums divided by counts of the whole optimiser step, so that how its rows are cut into passes changes nothing but rounding. A
step that does not fit can therefore be thrown away and repeated. One row is the smallest pass there is; where it does not fit, what its
layers keep for the backward pass is computed there a second time instead, which changes no number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from tether.backends.compute import Compute
from tether.errors import DoesNotFitError, ModelError
from tether.maths import NonFiniteError
from tether.models.memory import free_memory, is_out_of_memory
from tether.pulse import beat
from tether.state import State

__all__ = ["MemoryGuard", "Recomputable", "one_pass"]

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


@contextmanager
def one_pass(units: Sequence[int], tokens: int) -> Iterator[None]:
    """Forward and backward of one microbatch: rows or pairs ``units`` of the step, ``tokens`` padded tokens.

    Raises DoesNotFitError where memory runs out, and a NonFiniteError with the row of the step instead of that of the microbatch.
    """
    beat(f"a pass of {tokens} tokens")
    try:
        yield
    except DoesNotFitError:
        raise
    except NonFiniteError as error:
        row = units[error.row] if error.row < len(units) else error.row
        raise NonFiniteError(error.name, row, error.column, error.value) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise DoesNotFitError(len(units), tokens) from error


class Recomputable(Protocol):
    """A model that is trained."""

    def enable_activation_checkpointing(self) -> None:
        """Recompute activations in the backward pass from here on. Raises ModelError where the model cannot."""
        ...


class MemoryGuard:
    """Repeats what does not fit with smaller passes, and a single row with recomputed activations where ``compute`` allows it.

    ``models``: all that are trained. State: the limit found, which may only fall, and whether memory asked for recomputation.
    """

    def __init__(self, compute: Compute, models: Sequence[Recomputable]) -> None:
        self._asked = self.token_budget = compute.token_budget
        self._models, self._choice = models, compute.activation_checkpointing
        self._by_need = False
        if self._choice is True:
            self._recompute()

    def repeat(self, step: Callable[[], T], discard: Callable[[], None]) -> T:
        """``step()``, begun again after ``discard()`` while a pass does not fit. It must read ``token_budget`` anew each time.

        Each time the pass that failed is cut in two; a single row (or pair) is tried once more with recomputed activations. Raises
        DoesNotFitError where that is no help, or not allowed.
        """
        while True:
            try:
                return step()
            except DoesNotFitError as error:
                discard()
                units, tokens = error.num_units, error.num_tokens
                if units < 2 and (self._by_need or self._choice != "auto"):
                    raise DoesNotFitError(units, tokens, "off" if self._choice is False else "on") from error
            # Only here, past the except clause, is the failed pass out of reach: its traceback held every activation.
            free_memory()
            if units < 2:
                self._recompute_by_need(units, tokens)
            else:
                self._lower(tokens)

    def state(self) -> State:
        """The limit, where memory has set one, and whether it asked for recomputation."""
        limit = None if self.token_budget == self._asked else self.token_budget
        return State(values={"limit": limit, "recomputing": self._by_need})

    def restore(self, state: State) -> None:
        """Go on from ``state``: the machine that did not hold more then is taken not to hold more now."""
        limit = state.values["limit"]
        self.token_budget = self._asked if limit is None else min(self._asked, int(limit))
        if state.values.get("recomputing", False) and self._choice == "auto" and not self._by_need:
            self._recompute()
            self._by_need = True

    def _recompute(self) -> None:
        for model in self._models:
            model.enable_activation_checkpointing()

    def _recompute_by_need(self, units: int, tokens: int) -> None:
        try:
            self._recompute()
        except ModelError as error:
            raise DoesNotFitError(units, tokens, "impossible") from error
        self._by_need = True
        _LOG.warning(
            "a single row (or pair) of %d tokens does not fit in memory: the step is repeated, and from here on activations are recomputed "
            "in the backward pass. The result is the same, a step takes about a third more time; compute.activation_checkpointing = true "
            "starts the next run there",
            tokens,
        )

    def _lower(self, tokens: int) -> None:
        before, self.token_budget = self.token_budget, tokens // 2
        assert self.token_budget < before, "a pass of several rows was larger than the limit: the step did not read it anew"
        _LOG.warning(
            "a pass of %d tokens does not fit in memory: the step is repeated, and from here on a pass holds at most %d tokens instead of "
            "%d. The result is the same up to rounding; compute.token_budget = %d starts the next run there",
            tokens, self.token_budget, before, max(16, self.token_budget),
        )  # fmt: skip
