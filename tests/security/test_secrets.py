"""S5: tokens of the environment, headers and home folders occur in nothing that a run writes, prints or reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tether.records import write_jsonl

CANARIES = {
    "HF_TOKEN": "hf_CANARYaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "OPENAI_API_KEY": "sk-CANARYbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    "WANDB_API_KEY": "CANARYcccccccccccccccccccccccccccccccccc",
    "AWS_SECRET_ACCESS_KEY": "CANARYdddddddddddddddddddddddddddddddddd",
    "AUTHORIZATION": "Bearer CANARYeeeeeeeeeeeeeeeeeeeeeeeeee",
    "PIP_INDEX_URL": "https://user:CANARYffffffffffff@example.invalid/simple",
}


def turn(content, role="user"):
    return [{"role": role, "content": content}]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["well", "badly"])
def test_s5_canaries_are_nowhere(ending, tmp_path, monkeypatch):
    work, home = tmp_path / "work", tmp_path / "home-CANARYgggg"
    work.mkdir()
    home.mkdir()
    rows = [{"prompt": turn(f"Say {i}."), "completion": turn(f"{i}.", "assistant")} for i in range(6)]
    write_jsonl(work / "demos.jsonl", rows)
    (work / "run.toml").write_text(
        '[model]\npath = "tiny"\n[compute]\ndtype = "float32"\nthreads = 1\n[checkpoint]\nevery = 1\n'
        '[sft]\ndata.path = "demos.jsonl"\nbatch_size = 3\nepochs = 2\n'
        '[rl.a]\nkind = "grpo"\nprompts.path = "demos.jsonl"\nsteps = 2\nprompts_per_step = 2\nsamples_per_prompt = 2\n'
        'sampling.max_new_tokens = 4\n[[rl.a.rewards]]\nkind = "format"\n'
        + ("params.pattern = '('\n" if ending == "badly" else "params.pattern = 'a'\n")
    )
    monkeypatch.setenv("HOME", str(home))
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-m", "tether", "run", "run.toml"], cwd=work, capture_output=True, timeout=240)
    assert (done.returncode == 0) == (ending == "well"), done.stderr.decode()[-2000:]
    written = [path for path in work.rglob("*") if path.is_file()]
    assert ending == "badly" or any(path.name == "report.html" for path in written)
    assert b"CANARY" not in done.stdout + done.stderr
    assert [str(path) for path in written if b"CANARY" in path.read_bytes()] == []


def test_s5_the_crash_of_a_stage_says_nothing_of_the_environment(tmp_path, monkeypatch):
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    from tether.run.folder import environment

    assert "CANARY" not in repr(environment())
    assert str(Path.home()) not in repr(environment())
