"""Limits for a chat template, which is a program that comes with a model.

transformers renders it in jinja2's immutable sandbox: no attribute that leads to Python's insides, no range over 100,000. What the sandbox
does not limit is time: nested loops run for hours, and a power of large numbers cannot even be interrupted. Hence the two limits here.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from jinja2 import Environment, TemplateError, TemplateSyntaxError

__all__ = ["refuse_powers", "template_limits"]

_SECONDS = 0.7  # of processor time, so that a busy machine raises no alarm; a long conversation takes some hundredths
_POLL_S = 0.1


class _Expired(BaseException):
    """Not an Exception, so that nothing on the way out takes it for a fault of its own."""


@lru_cache(maxsize=32)
def refuse_powers(template: str) -> None:
    """Raise TemplateError for a template that uses the operator ``**``, with which a single step can take hours."""
    try:
        found = any(kind == "operator" and value == "**" for _, kind, value in Environment().lex(template))
    except TemplateSyntaxError:
        return  # the renderer says it better
    if found:
        raise TemplateError("it uses the operator **, which no chat template needs and which can stop the machine")


@contextmanager
def template_limits(seconds: float = _SECONDS) -> Iterator[None]:
    """A block of Python code that may use so much processor time. Raises TemplateError where it uses more or recurses without end."""
    watch = _Watch(seconds)
    try:
        try:
            yield
        finally:
            watch.close()
    except _Expired:
        raise TemplateError(f"it was still running after {seconds:g} s of processor time") from None
    except RecursionError:
        raise TemplateError("it calls itself without end") from None
    except (OverflowError, MemoryError) as error:
        raise TemplateError(f"it asks for too much: {error or 'memory'}") from None


class _Watch:
    """A thread that ends the block of the thread that made it. State: whether the block is over, and whether it was ended."""

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._deadline = time.clock_gettime(self._clock) + seconds
        self._over, self._lock, self._fired = threading.Event(), threading.Lock(), False
        threading.Thread(target=self._run, name="tether-template-limit", daemon=True).start()

    def close(self) -> None:
        """The block is over; an exception on its way into it is taken back, and raised here where it can be caught."""
        with self._lock:
            self._over.set()
        if self._fired:
            _raise_in(self._thread, None)
            raise _Expired

    def _run(self) -> None:
        while not self._over.wait(_POLL_S):
            if time.clock_gettime(self._clock) < self._deadline:
                continue
            with self._lock:
                if not self._over.is_set():
                    self._fired = True
                    _raise_in(self._thread, _Expired)
            return


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
