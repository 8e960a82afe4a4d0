"""R1: a tiny training that is killed again and again at random moments (SIGKILL), resumed each time, and compared with one left alone.

    python -m bench.kill_test [--kills 200] [--kind sft|grpo|ppo|...] [--seed 0] [--folder DIR]

Each kill comes at a random time after the process began to train. Counted: newest checkpoints that could not be read (must be 0), steps
lost beyond one interval of checkpoints (0), and whether the weights and the log at the end are those of the unbroken run, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "reliability"))

from small_runs import assert_same, make_config, sections_of

from tether.config import RunConfig
from tether.events import read_events
from tether.run.checkpoint import read_checkpoint
from tether.run.observer import Quiet
from tether.run.pipeline import run

EVERY = 2
DELAY_S = 0.01  # per step, so that the run lasts longer than a kill takes


@dataclass
class Tally:
    """What 200 kills did."""

    kills: int = 0
    kills_before_the_first_checkpoint: int = 0
    kills_after_the_stage_was_finished: int = 0
    unreadable_newest: int = 0
    leftovers_seen: int = 0
    largest_loss_steps: int = 0
    losses_beyond_an_interval: int = 0
    equal: bool = False


class Slow(Quiet):
    """A step takes at least so long."""

    def step(self, stage, step, metrics):
        time.sleep(DELAY_S)


def config_of(kind: str, folder: Path, name: str, steps: int) -> tuple[RunConfig, str]:
    sections, stage, _ = sections_of(kind, folder)
    if "rl" in sections:
        sections["rl"]["a"]["steps"] = steps
    elif "direct" in sections:
        sections["direct"]["d"]["epochs"] = max(1, steps // 3)
    else:
        sections[kind]["epochs"] = max(1, steps // 2)
    return RunConfig.model_validate(make_config(folder, **sections) | {"name": name, "checkpoint": {"every": EVERY}}), stage


def logged_step(config: RunConfig, stage: str) -> int:
    """The step that the weights of the last process had come to."""
    last = 0
    for event in read_events(config.folder / "events.jsonl"):
        if event.get("stage") == stage and event["kind"] in {"step", "resumed"}:
            last = event["step"]
        elif event.get("stage") == stage and event["kind"] == "stage_started":
            last = 0
    return last


def killed_after(config: RunConfig, delay_s: float) -> bool:
    """Run in a forked process, killed so long after its beginning; False where it came to its end before."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run(config, observer=Slow())
            status = 0
        finally:
            os._exit(status)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in {0, -signal.SIGKILL}:
        raise RuntimeError(f"the run ended with status {status} instead of being killed")
    return status != 0


def look(config: RunConfig, stage: str, tally: Tally) -> None:
    """After a kill: is the newest checkpoint whole, and how many steps are to be repeated?"""
    tally.kills += 1
    if (config.folder / stage / "stage.json").exists():  # its checkpoints are being removed: nothing will be resumed from them
        tally.kills_after_the_stage_was_finished += 1
        return
    saved = config.folder / "checkpoints" / stage
    folders = sorted(saved.glob("step-*"), reverse=True) if saved.is_dir() else []
    tally.leftovers_seen += any(saved.glob(".tmp-*")) if saved.is_dir() else 0
    step = 0
    if folders:
        try:
            step = read_checkpoint(folders[0]).step
        except Exception as error:
            print(f"unreadable: {error}")
            tally.unreadable_newest += 1
    else:
        tally.kills_before_the_first_checkpoint += 1
    lost = logged_step(config, stage) - step
    tally.largest_loss_steps = max(tally.largest_loss_steps, lost)
    # A save is written while the next steps run: what is lost is an interval, and at most one more that was being written.
    tally.losses_beyond_an_interval += lost > 2 * EVERY


def kill_test(kind: str, kills: int, seed: int, folder: Path, steps: int = 60) -> Tally:
    """Kill, look, resume; when a run has come to its end, begin another; compare every finished one."""
    draw = random.Random(seed)
    whole, stage = config_of(kind, folder, "whole", steps)
    began = time.monotonic()
    run(whole, observer=Slow())
    length_s = time.monotonic() - began
    tally, number = Tally(equal=True), 0
    config, _ = config_of(kind, folder, "broken-0", steps)
    while tally.kills < kills:
        if killed_after(config, draw.uniform(0, length_s)):
            look(config, stage, tally)
            continue
        number += 1
        assert_same(whole.folder, config.folder, stage)
        config, _ = config_of(kind, folder, f"broken-{number}", steps)
    run(config)
    assert_same(whole.folder, config.folder, stage)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kind", default="sft")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        print(json.dumps({"kind": given.kind, **asdict(kill_test(given.kind, given.kills, given.seed, Path(scratch)))}))


if __name__ == "__main__":
    main()
