"""Out of memory in a pass: the optimiser step begins again with smaller passes, and the smaller limit stays.

Losses are sums divided by counts of the whole optimiser step, so that how its rows are cut into passes changes nothing but rounding. A
step that does not fit can therefore be thrown away and repeated; one row is the smallest pass there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tether.errors import DoesNotFitError
from tether.maths import NonFiniteError
from tether.models.memory import free_memory, is_out_of_memory
from tether.pulse import beat
from tether.state import State

__all__ = ["MemoryGuard", "one_pass"]

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


class MemoryGuard:
    """Repeats what does not fit with smaller passes. State: the limit found, which may only fall."""

    def __init__(self, token_budget: int) -> None:
        self._asked = token_budget
        self.token_budget = token_budget

    def repeat(self, step: Callable[[], T], discard: Callable[[], None]) -> T:
        """``step()``, begun again after ``discard()`` while a pass does not fit. It must read ``token_budget`` anew each time.

        Each time the pass that failed is cut in two. Raises DoesNotFitError for a single row (or pair).
        """
        while True:
            try:
                return step()
            except DoesNotFitError as error:
                discard()
                if error.num_units < 2:
                    raise
                tokens = error.num_tokens
            # Only here, past the except clause, is the failed pass out of reach: its traceback held every activation.
            free_memory()
            self._lower(tokens)

    def state(self) -> State:
        """The limit, where memory has set one."""
        return State(values={"limit": None if self.token_budget == self._asked else self.token_budget})

    def restore(self, state: State) -> None:
        """Go on from ``state``: the machine that did not hold more then is taken not to hold more now."""
        limit = state.values["limit"]
        self.token_budget = self._asked if limit is None else min(self._asked, int(limit))

    def _lower(self, tokens: int) -> None:
        before, self.token_budget = self.token_budget, tokens // 2
        assert self.token_budget < before, "a pass of several rows was larger than the limit: the step did not read it anew"
        _LOG.warning(
            "a pass of %d tokens does not fit in memory: the step is repeated, and from here on a pass holds at most %d tokens instead of "
            "%d. The result is the same up to rounding; compute.token_budget = %d starts the next run there",
            tokens, self.token_budget, before, max(16, self.token_budget),
        )  # fmt: skip
