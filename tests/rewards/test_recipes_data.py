"""The bundled data: disjoint sides, no doubles, answers that are right, origin stated."""

import json
import statistics
from importlib import resources

import pytest

from tether.rewards.exact import ExactPart
from tether.rewards.simulated_rater import RATER_NAME, noiseless

FOLDER = resources.files("tether") / "recipes_data"
ROWS = {
    "quickstart_prompts_train": 240,
    "quickstart_prompts_heldout": 64,
    "quickstart_demonstrations": 123,
    "arithmetic_train": 400,
    "arithmetic_heldout": 128,
    "arithmetic_demonstrations": 150,
}


def rows(name):
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]  # not splitlines: answers may hold U+2028


def question(row):
    return row["prompt"][-1]["content"]


@pytest.mark.parametrize(("name", "count"), ROWS.items())
def test_files_hold_the_stated_number_of_rows(name, count):
    assert len(rows(name)) == count


@pytest.mark.parametrize("task", ["quickstart_prompts", "arithmetic"])
def test_train_and_heldout_share_no_question(task):
    train, heldout = rows(f"{task}_train"), rows(f"{task}_heldout")
    questions = [question(row).casefold() for row in train + heldout]
    assert len(set(questions)) == len(questions)
    assert len({row["id"] for row in train + heldout}) == len(questions)


def test_quickstart_topics_are_disjoint():
    assert not {r["topic"] for r in rows("quickstart_prompts_train")} & {r["topic"] for r in rows("quickstart_prompts_heldout")}


def test_no_sum_is_heldout_in_the_other_order():
    def pairs(name):
        return {tuple(sorted(int(w.strip("?")) for w in question(row).split() if w.strip("?").isdigit())) for row in rows(name)}

    assert not pairs("arithmetic_train") & pairs("arithmetic_heldout")


@pytest.mark.parametrize("name", ["arithmetic_train", "arithmetic_heldout"])
def test_sums_are_right(name):
    for row in rows(name):
        _, _, a, _, b, *_ = question(row).replace("?", "").split()
        assert int(a) + int(b) == row["answer"]


def test_arithmetic_demonstrations_earn_the_reward_and_use_training_sums(make_rollout):
    train = {row["id"]: row for row in rows("arithmetic_train")}
    for row in rows("arithmetic_demonstrations"):
        source = train[row["prompt_id"]]
        assert source["prompt"] == row["prompt"]
        (score,) = ExactPart().score([make_rollout(row["completion"][0]["content"], answer=source["answer"])])
        assert score.value == 1.0


def test_demonstrations_are_in_the_style_and_use_training_questions():
    train = {row["id"]: row["prompt"] for row in rows("quickstart_prompts_train")}
    demonstrations = rows("quickstart_demonstrations")
    assert all(train[row["prompt_id"]] == row["prompt"] for row in demonstrations)
    points = [noiseless(question(row), row["completion"][0]["content"], True).points for row in demonstrations]
    assert min(points) > 7
    assert statistics.mean(points) > 9.5


def test_comparisons_name_their_simulated_rater_and_training_questions():
    train = {row["id"]: row["prompt"] for row in rows("quickstart_prompts_train")}
    comparisons = rows("quickstart_comparisons")
    assert 600 <= len(comparisons) <= 720
    for row in comparisons:
        assert row["rater"] == RATER_NAME
        assert train[row["prompt_id"]] == row["prompt"]
        assert row["chosen"] != row["rejected"]
        assert row["chosen"][0]["content"].strip()
        assert row["rejected"][0]["content"].strip()


def test_every_file_is_described_with_origin_and_licence():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for file in FOLDER.iterdir():
        if file.name.endswith(".jsonl"):
            assert f"`{file.name}`" in readme
    assert "CC0-1.0" in readme
    assert "Apache-2.0" in readme
    assert "not a person" in readme
