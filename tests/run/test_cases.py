"""Cases of shared/cases.md about runs. G1 is in test_resume.py, G3 in reliability/test_corruption.py."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from small_runs import make_config, sections_of

from tether.config import RunConfig
from tether.run.observer import Quiet
from tether.run.pipeline import run

MIB = 2**20


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


class Measures(Quiet):
    """Memory, live tensors and the kinds of the numbers at step ends."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self.at, self.bytes, self.tensors, self.kinds = at, {}, {}, set()

    def step(self, stage, step, metrics):
        self.kinds |= {type(value) for value in metrics.values()}
        if step in self.at:
            gc.collect()
            self.bytes[step] = resident_bytes()
            self.tensors[step] = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("kind", ["sft", pytest.param("grpo", marks=pytest.mark.long)])
def test_case_K1_memory_does_not_grow_over_300_steps(kind, tmp_path):
    sections, _, _ = sections_of(kind, tmp_path)
    if kind == "sft":
        sections["sft"] |= {"batch_size": 1, "epochs": 50}
    else:
        sections["rl"]["a"] |= {"steps": 300, "prompts_per_step": 1, "samples_per_prompt": 2}
        sections["rl"]["a"]["sampling"]["max_new_tokens"] = 2
    seen = Measures((100, 150, 200, 250, 300))
    run(RunConfig.model_validate(make_config(tmp_path, **sections) | {"checkpoint": {"every": 0}}), observer=seen)
    assert seen.kinds == {float}
    assert len(set(seen.tensors.values())) == 1, seen.tensors
    assert seen.bytes[300] - seen.bytes[100] <= 5 * MIB, seen.bytes
