"""Texts with rewards of any trainer: what is flagged, what is not, and what cannot be read."""

from __future__ import annotations

import json
import random

import pytest

from tether.audit import Levels, as_json, as_text, audit
from tether.errors import DataError
from tether.records import write_jsonl

WORDS = [f"w{n}" for n in range(400)]


def answers(count=120, low=10, high=30, seed=0, reward=lambda words, draw: draw.random(), **more):
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        words = draw.sample(WORDS, draw.randint(low, high))
        rows.append({"prompt": f"q{number}", "completion": " ".join(words), "reward": reward(words, draw), **more})
    return rows


def flags(path, baseline=None, **settings):
    return [flag.name for flag in audit(path, baseline, **settings).flags]


def write(path, rows):
    return write_jsonl(path, rows)


def test_a_healthy_file_raises_no_flag(tmp_path):
    path = write(tmp_path / "a.jsonl", answers())
    report = audit(path, write(tmp_path / "b.jsonl", answers(seed=1)))
    assert report.flags == ()
    assert report.status == 0
    assert "Nothing to look at." in as_text(report)


def test_healthy_files_raise_a_flag_no_more_often_than_stated(tmp_path):
    """Seven flags with 1 % on two sides each: at most 3.5 % by chance, and far fewer away from the levels."""
    found = 0
    for seed in range(25):
        found += bool(flags(write(tmp_path / "a.jsonl", answers(40, seed=seed)), write(tmp_path / "b.jsonl", answers(40, seed=99 - seed))))
    assert found <= 1


def test_100_identical_answers_of_50_words_are_mode_collapse_although_the_pooled_share_is_small(tmp_path):
    text = " ".join(WORDS[:50])
    path = write(tmp_path / "a.jsonl", [{"prompt": f"q{n}", "completion": text, "reward": n % 7} for n in range(100)])
    report = audit(path)
    measures = {measure.name: measure.value for measure in report.measures}
    assert measures["pooled"] == pytest.approx(1 / 48)
    assert measures["distinct"] == pytest.approx(0.01)
    assert [flag.name for flag in report.flags] == ["mode collapse"]
    assert report.status == 3


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (answers(low=1, high=2), ["too short"]),
        (answers(reward=lambda words, draw: len(words) + draw.random()), ["reward follows length"]),
        (answers(reward=lambda words, draw: -len(words) + draw.random()), ["reward follows length"]),
        ([{**row, "completion": " ".join(row["completion"].split()[:3] * 8)} for row in answers()], ["repetition"]),
    ],
)
def test_each_flag_alone(tmp_path, rows, expected):
    assert flags(write(tmp_path / "a.jsonl", rows)) == expected


def test_too_long_and_too_short_against_a_baseline_and_absolutely(tmp_path):
    usual = write(tmp_path / "usual.jsonl", answers())
    long, short = write(tmp_path / "long.jsonl", answers(low=60, high=90)), write(tmp_path / "short.jsonl", answers(low=4, high=6))
    assert flags(long, usual) == ["longer than the baseline"]
    assert flags(short, usual) == ["shorter than the baseline"]
    assert flags(long, levels=Levels(long_words=50)) == ["too long"]


def test_empty_answers_are_data_and_null_is_an_error(tmp_path):
    rows = [{**row, "completion": ""} for row in answers(30)]
    report = audit(write(tmp_path / "a.jsonl", rows))
    assert "too short" in [flag.name for flag in report.flags]
    assert next(m.value for m in report.measures if m.name == "empty") == 1
    with pytest.raises(DataError, match=r"row 2: `completion` is null"):
        audit(write(tmp_path / "b.jsonl", [rows[0], {**rows[1], "completion": None}]))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": "q", "completion": "a", "reward": 1}], "too few rows to judge: 1; at least 5"),
        ([{"prompt": f"q{n}", "completion": "a", "reward": 1} for n in range(4)], "too few rows to judge: 4; at least 5"),
        ([{"prompt": "q", "completion": "a", "reward": 1}] * 20, "too few prompts to judge: 1 (20 answers); at least 5"),
    ],
)
def test_too_few_to_judge_is_said_and_is_neither_a_flag_nor_a_pass(tmp_path, rows, words):
    report = audit(write(tmp_path / "a.jsonl", rows))
    assert (report.flags, report.unjudged) == ((), words)
    text = as_text(report)
    assert words in text
    assert "Nothing to look at" not in text
    assert "inf" not in text
    assert json.loads(as_json(report))["unjudged"] == words


def test_a_comparison_that_was_asked_for_and_not_made_is_no_pass(tmp_path):
    rows = [{"prompt": f"q{n}", "completion": f"several words of answer {n}", "reward": n} for n in range(12)]
    report = audit(write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows[:2]))
    assert "the comparison was not made, which is no pass of it" in as_text(report)


def test_a_flag_starts_where_rows_can_be_judged(tmp_path):
    report = audit(write(tmp_path / "a.jsonl", [{"prompt": f"q{n}", "completion": f"w{n}", "reward": 1} for n in range(5)]))
    assert [flag.name for flag in report.flags] == ["too short"]
    assert "length 1 [1, 1], all of it below 3" in report.flags[0].sentence


def test_nothing_is_compared_with_a_baseline_of_too_few_rows(tmp_path):
    before = write(tmp_path / "b.jsonl", answers(1, low=200, high=210))
    report = audit(write(tmp_path / "a.jsonl", answers()), before)
    assert (report.flags, report.unjudged) == ((), "")
    assert f"nothing is compared with {before}: too few rows to judge: 1; at least 5" in as_text(report)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "q", "completion": "a", "reward": Infinity}', "row 1: "),
        ('{"prompt": "q", "comple', "row 1: not JSON"),
        ('["q", "a", 1]', "row 1: expected an object"),
    ],
)
def test_where_no_row_can_be_read_the_first_reasons_are_given(tmp_path, line, reason):
    (tmp_path / "a.jsonl").write_text(f"{line}\n" * 8)
    with pytest.raises(DataError) as caught:
        audit(tmp_path / "a.jsonl")
    assert f"{tmp_path / 'a.jsonl'}: no row could be read, of 8" in str(caught.value)
    assert reason in str(caught.value)
    assert "row 5: " in str(caught.value)
    assert "row 6: " not in str(caught.value)
    assert "and 3 more" in str(caught.value)
    assert "column of answers" not in str(caught.value)


def test_message_lists_and_lists_of_answers(tmp_path):
    turns = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a b c d"}], "reward": 1}
    assert audit(write(tmp_path / "a.jsonl", [turns] * 3)).num_prompts == 1
    packed = [
        {"prompt": "q", "completions": ["one two", "three"], "rewards": [1, 0.5]},
        {"prompt": "r", "completions": ["x"], "rewards": [2]},
    ]
    report = audit(write(tmp_path / "b.jsonl", packed))
    assert (report.num_answers, report.num_prompts) == (3, 2)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": "q", "completions": ["a", "b"], "rewards": [1]}], "2 answers and `rewards` 1 entries: they do not line up"),
        ([{"completion": "a", "reward": 1}, {"completion": "b"}], "row 2: no `reward`, which other rows have"),
        ([{"completion": "a", "reward": "good"}], "`reward` must be a number, got str"),
        ([{"completion": [], "reward": 1}], "got an empty list"),
        ([{"completion": 5, "reward": 1}], "got int"),
        ([{"prompt": "q", "reward": 1}], "no column of answers"),
    ],
)
def test_what_does_not_line_up_is_named(tmp_path, rows, words):
    with pytest.raises(DataError) as caught:
        audit(write(tmp_path / "a.jsonl", rows))
    assert words in str(caught.value)


def test_an_empty_file_and_a_missing_reward_column_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(DataError, match="no rows"):
        audit(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="no column 'points'; the file has `prompt`, `completion`, `reward`"):
        audit(write(tmp_path / "b.jsonl", answers(5)), reward="points")


def test_the_completions_table_of_trl(tmp_path):
    """Columns as GRPOTrainer writes them: step, prompt, completion, one per reward function (null: not applicable), advantage."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    early, late = answers(40), answers(40, low=50, high=80, seed=1)
    rows = [(0, row) for row in early] + [(9, row) for row in late]
    table = {
        "step": [step for step, _ in rows],
        "prompt": [row["prompt"] for _, row in rows],
        "completion": [row["completion"] for _, row in rows],
        "accuracy_reward": [row["reward"] for _, row in rows],
        "format_reward": [None if n % 2 else 0.5 for n in range(len(rows))],
        "advantage": [0.0] * len(rows),
    }
    pq.write_table(pa.table(table), tmp_path / "completions_00010.parquet")
    report = audit(tmp_path / "completions_00010.parquet")
    assert report.reward == "accuracy_reward + format_reward"
    assert report.baseline.startswith("steps 0 to 0")
    assert [flag.name for flag in report.flags] == ["longer than the baseline"]
    assert audit(tmp_path / "completions_00010.parquet", reward="accuracy_reward").reward == "accuracy_reward"


def test_json_holds_the_same_and_null_where_there_is_no_number(tmp_path):
    report = audit(write(tmp_path / "a.jsonl", [{"completion": "a b c d e"}] * 6))
    data = json.loads(as_json(report))
    assert (data["status"], data["flags"][0]["name"]) == (report.status, report.flags[0].name)
    assert next(m["low"] for m in data["measures"] if m["name"] == "pooled") is None
    assert "no column of rewards" in as_text(report)
