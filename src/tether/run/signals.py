"""The first SIGINT or SIGTERM asks the run to save and leave after the present step; the second leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from tether.errors import Interrupted

__all__ = ["StopSignal"]


class StopSignal:
    """A context in which the two signals are ours. State: which one came.

    Outside of the main thread, where Python cannot take signals, nothing is installed and nothing is ever asked.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        self._came: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """True once a signal came."""
        return self._came is not None

    def leave(self) -> NoReturn:
        """Raise Interrupted with the exit status of the signal that came: 130 for SIGINT, 143 for SIGTERM."""
        assert self._came is not None
        raise Interrupted(128 + self._came)

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._came is not None:
            os._exit(128 + number)  # asked twice: at once, whatever is half done; the last checkpoint is whole
        self._came = number
        self._say("stopping: the present step is finished and saved first; a second signal stops at once")
