"""Warnings of any module reach the reader once: on the progress, in the log and in the report."""

from __future__ import annotations

import logging

import pytest

from tether.config import RunConfig
from tether.events import EventLog, read_events
from tether.records import write_jsonl
from tether.run import learner as learner_module
from tether.run.observer import Quiet
from tether.run.pipeline import run
from tether.run.warnings import warnings_of_run


class Listener(Quiet):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def warnings_in(path):
    return [(event["stage"], event["text"]) for event in read_events(path) if event["kind"] == "warning"]


def test_a_warning_is_shown_and_logged_once_even_if_it_came_before_the_log(tmp_path):
    listener, logger = Listener(), logging.getLogger("tether.anything")
    with warnings_of_run(listener) as warnings:
        logger.warning("early %d", 1)
        log = EventLog(tmp_path / "events.jsonl")
        warnings.keep_in(log)
        warnings.stage = "sft"
        logger.warning("early %d", 1)
        logger.warning("late")
        logger.info("not a warning")
        logging.getLogger("elsewhere").warning("not ours")
    logger.warning("after the run")
    log.close()
    assert listener.texts == ["WARNING: early 1", "WARNING: late"]
    assert warnings_in(log.path) == [("run", "early 1"), ("sft", "late")]


@pytest.fixture
def config(tmp_path):
    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": f"Say {i}."} for i in range(4)])
    grpo = {
        "kind": "grpo",
        "prompts": {"path": str(tmp_path / "prompts.jsonl"), "split": "test"},
        "steps": 2,
        "prompts_per_step": 2,
        "samples_per_prompt": 2,
        "max_prompt_tokens": 100,
        "sampling": {"max_new_tokens": 4},
        "rewards": [{"kind": "length", "params": {"low": 1, "high": 3, "falloff": 3}}],
    }
    compute = {"dtype": "float32", "threads": 1}
    return {"name": "w", "output": str(tmp_path), "model": {"path": "tiny"}, "compute": compute, "rl": {"one": grpo, "two": grpo}}


def test_what_holds_for_the_whole_run_is_said_once_and_a_negative_kl_reaches_log_report_and_progress(config, monkeypatch):
    from tether.rollout import local

    rounds = iter(range(1, 5))
    monkeypatch.setattr(learner_module, "warn_of_negative_kl", lambda _: logging.getLogger("tether.x").warning("KL -0.%d", next(rounds)))
    monkeypatch.setattr(local, "why_not_llama", lambda model: "it is a test")
    listener = Listener()
    result = run(RunConfig.model_validate(config), observer=listener)
    found = warnings_in(result.folder / "events.jsonl")
    assert [text for _, text in found if "plain path" in text] == ["sampling by the plain path (slower): it is a test"]
    assert len([text for _, text in found if "has no effect, because a file has no splits" in text]) == 1
    assert [pair for pair in found if "KL" in pair[1]] == [
        ("rl.one", "KL -0.1"), ("rl.one", "KL -0.2"), ("rl.two", "KL -0.3"), ("rl.two", "KL -0.4"),
    ]  # fmt: skip
    assert "WARNING: KL -0.3" in listener.texts
    assert len([text for text in listener.texts if "limit 100 tokens" in text]) == 1
    page = result.report.read_text(encoding="utf-8")
    assert "rl.one warned 2 times, at last: KL -0.2." in page
