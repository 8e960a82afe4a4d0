"""SIGINT and SIGTERM: inside a training loop the first asks it to save and leave after the present step; the second leaves at once.

Outside of a loop (a model is loaded, held-out prompts are evaluated) there is nothing to save, and the first ends the run there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from tether.errors import Interrupted

__all__ = ["StopSignal"]


class StopSignal:
    """A context in which the two signals are ours. State: which one came, and whether a loop will look.

    Outside of the main thread, where Python cannot take signals, nothing is installed and nothing is ever asked.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        self._came: int | None = None
        self._held = False
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """True once a signal came."""
        return self._came is not None

    def hold(self) -> None:
        """From here on a loop asks after every step; a signal waits for it."""
        self._held = True

    def release(self) -> None:
        """No loop looks any more. Raises what a signal that waited asks for."""
        self._held = False
        if self.asked:
            self.leave()

    def leave(self) -> NoReturn:
        """Raise Interrupted with the exit status of the signal that came: 130 for SIGINT, 143 for SIGTERM."""
        assert self._came is not None
        raise Interrupted(128 + self._came)

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and self.asked:
            self.leave()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._came is not None:
            os._exit(128 + number)  # asked twice: at once, whatever is half done; the last checkpoint is whole
        self._came = number
        if not self._held:
            raise KeyboardInterrupt  # not an Exception, which a verifier's boundary would take for a fault of the verifier
        with suppress(OSError, RuntimeError):  # the signal came in the middle of a print, or nobody reads
            self._say("stopping: the present step is finished and saved first; a second signal stops at once")
