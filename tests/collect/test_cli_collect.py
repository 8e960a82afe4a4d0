"""`tether collect ...` on the tiny models: options reach the store, what is drawn says where it comes from."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from tether.cli import main
from tether.collect.settings import Settings, Strategy
from tether.collect.store import Store
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.records import read_jsonl, write_jsonl


@pytest.fixture
def tether(tmp_path, monkeypatch, capsys):
    """Runs a line in an empty folder; (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        status = main(shlex.split(line))
        return status, *capsys.readouterr()

    return run


def test_init_import_annotators_export_dump_load(tether, tmp_path):
    (tmp_path / "rules.md").write_text("# Be fair\n", encoding="utf-8")
    rows = [{"prompt": f"p{i}", "chosen": f"yes {i}", "rejected": f"no {i}", "strength": "much"} for i in range(20)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    status, out, _ = tether(
        "collect init a.db --question 'Which is shorter?' --guidelines rules.md --no-strengths --overlap 0.5 --strategy uncertainty "
        "--random-share 0.3 --stratified --held-out-share 0.25 --seed 3 --gold-share 0 --judgements-per-overlap-item 3"
    )
    assert (status, out.strip()) == (0, str(tmp_path / "a.db"))
    with Store.open("a.db") as store:
        assert store.settings == Settings(
            question="Which is shorter?", guidelines="# Be fair\n", strengths=False, overlap=0.5, strategy=Strategy.UNCERTAINTY,
            random_share=0.3, stratified=True, held_out_share=0.25, seed=3, gold_share=0.0, judgements_per_overlap_item=3,
        )  # fmt: skip
    assert "20 judgements added" in tether("collect import a.db in.jsonl")[1]
    out = tether("collect annotators a.db --add Ann --add Bo")[1]
    assert out.splitlines()[0].startswith("a1  import  judged 20, skipped 0, open ")
    assert out.splitlines()[2].startswith("a3  Bo  judged 0")
    out = tether("collect export a.db out.jsonl --split all --margin strength --much 3 --form conversational")[1]
    assert out.strip() == "20 rows of 20 pairs"
    row = read_jsonl("out.jsonl")[0]
    assert (row["margin"], row["prompt"]) == (3.0, [{"role": "user", "content": "p0"}])
    train, held_out = (tether(f"collect export a.db {split}.csv --split {split}")[1] for split in ("train", "held_out"))
    assert int(train.split()[0]) + int(held_out.split()[0]) == 20
    assert "20 judgements" in tether("collect dump a.db all.jsonl")[1]
    assert tether("collect load b.db all.jsonl")[0] == 0
    with Store.open("a.db") as one, Store.open("b.db") as two:
        assert list(one.judgements()) == list(two.judgements())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("--add Cy --add ''", "name of an annotator is empty; nobody was added"),
        ("--add Cy --add Ann", "there is an annotator 'Ann' already (a1)"),
        ("--add Cy --add ' Cy '", "the names 'Cy' come twice; nobody was added"),
    ],
)
def test_annotators_are_added_all_or_none(tether, names, message):
    assert tether("collect init a.db")[0] == 0
    assert tether("collect annotators a.db --add Ann --add Bo")[0] == 0
    status, _, told = tether(f"collect annotators a.db {names}")
    assert (status, message in told) == (1, True)
    assert [line.split()[1] for line in tether("collect annotators a.db")[1].splitlines()] == ["Ann", "Bo"]


def test_test_questions_are_imported_with_their_known_choice(tether, tmp_path):
    row = {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}
    labels = {f"{n} + 2?": label for n, label in enumerate([1, 0, 0.5, 1, 0, 1, 0])}
    write_jsonl(tmp_path / "gold.jsonl", [row | {"prompt": prompt, "label": label} for prompt, label in labels.items()])
    assert tether("collect init a.db --gold-share 0.5")[0] == 0
    out = tether("collect import a.db gold.jsonl --gold")[1]
    assert "7 items and 0 judgements added" in out
    assert "7 x test question: its known choice is that of the row" in out
    assert "7 items and 0 judgements were there already" in tether("collect import a.db gold.jsonl --gold")[1]
    assert "7 items and 7 judgements added" in tether("collect import a.db gold.jsonl")[1]  # of the same answers, ordinary items
    with Store.open("a.db") as store:
        texts = {answer.answer_id: answer.text for answer in store.answers()}
        prompts = {prompt.prompt_id: prompt.text for prompt in store.prompts()}
        known = [item for item in store.items() if item.gold]
    assert len(known) == 7
    assert {item.answers[0] == min(item.answers) for item in known} == {True}  # in the order of ids, as in other items
    for item in known:
        best = {"first": texts[item.answers[0]], "second": texts[item.answers[1]], "tie": "both"}[item.gold.value]
        assert best == {1: "4", 0: "5", 0.5: "both"}[labels[prompts[item.prompt_id]]]
    assert "--annotator has no effect with --gold" in tether("collect import a.db gold.jsonl --gold --annotator Ann")[2]
    assert "--gold has no effect with --format ratings" in tether("collect import a.db gold.jsonl --gold --format ratings")[2]


def test_options_without_an_effect_are_refused(tether, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    tether("collect init a.db")
    for line, said in (
        ("import a.db x.jsonl --unjudged --annotator Ann", "--annotator has no effect with --unjudged"),
        ("export a.db y.jsonl --much 3", "--much has no effect with --margin none"),
        ("export a.db y.jsonl --slight 0.5 --much 3 --margin none", "--slight, --much has no effect with --margin none"),
        ("export a.db y.jsonl --rows judgements --much 3", "--much has no effect with --rows judgements"),
    ):
        status, _, err = tether(f"collect {line}")
        assert (status, said in err) == (2, True), err
    assert tether("collect import a.db x.jsonl --annotator Ann")[0] == 0
    assert tether("collect export a.db y.jsonl --split all --margin strength --much 3")[0] == 0


def test_errors_are_one_sentence_with_status_1(tether, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "p"}\n')
    tether("collect init a.db")
    for line, said in (
        ("collect export none.db x.jsonl", "no such file; make it with `tether collect init`"),
        ("collect init a.db", "exists already"),
        ("collect import a.db bad.jsonl", "1 of 1 row cannot be used"),
        ("collect export a.db x.jsonl", "leaves no rows"),
        ("collect generate a.db tiny", "holds no prompts"),
        ("collect score a.db", "name at least one folder"),
    ):
        status, out, err = tether(line)
        assert status in (1, 2)
        assert out == ""
        assert said in err
    assert not (tmp_path / "x.jsonl").exists()


def test_generate_and_score_fill_the_database(tether, tmp_path):
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": [{"role": "user", "content": f"Say {i}."}]} for i in range(3)])
    RewardModel.from_base(resolve_model("tiny"), seed=1).save(tmp_path / "rm")
    tether("collect init a.db --strategy uncertainty --random-share 0 --overlap 0 --gold-share 0")
    assert tether("collect import a.db p.jsonl --format prompts")[1].startswith("3 prompts added")
    line = "collect generate a.db tiny --temperature 0.8 --temperature 1.2 --samples 2 --max-new-tokens 6 --pairs 2 --seed 5"
    status, out, err = tether(line)
    assert status == 0, err
    assert out.strip() == "3 prompts: 12 answers and 6 items added"
    assert "12 answers were there already" in tether(line)[1]  # the same request draws the same answers
    with Store.open("a.db") as store:
        answers = list(store.answers())
        assert len(list(store.items())) == 6
    made = answers[0].provenance
    assert (made.source, made.model, made.seed, len(made.checkpoint_sha256)) == ("tether collect generate", "tiny", 5, 64)
    assert {answer.provenance.sampling["temperature"] for answer in answers} == {0.8, 1.2}
    assert made.sampling.keys() >= {"max_new_tokens", "top_k", "top_p", "stop_reason", "sample_index"}
    assert len({answer.plain for answer in answers}) > 6
    status, out, err = tether("collect score a.db rm")
    assert status == 0, err
    with Store.open("a.db") as store:
        (scorer,) = store.scorers()
        assert out.strip() == f"{scorer}: 12 answers"
        scores = store.scores(scorer)
        store.add_annotator("Ann")
        shown = store.next_item("a1")
        gaps = {item.item_id: abs(scores[item.answers[0]] - scores[item.answers[1]]) for item in store.items()}
    assert gaps[shown.item.item_id] == min(gaps.values())
    text = RewardModel.load(tmp_path / "rm")
    prompt = [{"role": "user", "content": "Say 0."}]
    assert scores[answers[0].answer_id] == pytest.approx(_one_score(text, prompt, answers[0].plain), abs=1e-2)


def _one_score(model: RewardModel, prompt: list, answer: str) -> float:
    from tether.types import Message

    turns = tuple(Message(**turn) for turn in prompt)
    return model.score_texts([turns], [(Message("assistant", answer),)])[0]


def test_help_loads_no_database_and_no_torch():
    code = "import sys; from tether.cli import main; main(['collect', 'export', '--help']); print(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"torch", "sqlalchemy", "numpy", "pydantic", "tether.collect", "tether.run"})


def test_ratings_and_tools_take_their_options(tether, tmp_path):
    tether("collect init a.db")
    (tmp_path / "r.json").write_text(json.dumps([{"prompt": "p", "generations": ["a", "b", "c"], "ratings": [1, 2, 3]}]))
    assert "3 items" in tether("collect import a.db r.json --format ratings --pairs all --annotator judge")[1]
    record = {"fields": {"ask": "Why?", "x": "A", "y": "B", "note": "n"}, "responses": {"q": [{"value": "y", "user_id": "u"}]}}
    (tmp_path / "a.json").write_text(json.dumps([record]))
    line = "collect import a.db a.json --format argilla --question q --prompt-field ask --answer-field x --answer-field y"
    assert "1 judgements added" in tether(line)[1]
    assert "a1  judge" in tether("collect annotators a.db")[1]
