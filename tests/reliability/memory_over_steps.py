"""Case K1 of shared/cases.md, measured: what a run of 300 steps holds at some of its steps."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from small_runs import make_config, sections_of

from tether.config import RunConfig
from tether.run.observer import Quiet
from tether.run.pipeline import run


class Measures(Quiet):
    """Memory, live tensors and the kinds of the numbers at step ends."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self.at, self.bytes, self.tensors, self.kinds = at, {}, {}, set()

    def step(self, stage, step, metrics):
        self.kinds |= {type(value) for value in metrics.values()}
        if step in self.at:
            gc.collect()
            self.bytes[step] = _resident_bytes()
            self.tensors[step] = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def measure(kind: str, folder: Path) -> Measures:
    """The measures of one run of 300 steps in `folder`; `kind` is sft or grpo."""
    torch.set_num_threads(1)
    sections, _, _ = sections_of(kind, folder)
    if kind == "sft":
        sections["sft"] |= {"batch_size": 1, "epochs": 50}
    else:
        sections["rl"]["a"] |= {"steps": 300, "prompts_per_step": 1, "samples_per_prompt": 2}
        sections["rl"]["a"]["sampling"]["max_new_tokens"] = 2
    seen = Measures((100, 150, 200, 250, 300))
    run(RunConfig.model_validate(make_config(folder, **sections) | {"checkpoint": {"every": 0}}), observer=seen)
    return seen


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
