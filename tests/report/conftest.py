"""Hand-made run folders: what tether.run writes, without running anything."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tether.events import EventLog

Maker = Callable[..., Path]


def policy(name: str, mean: float, **changes: Any) -> dict[str, Any]:
    """One entry of evaluation.json."""
    samples = [
        {"prompt": f"prompt {i}", "completion": f"{name} answers {i}", "score": mean, "stop_reason": "stop"}
        for i in range(3)
    ]
    return {
        "name": name,
        "score": "plainspoken",
        "mean": mean,
        "low": mean - 0.5,
        "high": mean + 0.5,
        "num_prompts": 3,
        "samples_per_prompt": 2,
        "confidence": 0.95,
        "response_length": 20.5,
        "truncated_share": 0.25,
        "kl_token_mean_nats": 0.125,
        "kl_sequence_sum_nats": 2.5,
        "kl_sequence_interval_nats": [2.25, 3.0],
        "scores_by_prompt": [mean] * 3,
        "components": {"finished": 0.5},
        "proxies": {"ppo": mean / 10},
        "samples": samples,
        **changes,
    }


def gain(after: str, difference: float, low: float, high: float) -> dict[str, Any]:
    """One gain of evaluation.json."""
    return {
        "before": "start",
        "after": after,
        "difference": difference,
        "low": low,
        "high": high,
        "confidence": 0.95,
        "num_prompts": 3,
        "excludes_zero": low > 0 or high < 0,
    }


@pytest.fixture
def make_run(tmp_path: Path) -> Maker:
    """Writes a finished run with sft, reward_model, rl.ppo and rl.grpo; keyword arguments replace parts."""

    def make(
        *,
        text: str = "hello",
        steps: int = 4,
        evaluation: Any = True,
        finished: bool = True,
        metrics: dict[str, float] | None = None,
    ) -> Path:
        folder = tmp_path / "runs" / "toy"
        folder.mkdir(parents=True)
        config = {
            "name": "toy",
            "model": {"path": "tiny"},
            "sft": {"data": {"path": "d.jsonl"}},
            "reward_model": {"data": {"path": "c.jsonl"}},
            "rl": {
                name: {
                    "kind": name,
                    "prompts": {"path": "p.jsonl"},
                    "rewards": [{"kind": "learned", "weight": 1.0}],
                    "kl": {"beta": 0.05, "where": "reward"},
                }
                for name in ("ppo", "grpo")
            },
            "note": text,
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "environment.json").write_text(
            json.dumps({"python": "3.11", "packages": {"torch": "2.13"}, "revision": None})
        )
        log = EventLog(folder / "events.jsonl")
        log.write("run_started", name="toy")
        log.write("message", stage="run", text=text)
        write_stage(
            log, folder, "sft", steps, {"loss": 2.0}, {"demonstrations": 7, "data_sha256": "a" * 64}, text
        )
        held_out = {"num_pairs": 40, "accuracy": 0.8, "low": 0.65, "high": 0.9}
        write_stage(
            log,
            folder,
            "reward_model",
            steps,
            {"pair_accuracy": 0.7},
            {"held_out": held_out, "training_pairs": 160},
            text,
        )
        for name in ("ppo", "grpo"):
            numbers = {
                "reward": 0.5,
                "kl_k1_token": 0.1,
                "kl_k1_sequence": 2.0,
                "reward/learned": 0.5,
                "generate_seconds": 1.0,
                **(metrics or {}),
            }
            write_stage(
                log, folder, f"rl.{name}", steps, numbers, {"beta": 0.05, "weights_sha256": "b" * 64}, text
            )
        if evaluation is True:
            evaluation = {
                "prompts_sha256": "c" * 64,
                "policies": [policy("start", 3.0), policy("ppo", 5.0), policy("grpo", 3.2)],
                "gains": [gain("ppo", 2.0, 1.5, 2.5), gain("grpo", 0.2, -0.3, 0.7)],
            }
        if evaluation is not None:
            (folder / "evaluation.json").write_text(json.dumps(evaluation))
        if finished:
            log.write("run_finished")
        log.close()
        return folder

    return make


def write_stage(
    log: EventLog,
    folder: Path,
    name: str,
    steps: int,
    metrics: dict[str, float],
    summary: dict[str, Any],
    text: str,
) -> None:
    """The events and the marker of one stage; every metric rises a little with the step."""
    log.write("stage_started", stage=name, num_steps=steps)
    for step in range(1, steps + 1):
        log.write(
            "step",
            stage=name,
            step=step,
            num_steps=steps,
            metrics={k: v if math.isnan(v) else v + step / 100 for k, v in metrics.items()},
        )
        log.write(
            "samples",
            stage=name,
            step=step,
            rows=[{"prompt": text, "completion": text, "reward": 0.5, "stop_reason": "length"}],
        )
    log.write("stage_finished", stage=name, summary=summary)
    (folder / name).mkdir()
    (folder / name / "stage.json").write_text(json.dumps({"made_from": "x", "summary": summary}))
