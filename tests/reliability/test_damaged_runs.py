"""What lies in a run folder is compared before it is used again: a finished stage, the evaluation, the log."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from small_runs import Crash, CrashAt, assert_same, make_config, sections_of

from tether.compare import compare
from tether.config import ModelConfig, RunConfig
from tether.errors import CheckpointError, RunError
from tether.events import EventLog, read_events
from tether.report.read import read_run
from tether.run.candidates import find_candidates
from tether.run.checkpoint import CheckpointStore
from tether.run.made_from import stage_hash
from tether.run.pipeline import run


@pytest.fixture
def finished(tmp_path):
    """A run of two stages whose first is finished, interrupted in its second."""
    sections = sections_of("sft", tmp_path)[0] | sections_of("dpo", tmp_path)[0]
    config = RunConfig.model_validate(make_config(tmp_path, **sections) | {"checkpoint": {"every": 2}})
    with pytest.raises(Crash):
        run(config, observer=CrashAt("direct.d", 5))
    return config


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: flip(folder / "model.safetensors"), r"sft is damaged: model\.safetensors is not what the finished stage wrote"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"sft is damaged: tokenizer\.json is not there"),
        (lambda folder: (folder / "stage.json").write_text(""), r"stage\.json is damaged \(JSONDecodeError\)"),
        (lambda folder: (folder / "stage.json").write_text('{"made_from": 1, "summary": {}}'), r"stage\.json is damaged \(fields"),
    ],
    ids=["flipped bit", "missing file", "empty marker", "odd marker"],
)
def test_a_damaged_finished_stage_is_named_and_repeated_when_it_is_deleted(finished, harm, said):
    folder = finished.folder / "sft"
    whole = (folder / "model.safetensors").read_bytes()
    harm(folder)
    with pytest.raises(RunError, match=said + r".*delete .*sft and resume"):
        run(finished)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert run(finished).report.exists()
    assert (folder / "model.safetensors").read_bytes() == whole


def test_what_another_hand_adds_or_a_card_says_is_no_damage(finished):
    (finished.folder / "sft" / "README.md").write_text("mine")
    (finished.folder / "sft" / "notes.txt").write_text("mine")
    assert run(finished).report.exists()


def test_a_damaged_evaluation_is_named(tmp_path):
    config = RunConfig.model_validate(make_config(tmp_path, **sections_of("sft", tmp_path)[0]))
    held = {"prompts": {"path": str(tmp_path / "prompts.jsonl")}, "sampling": {"max_new_tokens": 4}}
    config = RunConfig.model_validate(config.model_dump(mode="json", exclude_unset=True) | {"evaluate": held})
    run(config)
    target = config.folder / "evaluation.json"
    whole = target.read_text()
    still_json = whole.replace('"num_prompts": 6', '"num_prompts": 7')
    assert still_json != whole
    for damaged in (whole[:100], "[]", still_json):
        target.write_text(damaged)
        with pytest.raises(RunError, match=r"evaluation\.json is damaged.*delete it and resume"):
            run(config)
    # The last of them is whole JSON: no other reader believes it either.
    with pytest.raises(RunError, match=r"evaluation\.json is damaged: it does not match its own SHA-256"):
        compare([config.folder, f"{config.folder}:start"])
    record = read_run(config.folder)
    assert record.evaluation is None
    assert [problem for problem in record.problems if "evaluation.json does not match its own SHA-256" in problem]
    assert record.state == "finished"
    target.write_text(whole)
    run(config)
    assert read_run(config.folder).evaluation is not None


@pytest.mark.parametrize("harm", ["weights", "data", "evaluation"])
def test_a_refused_resume_leaves_log_and_state_as_they_were(tmp_path, harm):
    sections = sections_of("sft", tmp_path)[0]
    held = {"prompts": {"path": str(tmp_path / "prompts.jsonl")}, "sampling": {"max_new_tokens": 4}}
    config = RunConfig.model_validate(make_config(tmp_path, **sections) | {"evaluate": held})
    run(config)
    if harm == "weights":
        flip(config.folder / "sft" / "model.safetensors")
    elif harm == "data":
        data = Path(sections["sft"]["data"]["path"])
        data.write_text("\n".join(data.read_text().splitlines()[:-1]) + "\n")
    else:
        (config.folder / "evaluation.json").write_text("[]")
    events = (config.folder / "events.jsonl").read_bytes()
    with pytest.raises(RunError):
        run(config)
    assert (config.folder / "events.jsonl").read_bytes() == events
    assert read_run(config.folder).state == "finished"


def test_a_damaged_policy_is_not_evaluated(tmp_path):
    config = RunConfig.model_validate(make_config(tmp_path, **sections_of("sft", tmp_path)[0]))
    run(config)
    for name in (config.folder, config.folder / "sft"):
        found = find_candidates([str(name)], ModelConfig())
        assert [candidate.load() for candidate in found]
    flip(config.folder / "sft" / "model.safetensors")
    for name in (config.folder, config.folder / "sft"):
        with pytest.raises(RunError, match=r"sft is damaged: model\.safetensors is not what the finished stage wrote"):
            [candidate.load() for candidate in find_candidates([str(name)], ModelConfig())]


def test_a_log_that_was_cut_is_said_by_the_run_and_its_report(finished):
    run(finished)
    events = finished.folder / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if b'"kind": "stage_finished"' in line and b"direct.d" in line)
    events.write_bytes(b"".join(lines[:last]) + lines[last][:20])
    assert "events.jsonl lacks the end of direct.d: it was cut, and what is gone is missing here" in read_run(finished.folder).problems
    run(finished)
    said = [event["text"] for event in read_events(events) if event["kind"] == "warning"]
    assert f"{events} lacks the end of direct.d: it was cut or removed, and what is gone is missing from the report" in said
    assert any("lacks the end of direct.d" in problem for problem in read_run(finished.folder).problems)


def test_a_lost_log_is_said_and_changes_nothing_else(finished, tmp_path_factory):
    events = finished.folder / "events.jsonl"
    kept = events.read_text()
    events.unlink()
    run(finished)
    warnings = [event["text"] for event in read_events(events) if event["kind"] == "warning"]
    assert len(warnings) == 2
    assert "events.jsonl lacks the end of sft: it was cut or removed, and what is gone is missing from the report" in warnings.pop(0)
    assert "lacks 4 of the 4 steps up to the checkpoint, the first of them 1" in warnings[0]
    weights = (finished.folder / "direct.d" / "model.safetensors").read_bytes()
    events.write_text(kept + events.read_text())
    assert (finished.folder / "direct.d" / "model.safetensors").read_bytes() == weights


def test_an_unbroken_log_says_nothing(finished):
    run(finished)
    assert not [event for event in read_events(finished.folder / "events.jsonl") if event["kind"] == "warning" and "log" in event.values()]


def test_a_line_that_is_no_event_is_passed_over_with_a_warning(tmp_path, caplog):
    path = tmp_path / "events.jsonl"
    good = json.dumps({"kind": "message", "text": "a"})
    path.write_text(f'{good}\n{{"kind": \n[1]\n{{"text": "no kind"}}\n{good}\n')
    assert len(list(read_events(path))) == 2
    assert [f"line {number} is no event" in caplog.text for number in (2, 3, 4, 5)] == [True, True, True, False]


def test_a_log_that_cannot_be_written_is_an_error_with_path_and_room_and_closing_hides_nothing(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path / "events.jsonl")

    class Full:
        closed = False

        def write(self, text): ...

        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            self.flush()

    log._file.close()
    monkeypatch.setattr(log, "_file", Full())
    with pytest.raises(RunError, match=r"events\.jsonl could not be written.*bytes are free.*make room and resume"):
        log.write("message", text="a")
    log.close()
    assert "the end of" in caplog.text


def test_the_same_run_after_all_that_is_the_unbroken_one(finished, tmp_path):
    whole = finished.model_copy(update={"name": "whole"})
    run(whole)
    run(finished)
    assert_same(whole.folder, finished.folder, "direct.d")


def test_a_stage_whose_checkpoints_are_all_damaged_begins_again_once_they_are_removed(finished):
    folder = finished.folder / "checkpoints" / "direct.d"
    for file in folder.glob("step-*/values.json"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole.*remove .*checkpoints/direct\.d and resume: this stage"):
        run(finished)
    shutil.rmtree(folder)
    sft = finished.folder / "sft"
    made_at = (sft / "model.safetensors").stat().st_mtime_ns
    run(finished)
    assert (sft / "model.safetensors").stat().st_mtime_ns == made_at  # reused
    whole = finished.model_copy(update={"name": "whole"})
    run(whole)
    assert_same(whole.folder, finished.folder, "direct.d")


def altered(path, change):
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def test_a_setting_that_was_edited_in_config_json_is_named_and_where(finished):
    seed_5 = finished.model_copy(update={"seed": 5})
    with pytest.raises(RunError, match=r"\(sft; changed: seed: 0 -> 5\)\. Choose another name") as refused:
        run(seed_5)
    assert "altered" not in str(refused.value)  # config.json is as it was: the other seed came from the command line
    altered(finished.folder / "config.json", lambda told: told.update(seed=5))
    with pytest.raises(RunError, match=r"changed: seed: 0 -> 5\)\. .*config\.json was altered since: put it back"):
        run(seed_5)
    altered(finished.folder / "sft" / "stage.json", lambda told: told.pop("settings"))  # written before they were kept
    with pytest.raises(RunError, match=r"changed: what sft was made with is not recorded\)\. .*config\.json was altered since"):
        run(seed_5)
    (finished.folder / "config.json").unlink()  # `tether run CONFIG` brings it back
    run(finished)
    assert json.loads((finished.folder / "config.json").read_text())["seed"] == 0


def without_states(optim):
    """As if `optim.states` were a setting of a later version."""
    assert optim.pop("states") == "float32"


@pytest.mark.parametrize("recorded", [True, False], ids=["in stage.json", "in config.json alone"])
def test_a_stage_that_an_earlier_version_finished_is_reused_where_what_is_new_has_its_default(finished, recorded):
    def older(told):
        without_states(told["settings"]["sft"]["optim"])
        told["made_from"] = stage_hash("sft", told["settings"])
        if not recorded:
            del told["settings"]

    marker = finished.folder / "sft" / "stage.json"
    whole = json.loads(marker.read_text())
    altered(marker, older)
    altered(finished.folder / "config.json", lambda told: without_states(told["sft"]["optim"]))
    section = finished.sft.model_copy(update={"optim": finished.sft.optim.model_copy(update={"states": "int8"})})
    with pytest.raises(RunError, match=r"changed: sft\.optim\.states: float32 -> int8\)"):
        run(finished.model_copy(update={"sft": section}))
    run(finished)
    told = [event["text"] for event in read_events(finished.folder / "events.jsonl") if event["kind"] == "message"]
    assert [text for text in told if "sft.optim.states = float32" in text]
    assert json.loads(marker.read_text()) == whole
    assert "states" in json.loads((finished.folder / "config.json").read_text())["sft"]["optim"]


def test_so_does_a_stage_go_on_that_it_interrupted(finished):
    store = CheckpointStore(finished.folder / "checkpoints" / "direct.d")
    found = store.latest()
    inputs = json.loads(json.dumps(found.inputs))
    without_states(inputs["settings"]["direct.d"]["optim"])
    store.save(found.step, found.load(), inputs)
    run(finished)
    whole = finished.model_copy(update={"name": "whole"})
    run(whole)
    assert_same(whole.folder, finished.folder, "direct.d")
