"""The two commands on a command line of their own: options reach the functions, help needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cyclopts import App

from tether.cli_evaluate import compare, evaluate
from tether.errors import ModelError, RewardError, RunError
from tether.records import write_jsonl


@pytest.fixture
def app():
    made = App(name="tether", suppress_keyboard_interrupt=False)
    made.command(evaluate)
    made.command(compare)
    return lambda *tokens: made(list(tokens), exit_on_error=False, result_action="return_value")


def test_options_reach_the_evaluation(app, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt_id": f"h{i}", "prompt": [{"role": "user", "content": f"Tell {i}."}], "gold": str(i)} for i in range(5)]
    write_jsonl(tmp_path / "held.jsonl", rows)
    words = "evaluate tiny --prompts held.jsonl --limit 3 --score exact --score-param column=gold --score-param compare=text --samples 2"
    more = "--max-new-tokens 4 --temperature 0.5 --seed 7 --num-seeds 2 --reference tiny --output out.json"
    app(*words.split(), *more.split())
    found = json.loads((tmp_path / "out.json").read_text())
    made = found["policies"][0]["provenance"]
    assert (made["num_prompts"], made["samples_per_prompt"], made["seeds"]) == (3, 2, [7, 8])
    assert made["score_params"] == {"column": "gold", "compare": "text"}
    assert made["sampling"] == {"max_new_tokens": 4, "temperature": 0.5, "top_k": 0, "top_p": 1.0}
    assert set(found["policies"][0]["attempts"]["majority_at_k"]) == {"4"}
    assert found["policies"][0]["kl_sequence_sum_nats"] == pytest.approx(0, abs=1e-4)
    assert capsys.readouterr().out.rstrip().endswith("out.json")


def test_what_cannot_be_asked_is_refused_before_anything_is_generated(app, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "held.jsonl", [{"prompt": "Tell."}])
    (tmp_path / "cli_judge.py").write_text("def decide(prompt, first, second):\n    return 'first'\n")
    with pytest.raises(RewardError, match=r"cli_judge:decide returned 'first'; expected a number from 0 to 1 or None"):
        app("evaluate", "tiny", "--prompts", "held.jsonl", "--judge", "cli_judge:decide")
    with pytest.raises(ModelError, match="there is no folder runs/quickstart"):
        app("evaluate", "runs/quickstart", "--prompts", "held.jsonl")
    assert capsys.readouterr().err == ""


def test_comparing_nothing_is_refused(app):
    with pytest.raises(RunError, match="at least one run"):
        app("compare")


def test_help_loads_nothing_of_weight():
    code = "import sys, tether.cli_evaluate; print(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"torch", "numpy", "transformers", "pydantic", "tether.run"})
