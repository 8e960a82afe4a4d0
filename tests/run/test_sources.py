"""A database of judgements as the data of sft, reward model and dpo: rows by the rule, a hash that follows them, clear refusals."""

from __future__ import annotations

import json

import pytest

from tether.cli import main
from tether.collect.exchange.formats import trl
from tether.collect.exchange.imported import import_rows
from tether.collect.judgement import Choice, Judgement
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.config import JudgedSource, parse_config
from tether.errors import ConfigError, DataError, StoreError
from tether.run.pipeline import run
from tether.run.sources import answer_rows, comparison_rows, load_comparisons, load_demonstrations, load_judgements
from tether.types import Comparison, Message


@pytest.fixture
def database(tmp_path):
    """16 prompts with one pair each, judged once; 2 of them "much"."""
    path = str(tmp_path / "answers.db")
    with Store.create(path, Settings(held_out_share=0.0)) as store:
        rows = [
            {"prompt": [{"role": "user", "content": f"Word {i}?"}], "chosen": f"yes {i}", "rejected": f"no {i}", "strength": strength}
            for i, strength in enumerate(["much"] * 2 + [None] * 14)
        ]
        import_rows(store, rows, trl(), "in.jsonl")
    return path


def source(path: str, **more) -> JudgedSource:
    return JudgedSource.model_validate({"path": path, **more})


def test_judgements_become_comparisons_with_margins(database):
    found = load_comparisons(source(database, judgements={"margin": "strength", "much": 3.0}))
    assert [one.margin for one in found] == [3.0, 3.0, *[1.0] * 14]
    plain = load_comparisons(source(database, limit=2))
    assert plain[0] == Comparison((Message("user", "Word 0?"),), (Message("assistant", "yes 0"),), (Message("assistant", "no 0"),))
    assert len(plain) == 2


def test_shares_of_votes_are_labels_of_a_reward_model_and_of_nothing_else(database):
    """The first pair: 2 of 3 votes for the first answer; a tie counts half."""
    with Store.open(database) as store:
        item = next(iter(store.items()))
        for name, choice in (("Bo", Choice.FIRST), ("Cy", Choice.SECOND)):
            annotator = store.add_annotator(name).id
            store.record(Judgement(f"j-{name}", item.item_id, annotator, choice, item.answers))
    found = load_judgements(source(database, judgements={"labels": "share"}))
    assert [one.label for one in found] == [pytest.approx(2 / 3), *[1.0] * 15]
    assert [one.label for one in load_judgements(source(database))] == [1.0] * 16
    for section in ('[sft]\n', '[direct.d]\nkind = "dpo"\n'):
        text = f'[model]\npath = "tiny"\n{section}data = {{path = "{database}", judgements = {{labels = "share"}}}}\n'
        with pytest.raises(ConfigError, match="labels has an effect on reward models alone"):
            parse_config(text, ".toml")


def test_the_hash_follows_the_rows_and_nothing_else(database):
    before = comparison_rows(source(database)).rows.sha256
    with Store.open(database) as store:
        store.add_annotator("Ann")
        assert comparison_rows(source(database)).rows.sha256 == before
        store.undo("a1")
    after = comparison_rows(source(database))
    assert after.rows.sha256 != before
    assert after.note == "15 rows of 16 pairs; left out: 1 no judgement"


def test_chosen_answers_are_demonstrations_once(database):
    with Store.open(database) as store:
        turn = [{"role": "user", "content": "Word 0?"}]
        more = [{"prompt": turn, "chosen": "yes 0", "rejected": "maybe"}, {"prompt": turn, "chosen": "maybe", "rejected": "never"}]
        import_rows(store, more, trl(), "in.jsonl")
    rows = answer_rows(source(database, limit=3))
    assert [row["completion"][0]["content"] for row in rows.rows.rows] == ["yes 0", "yes 1", "yes 2"]
    assert rows.note.startswith("3 chosen answers; ")
    assert len(load_demonstrations(source(database))) == 16  # "maybe" was rejected once


def test_refusals_say_what_to_do(database, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"}) + "\n")
    for path, more, error, said in (
        (str(tmp_path / "rows.jsonl"), {"judgements": {}}, ConfigError, "no database of judgements; drop the section"),
        (database, {"split": "test"}, ConfigError, "split must be one of train, held_out, all"),
        (database, {"split": "held_out"}, DataError, "no comparisons"),
        (str(tmp_path / "none.db"), {}, StoreError, "no such file"),
        ("postgresql://u:secret@localhost/x", {}, ConfigError, "holds a password"),
    ):
        with pytest.raises(error, match=said) as caught:
            comparison_rows(source(path, **more))
        assert "secret" not in str(caught.value)


STAGES = """
name = "judged"
output = "{output}"
[model]
path = "tiny"
[sft]
data = {{path = "{database}"}}
batch_size = 8
max_length = 64
[reward_model]
data = {{path = "{database}", judgements = {{margin = "strength"}}}}
batch_size = 8
max_length = 64
[direct.dpo]
kind = "dpo"
data = {{path = "{database}"}}
batch_size = 8
max_length = 64
"""


@pytest.mark.slow
def test_a_run_trains_on_a_database(database, tmp_path):
    config = parse_config(STAGES.format(output=tmp_path / "runs", database=database), ".toml")
    run(config)
    folder = tmp_path / "runs" / "judged"
    for stage in ("sft", "reward_model", "direct.dpo"):
        told = json.loads((folder / stage / "stage.json").read_text())["summary"]
        assert len(told["data_sha256"]) == 64
    assert "16 rows of 16 pairs" in (folder / "events.jsonl").read_text()


def test_a_dry_run_counts_the_rows(database, tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(STAGES.format(output=tmp_path / "runs", database=database))
    assert main(["run", str(file), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"16 comparisons from {database}" in out
    assert f"16 demonstrations from {database}" in out
