"""The newest page of a run folder. A log that grows while it is read, a run that ends and a folder that goes away are all in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tether.errors import RunError
from tether.report.page import render_main
from tether.report.read import RunRecord, read_run

__all__ = ["Live", "Snapshot"]

_SHARE = 4  # a page that took t seconds to build is kept at least _SHARE x t seconds, so that a huge log cannot fill a core
_FILES = ("config.json", "environment.json", "events.jsonl", "evaluation.json")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A page: its ``version`` changes when its files change; ``state`` says in one sentence what the reader looks at."""

    version: str
    name: str
    main: str
    state: str


class Live:
    """Snapshots of one run. State: the last one, what the files looked like then, and when the next may be built."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = _signature(folder)
        self._count = 0
        self._last = self._build()  # RunError where there is no run: before anything is served
        self._not_before = 0.0

    def snapshot(self) -> Snapshot:
        """The newest page. When the run can no longer be read, the last one, and its state says so."""
        with self._lock:
            found, started = _signature(self.folder), self._clock()
            if found != self._seen and started >= self._not_before:
                self._seen = found
                self._count += 1
                try:
                    self._last = self._build()
                except RunError as error:
                    last = self._last
                    self._last = Snapshot(str(self._count), last.name, last.main, f"The run is gone: {error}. This is its last state.")
                self._not_before = self._clock() + _SHARE * (self._clock() - started)
            return self._last

    def _build(self) -> Snapshot:
        run = read_run(self.folder)
        return Snapshot(str(self._count), run.name, render_main(run), _state(run))


def _state(run: RunRecord) -> str:
    """Example: "Live: rl.ppo, step 7 of 16."."""
    if run.state != "unfinished":
        return f"The run is {run.state}; this page goes on when it does."
    stage = run.stages[-1] if run.stages else None
    if stage is None:
        return "Live: the run has logged no stage yet."
    done = max((points[-1][0] for points in stage.curves.values()), default=0)
    return f"Live: {stage.name}, step {done}{f' of {stage.num_steps}' if stage.num_steps else ''}."


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of every file that the page is made from."""
    paths = [folder / name for name in _FILES]
    for pattern in ("*/stage.json", "checkpoints/*/*/manifest.json"):
        paths += sorted(folder.glob(pattern))
    return tuple(found for path in paths if (found := _file(path)) is not None)


def _file(path: Path) -> tuple[str, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return str(path), stat.st_size, stat.st_mtime_ns
