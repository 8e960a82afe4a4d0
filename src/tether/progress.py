"""What a run shows while it works: a live display on a terminal, plain lines elsewhere, nothing when quiet.

Each class is an observer of the run: it is told of stages, steps and messages, and changes nothing.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from tether.metrics import describe

__all__ = ["LiveProgress", "PlainProgress", "Progress", "QuietProgress", "choose_progress", "headline"]

# (metric, label): the first of each line that a step reports is shown, in this order.
_HEADLINES: tuple[tuple[tuple[str, str], ...], ...] = (
    (("reward", "reward"), ("pair_accuracy", "accuracy"), ("implied_accuracy", "accuracy"), ("loss", "loss")),
    (("kl_k1_sequence", "KL"), ("kl_k3_token", "KL"), ("kl_k1_token", "KL"), ("token_accuracy", "accuracy")),
    (("tokens_per_second", ""),),
)
_UNIT_SHOWN = {"kl_k1_sequence", "kl_k3_token", "kl_k1_token", "tokens_per_second"}


class Progress(Protocol):
    """An observer that is opened for the length of a run."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def stage_started(self, stage: str, num_steps: int) -> None: ...
    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None: ...
    def stage_finished(self, stage: str, summary: Mapping[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...


def choose_progress(quiet: bool, stream: TextIO | None = None) -> Progress:
    """Quiet, live or plain: by the flag, then by whether ``stream`` (stdout) is a terminal."""
    out = stream or sys.stdout
    if quiet:
        return QuietProgress()
    if not out.isatty():
        return PlainProgress(out)
    from rich.console import Console

    console = Console(file=out)
    return (
        LiveProgress(console) if console.is_terminal and not console.is_dumb_terminal else PlainProgress(out)
    )


def headline(metrics: Mapping[str, float]) -> str:
    """The few numbers of a step that are read while it runs, with units where they could be mistaken.

    Example: {"reward": 0.5, "kl_k1_sequence": 1.25} -> "reward 0.5  KL 1.25 nats per sequence".
    """
    shown: list[str] = []
    for choices in _HEADLINES:
        found = next(((name, label) for name, label in choices if name in metrics), None)
        if found:
            name, label = found
            unit = describe(name).unit if name in _UNIT_SHOWN else ""
            shown.append(" ".join(part for part in (label, _number(metrics[name]), unit) if part))
    return "  ".join(shown)


def _number(value: float) -> str:
    return f"{value:z,.0f}" if abs(value) >= 1000 else f"{value:z.3g}"


def _duration(seconds: float) -> str:
    """90 -> "1 min 30 s"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _summary_text(summary: Mapping[str, Any]) -> str:
    """The plain values of a stage's summary; nested ones and hashes are left to the report."""
    shown = []
    for key, value in summary.items():
        if key.endswith("_sha256"):
            continue
        if isinstance(value, float):
            shown.append(f"{key} {_number(value)}")
        elif isinstance(value, int | str):
            shown.append(f"{key} {value}")
    return ", ".join(shown)


class _StageClock:
    """Time left in a stage. State: its beginning and the steps done here (a resumed stage begins late)."""

    def __init__(self, num_steps: int, now: float) -> None:
        self.num_steps = num_steps
        self._began = now
        self._seen = 0

    def of(self, step: int) -> str:
        """``3/20``, or ``3`` where the length of the stage is unknown."""
        return f"{step}/{self.num_steps}" if self.num_steps else str(step)

    def elapsed(self, now: float) -> float:
        return now - self._began

    def eta(self, step: int, now: float) -> str:
        """Time until the end at the mean pace so far; call once per step."""
        self._seen += 1
        left = (now - self._began) / self._seen * max(0, self.num_steps - step)
        return f"ETA {_duration(left)}" if self.num_steps else ""


class QuietProgress:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stage_started(self, stage: str, num_steps: int) -> None:
        pass

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def stage_finished(self, stage: str, summary: Mapping[str, Any]) -> None:
        pass

    def message(self, text: str) -> None:
        pass


class PlainProgress:
    """One line per step, ``interval_s`` apart; a stage's last step always shows. State: the stage's clock.

    A reader that is gone, or does not read, loses lines: it never stops or holds up the run.
    """

    def __init__(
        self, stream: TextIO, *, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._now = clock
        self._stage = _StageClock(0, clock())
        self._last_line = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stage_started(self, stage: str, num_steps: int) -> None:
        self._stage = _StageClock(num_steps, self._now())
        self._last_line = float("-inf")
        steps = f": {num_steps} {'step' if num_steps == 1 else 'steps'}" if num_steps else ""
        self.message(stage + steps)

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        now = self._now()
        eta = self._stage.eta(step, now)
        if now - self._last_line < self._interval_s and step != self._stage.num_steps:
            return
        self._last_line = now
        parts = [f"{stage} {self._stage.of(step)}", headline(metrics), eta]
        self.message("  ".join(part for part in parts if part))

    def stage_finished(self, stage: str, summary: Mapping[str, Any]) -> None:
        text = _summary_text(summary)
        self.message(
            f"{stage}: done in {_duration(self._stage.elapsed(self._now()))}" + (f": {text}" if text else "")
        )

    def message(self, text: str) -> None:
        line = text + "\n"
        try:
            for start in range(0, len(line), _PIECE):
                if _would_block(self._stream):
                    return
                self._stream.write(line[start : start + _PIECE])
                self._stream.flush()
        except OSError:
            return


_PIECE = 1000  # characters: at most the 4096 bytes that a pipe takes at once where it takes any


def _would_block(stream: TextIO) -> bool:
    """True for a pipe that is full, because nobody reads its other end."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # no file of the system behind it
        return False
    return not poll.poll(0)


class LiveProgress:
    """A bar for the stage at work, its newest numbers below, finished stages above. State: the display."""

    def __init__(self, console: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live

        self._console = console
        self._now = clock
        self._stage = _StageClock(0, clock())
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update("")
        self._live.stop()

    def stage_started(self, stage: str, num_steps: int) -> None:
        self._stage = _StageClock(num_steps, self._now())
        self._draw(stage, 0, "starting", "")

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._draw(stage, step, headline(metrics), self._stage.eta(step, self._now()))

    def stage_finished(self, stage: str, summary: Mapping[str, Any]) -> None:
        text = _summary_text(summary)
        self.message(
            f"{stage}: done in {_duration(self._stage.elapsed(self._now()))}" + (f": {text}" if text else "")
        )
        self._live.update("")

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def _draw(self, stage: str, step: int, numbers: str, eta: str) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self._stage.num_steps), completed=step, width=24)
        row.add_row(Text(stage, style="bold"), bar, Text(self._stage.of(step)), Text(eta, style="cyan"))
        self._live.update(Group(row, Text(numbers)), refresh=True)
