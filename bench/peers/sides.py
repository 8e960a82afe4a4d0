"""A driver as a process that is loaded once and stopped dead while the other side measures.

Stopped by SIGSTOP, with everything that descends from it: no thread can spin, and neither side runs with a waiting policy that is not its
own. What else the machine did meanwhile is read from /proc/stat and kept with every measurement.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.peers import environments
from bench.peers.drivers import processes
from bench.peers.workloads import Variant

__all__ = ["Side", "SideFailed"]

_DRIVERS = Path(__file__).parent / "drivers"
_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class SideFailed(Exception):
    """A side did not answer; the message ends with the last lines of its log."""


class Side:
    """One variant, running. Use as a context manager: the process is ended on the way out."""

    def __init__(self, variant: Variant, setup: Mapping[str, Any], log: Path, timeout_s: float = 3600.0) -> None:
        self.variant, self._log, self._timeout_s = variant, log, timeout_s
        variables = _variables(variant)
        if (library := variant.variables.get("LD_PRELOAD")) and not Path(variables["LD_PRELOAD"]).is_file():
            raise SideFailed(f"{variant.name}: {library} is not there, and the loader would leave it out without a word")
        log.parent.mkdir(parents=True, exist_ok=True)
        self._errors = log.open("w")
        self._process = subprocess.Popen(
            [str(environments.ensure(variant.environment)), str(_DRIVERS / f"{variant.driver}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=variables,
            cwd=_scratch(),
            preexec_fn=_die_with_parent,
        )
        self._send({**setup, "settings": dict(variant.settings)})
        self.facts = self._answer()
        self.pause()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self, **command: Any) -> dict[str, Any]:
        """One measurement, and then stopped again. ``disturbed``: cores that others used meanwhile; ``stolen`` by the host."""
        self.resume()
        before = _machine_seconds()
        self._send({"do": "measure", **command})
        result = self._answer()
        busy, stolen = (now - then for now, then in zip(_machine_seconds(), before, strict=True))
        self.pause()
        total = result["seconds"]["total"]
        return {**result, "disturbed": max(0.0, busy - result["cpu_seconds"]) / total, "stolen": stolen / total}

    def stay(self) -> None:
        """Until now the first to be killed where memory runs out, before those that are measured already; from here on as they."""
        for pid in processes.tree(self._process.pid):
            _first_to_go(pid, 0)

    def pause(self) -> None:
        """Stop every thread of every process of this side."""
        processes.send(processes.tree(self._process.pid), signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on, children first."""
        processes.send(reversed(processes.tree(self._process.pid)), signal.SIGCONT)

    def close(self) -> None:
        """End the process and what descends from it."""
        pids = processes.tree(self._process.pid)
        processes.send(pids, signal.SIGCONT)
        with suppress(ValueError):
            self._send({"do": "stop"})
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        processes.send([pid for pid in pids if Path(f"/proc/{pid}").exists()], signal.SIGKILL)
        self._process.wait()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # who has gone gives no answer, and that is told
            self._process.stdin.write((json.dumps(message) + "\n").encode())
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            line = out.readline() if selector.select(self._timeout_s) else b""
        if not line.strip():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            killed = self._process.poll() == -signal.SIGKILL
            self.close()
            if killed:
                raise SideFailed(f"{self.variant.name}: killed (SIGKILL), as the kernel does where memory runs out")
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
            raise SideFailed(f"{self.variant.name}: no answer; {self._log} ends with\n{tail}")
        return json.loads(line)


def _die_with_parent() -> None:
    """In the child: the kernel kills it when the harness goes, however that went; a stopped process would stay for ever."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    _first_to_go("self", 1000)


def _first_to_go(pid: int | str, score: int) -> None:
    """Whom the kernel kills where memory runs out: the highest score, from 0 to 1000 above its share of memory."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))


def _variables(variant: Variant) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    fixed = {
        "OMP_NUM_THREADS": str(cores),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(environments.HOME / "huggingface"),
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONPATH": "",
    }
    own = {name: value.replace("BENCH", str(environments.HOME)) for name, value in variant.variables.items()}
    return {**os.environ, **fixed, **own}


def _scratch() -> Path:
    folder = environments.HOME / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _machine_seconds() -> tuple[float, float]:
    """(busy, stolen) processor seconds of the whole machine since it started."""
    user, nice, system, _, _, irq, soft, stolen, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / _TICK, stolen / _TICK
