"""Run folders as `tether run` leaves them, without the run: shared by tests of what reads them."""

from __future__ import annotations

import json

from tether.config import RunConfig

RL = {"kind": "grpo", "prompts": {"path": "tether:arithmetic_train.jsonl"}, "steps": 1, "prompts_per_step": 2, "samples_per_prompt": 2,
      "rewards": [{"kind": "exact"}]}  # fmt: skip
FINISHED = '{"made_from": "", "summary": {}}'


def a_run(folder, *finished, **stages):
    """The folder of a run whose named stages are finished."""
    told = {"name": folder.name, "output": str(folder.parent), "model": {"path": "tiny"}} | stages
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(RunConfig.model_validate(told).model_dump(mode="json")))
    (folder / "environment.json").write_text("{}")
    for stage in finished:
        (folder / stage).mkdir()
        (folder / stage / "stage.json").write_text(FINISHED)
    return folder
