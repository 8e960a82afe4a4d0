"""R15, K1: a long run holds what it held at its beginning: memory, tensors, files, threads, children; what it keeps are plain numbers."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tether.config import RunConfig
from tether.records import write_jsonl
from tether.run.observer import Quiet
from tether.run.pipeline import run

KIB = 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children() -> int:
    return sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))


class Gauge(Quiet):
    """Reads the meters at the end of steps: memory after each, the rest every 50, right before a checkpoint is due."""

    def __init__(self):
        self.memory, self.counts, self.kinds = [], [], set()

    def step(self, stage, step, metrics):
        self.memory.append(resident_bytes())
        self.kinds |= {type(value) for value in metrics.values()}
        if step % 50 == 49:
            gc.collect()
            tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
            self.counts.append((len(os.listdir("/proc/self/fd")), threading.active_count(), tensors))


def soak(folder: Path, steps: int) -> Gauge:
    write_jsonl(folder / "prompts.jsonl", [{"prompt": f"Say {i}."} for i in range(8)])
    stage = {"kind": "grpo", "prompts": {"path": str(folder / "prompts.jsonl")}, "steps": steps, "prompts_per_step": 2,
             "samples_per_prompt": 2, "sampling": {"max_new_tokens": 4},
             "rewards": [{"kind": "length", "params": {"low": 1, "high": 3, "falloff": 4}}]}  # fmt: skip
    config = {"name": "soak", "output": str(folder / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
              "checkpoint": {"every": 50}, "rl": {"a": stage}}  # fmt: skip
    gauge = Gauge()
    run(RunConfig.model_validate(config), observer=gauge)
    assert len(gauge.memory) == steps
    return gauge


def check_counts(gauge: Gauge, before: int) -> None:
    assert len(set(gauge.counts[1:])) == 1, gauge.counts  # open files, threads and live tensors; the first may still warm up
    assert gauge.kinds <= {int, float}
    gc.collect()
    assert children() == before


@pytest.mark.slow
def test_k1_r15_short(tmp_path):
    before = children()
    gauge = soak(tmp_path, 150)
    check_counts(gauge, before)
    assert gauge.memory[-1] - gauge.memory[49] <= 5 * KIB * KIB


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_r15_two_thousand_steps(tmp_path):
    before = children()
    gauge = soak(tmp_path, 2000)
    check_counts(gauge, before)
    late = np.array(gauge.memory[200:], dtype=float)
    slope = np.polyfit(np.arange(len(late)), late, 1)[0]
    print(f"memory grows by {slope / KIB:.2f} KiB a step after step 200; {late[-1] - late[0]:.0f} bytes in all")
    assert slope <= 10 * KIB
