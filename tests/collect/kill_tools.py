"""Writers that are killed, for the durability tests of both kinds of database."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tether.collect.store import Store

WRITER = Path(__file__).with_name("writer.py")


def start_writer(database: str, annotator: str, pause: float = 0.05) -> subprocess.Popen[str]:
    """20 writes a second."""
    process = subprocess.Popen([sys.executable, str(WRITER), database, annotator, str(pause)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill_and_read(process: subprocess.Popen[str]) -> list[str]:
    """What the writer had acknowledged when it died of SIGKILL. A line that was cut off was not received."""
    os.kill(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    return [line.strip() for line in out.splitlines(keepends=True) if line.endswith("\n")]


def survives(database: str, kills: int, seconds: float) -> None:
    """Kill a writer again and again at random moments; after each, everything acknowledged is there once, and at most one more."""
    dice = random.Random(5)
    acknowledged: list[str] = []
    for _ in range(kills):
        process = start_writer(database, "a1")
        time.sleep(dice.uniform(0.2, 1.0) * seconds)
        acknowledged += kill_and_read(process)
        with Store.open(database) as store:
            stored = Counter(judgement.judgement_id for judgement in store.judgements(include_withdrawn=True))
            states = list(store.item_states())
        assert set(stored.values()) <= {1}
        assert not set(acknowledged) - set(stored)
        assert len(stored) - len(acknowledged) <= 1
        acknowledged = list(stored)  # what was on the disk and could not be said any more
        assert sum(state.judged for state in states) == len(stored)
    assert len(acknowledged) > kills
