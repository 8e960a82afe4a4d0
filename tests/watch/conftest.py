"""A run that is being written, step by step, without training anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tether.events import EventLog

CONFIG = {
    "name": "toy",
    "output": "runs",
    "model": {"path": "tiny"},
    "evaluate": {"score": "exact"},
    "rl": {"ppo": {"kind": "ppo", "prompts": {"path": "p.jsonl"}, "kl": {"beta": 0.05, "where": "reward"}}},
}


class Running:
    """A run folder whose log grows. State: the log and the step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.step = folder, 0
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        self.log = EventLog(folder / "events.jsonl")
        self.log.write("run_started", name="toy")
        self.log.write("stage_started", stage="rl.ppo", num_steps=40)

    def go(self, steps: int = 1, text: str = "an answer") -> None:
        """The next steps."""
        for _ in range(steps):
            self.step += 1
            part = self.step / 40
            numbers = {"reward": part * (2 - part), "kl_k1_sequence": 4 * part * part, "kl_k1_token": 0.1 * part, "entropy": 2 - part}
            self.log.write("step", stage="rl.ppo", step=self.step, num_steps=40, metrics=numbers)
            rows = [{"prompt": f"prompt {self.step}", "completion": f"{text} {self.step}", "reward": part, "stop_reason": "stop"}]
            self.log.write("samples", stage="rl.ppo", step=self.step, rows=rows)

    def end(self) -> None:
        """Finished."""
        self.log.write("stage_finished", stage="rl.ppo", summary={"weights_sha256": "b" * 64})
        self.log.write("run_finished")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    run = Running(tmp_path / "runs" / "toy")
    yield run
    run.log.close()
