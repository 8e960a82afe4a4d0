"""Preference data of others: each layout by a small file, the bad rows listed, a second import adds nothing."""

from __future__ import annotations

import json

import pytest

from tether.collect.adding import Added
from tether.collect.exchange.export import export_rows
from tether.collect.exchange.formats import hh, ratings, trl
from tether.collect.exchange.imported import import_file, import_rows
from tether.collect.exchange.rule import Rule
from tether.collect.exchange.tools import argilla, label_studio
from tether.collect.judgement import Choice
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.errors import DataError
from tether.types import Message


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "x.db", Settings()) as made:
        yield made


def rows_of(store: Store) -> list[dict]:
    return list(export_rows(store, Rule(split="all", ties="both_orders")))


def said(store: Store) -> list[tuple]:
    """(annotator, best answers, the others) of every live judgement, in plain texts."""
    texts = {answer.answer_id: answer.plain for answer in store.answers()}
    names = {annotator.id: annotator.name for annotator in store.annotators()}
    found = []
    for judgement in store.judgements():
        item = next(item for item in store.items() if item.item_id == judgement.item_id)
        tiers = {
            Choice.FIRST: [[item.answers[0]], [item.answers[1]]], Choice.SECOND: [[item.answers[1]], [item.answers[0]]],
            Choice.TIE: [item.answers], Choice.RANKED: judgement.ranking, Choice.SKIP: [],
        }[judgement.choice]  # fmt: skip
        found.append((names[judgement.annotator], *(sorted(texts[answer] for answer in tier) for tier in tiers)))
    return found


def test_trl_plain_conversational_and_implicit(store):
    report = import_rows(
        store,
        [
            {"prompt": "Why?", "chosen": "So.", "rejected": "No.", "strength": "much"},
            {"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", "content": "Yes"}], "rejected": "No",
             "margin": 2.0},
            {"chosen": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "b"}],
             "rejected": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "c"}]},
        ],
        trl(),
        "data.jsonl",
    )  # fmt: skip
    added = "3 rows: 3 prompts, 6 answers, 3 items and 3 judgements added; 0 items and 0 judgements were there already"
    assert str(report).startswith(f"{added}\n  1 x margin")
    assert said(store) == [("import", ["So."], ["No."]), ("import", ["Yes"], ["No"]), ("import", ["b"], ["c"])]
    assert [row["strength"] for row in rows_of(store)] == ["much", None, None]
    assert [prompt.text for prompt in store.prompts()] == ["Why?", (Message("user", "Hi"),), (Message("user", "A"),)]
    assert {answer.provenance.source for answer in store.answers()} == {"data.jsonl"}


def test_importing_again_adds_nothing(store, tmp_path):
    rows = [{"prompt": f"p{i % 7}", "chosen": f"yes {i}", "rejected": f"no {i % 3}"} for i in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = import_file(store, tmp_path / "in.jsonl", trl())
    second = import_file(store, tmp_path / "in.jsonl", trl())
    assert (first.prompts.new, first.items.new, first.judgements.new) == (7, 20, 20)
    assert (second.prompts.new, second.answers.new, second.items.new, second.judgements) == (0, 0, 0, Added(0, 20))
    assert len(rows_of(store)) == 20


def test_the_better_answer_is_not_always_the_first(store):
    import_rows(store, [{"prompt": "p", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(200)], trl(), "x")
    firsts = sum(judgement.choice is Choice.FIRST for judgement in store.judgements())
    assert 70 <= firsts <= 130


def test_rows_about_the_same_pair_are_further_annotators(store):
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    import_rows(store, [pair, pair, {"prompt": "p", "chosen": "b", "rejected": "a"}], trl("crowd"), "x")
    assert said(store) == [("crowd", ["a"], ["b"]), ("crowd (2)", ["a"], ["b"]), ("crowd (3)", ["b"], ["a"])]
    (row,) = rows_of(store)
    assert (row["num_judgements"], row["agreement"]) == (3, pytest.approx(2 / 3))


def test_to_be_judged_anew_means_no_judgements(store):
    import_rows(store, [{"prompt": "p", "chosen": "a", "rejected": "b"}], trl(), "x", judged=False)
    assert list(store.judgements()) == []
    assert store.annotators() == []
    assert len(list(store.items())) == 1


def test_all_bad_rows_are_listed_and_nothing_is_stored(store):
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    rows = [good, {"prompt": "p", "chosen": "a"}, good | {"prompt": ""}, DataError("not JSON")]
    with pytest.raises(DataError) as caught:
        import_rows(store, rows, trl(), "data.jsonl")
    assert "data.jsonl: 3 of 4 rows cannot be used" in str(caught.value)
    assert all(f"row {number}:" in str(caught.value) for number in (2, 3, 4))
    assert list(store.prompts()) == []


PAIR = {"prompt": "Why?", "chosen": "So.", "rejected": "No."}


@pytest.mark.parametrize(
    ("label", "better", "worse"), [(1, ["So."], ["No."]), (1.0, ["So."], ["No."]), (0, ["No."], ["So."]), (0.5, ["No.", "So."], None)]
)
def test_a_label_is_the_word_that_it_says(store, label, better, worse):
    import_rows(store, [PAIR | {"label": label}], trl("Ann"), "x")
    assert said(store) == [("Ann", better, *([worse] if worse else []))]


def test_a_label_between_is_several_peoples_and_refused_or_one_vote(store):
    rows = [PAIR | {"prompt": f"p{at}", "label": label} for at, label in enumerate((0.1, 1, 0.7, 0.5))]
    with pytest.raises(DataError, match=r"2 of 4 rows cannot be used(.|\n)*row 1: `label` is 0.1, the share(.|\n)*--summaries as_votes"):
        import_rows(store, rows, trl(), "x")
    report = import_rows(store, rows, trl(), "x", summaries="as_votes")
    assert "2 x `label` between 0 and 1, a share of votes, taken as one vote" in str(report)
    assert [tiers for _, *tiers in said(store)] == [[["No."], ["So."]], [["So."], ["No."]], [["So."], ["No."]], [["No.", "So."]]]
    with pytest.raises(DataError, match="probability that `chosen` is the better"):
        import_rows(store, [PAIR | {"label": 7}], trl(), "x", summaries="as_votes")


def test_a_label_in_a_csv_file_is_a_number(store, tmp_path):
    (tmp_path / "x.csv").write_text("prompt,chosen,rejected,label\nWhy?,So.,No.,0\n")
    import_file(store, tmp_path / "x.csv", trl())
    assert said(store) == [("import", ["No."], ["So."])]


def test_columns_without_a_place_are_counted_and_named(store):
    rows = [PAIR | {"prompt": f"p{at}", "model_chosen": "m", "note": None, "margin": 0.0} for at in range(3)]
    report = str(import_rows(store, [*rows, PAIR | {"label": 0.5, "strength": "much"}], trl(), "x"))
    assert "\n  3 x column `model_chosen`, not kept: it has no place in the database" in report
    assert "\n  1 x strength or margin of a tie, not kept" in report
    assert "note" not in report
    talk = {"chosen": "\n\nHuman: A\n\nAssistant: b", "rejected": "\n\nHuman: A\n\nAssistant: c", "source": "s"}
    assert "1 x column `source`, not kept" in str(import_rows(store, [talk], hh(), "x"))
    rated = ULTRA | {"source": "s", "completions": [one | {"critique": "Good."} for one in ULTRA["completions"]]}
    notes = import_rows(store, [rated], ratings("all"), "x").notes
    assert {name.split("`")[1]: count for name, count in notes.items()} == {"source": 1, "completions.critique": 1}


def test_a_column_names_the_annotator_unless_the_caller_does(store):
    rows = [PAIR | {"prompt": f"p{at}"} | who for at, who in enumerate(({"annotator": "Ann"}, {"rater": " Bo "}, {"rater": 7}, {}))]
    import_rows(store, [*rows, PAIR | {"annotator": "Ann", "rater": "Cy"}], trl(), "x")
    assert [name for name, *_ in said(store)] == ["Ann", "Bo", "7", "import", "Ann"]
    assert import_rows(store, rows, trl(), "x").judgements.new == 0
    report = import_rows(store, rows, trl("Di"), "x")
    assert report.judgements.new == 4
    assert "2 x column `rater`, not kept: --annotator says" in str(report)
    with pytest.raises(DataError, match="`rater` must be the name of the person who judged, got"):
        import_rows(store, [PAIR | {"rater": ["Ann", "Bo"]}], trl(), "x")


def test_transcripts_are_not_taken_as_plain_answers(store):
    row = {"chosen": "\n\nHuman: A\n\nAssistant: b", "rejected": "\n\nHuman: A\n\nAssistant: c"}
    for more in ({}, {"prompt": "A"}):
        with pytest.raises(DataError, match="a transcript as in Anthropic's HH data; import the file with --format hh"):
            import_rows(store, [row | more], trl(), "x")
    assert list(store.prompts()) == []


def test_bundled_data_has_its_name_everywhere(store):
    report = import_file(store, "tether:quickstart_comparisons.jsonl", trl())
    assert report.judgements.new == report.rows > 0
    assert [one.name for one in store.annotators()] == ["Plainspoken v1 (simulated, not a person)"]
    assert {answer.provenance.source for answer in store.answers()} == {"tether:quickstart_comparisons.jsonl"}
    with pytest.raises(DataError, match=r"no such bundled data\. Known: tether:"):
        import_file(store, "tether:none.jsonl", trl())


def test_hh_transcripts_become_conversations(store):
    begin = "\n\nHuman: Hi there\n\nAssistant: Hello.\n\nHuman: What is rain?\n\nAssistant:"
    import_rows(
        store,
        [
            {"chosen": f"{begin} Water.", "rejected": f"{begin} Fire.\n\nIt burns."},
            {"chosen": "\n\nHuman: A\n\nAssistant: b\n\nHuman: c\n\nAssistant: d", "rejected": "\n\nHuman: A\n\nAssistant: x"},
        ],
        hh(),
        "hh",
    )
    prompts = [prompt.text for prompt in store.prompts()]
    assert prompts[0] == (Message("user", "Hi there"), Message("assistant", "Hello."), Message("user", "What is rain?"))
    assert prompts[1] == (Message("user", "A"),)
    rows = rows_of(store)
    assert (rows[0]["chosen"][0]["content"], rows[0]["rejected"][0]["content"]) == ("Water.", "Fire.\n\nIt burns.")
    assert [turn["content"] for turn in rows[1]["chosen"]] == ["b", "c", "d"]
    with pytest.raises(DataError, match='row 1: `chosen` must begin with "'):
        import_rows(store, [{"chosen": "Human: hi", "rejected": "x"}], hh(), "hh")


ULTRA = {
    "instruction": "Name a fruit.",
    "completions": [
        {"model": "m1", "response": "Apple", "overall_score": 8.0},
        {"model": "m2", "response": "Stone", "overall_score": 2.0},
        {"model": "m3", "response": "Pear", "annotations": {"frank": {"Rating": "9"}, "help": {"Rating": "7"}, "true": {"Rating": "N/A"}}},
    ],
}


def test_ratings_become_a_ranking_or_pairs(store):
    import_rows(store, [ULTRA], ratings(), "uf")
    assert said(store) == [("import", ["Apple", "Pear"], ["Stone"])]
    assert {answer.plain: answer.provenance.model for answer in store.answers()} == {"Apple": "m1", "Stone": "m2", "Pear": "m3"}
    assert {(row["chosen"], row["rejected"], row["soft_label"]) for row in rows_of(store)} == {
        ("Apple", "Stone", 1.0), ("Pear", "Stone", 1.0), ("Apple", "Pear", 0.5), ("Pear", "Apple", 0.5),
    }  # fmt: skip


@pytest.mark.parametrize(("pairs", "count"), [("best_worst", 1), ("all", 3)])
def test_ratings_as_pairs(store, pairs, count):
    import_rows(store, [ULTRA], ratings(pairs), "uf")
    assert len(list(store.items())) == count
    assert ("import", ["Apple"], ["Stone"]) in said(store)
    assert all(len(item.answers) == 2 for item in store.items())


def test_rated_lists_and_ratings_that_are_absent(store):
    rated = {"instruction": "A?", "generations": ["x", "y"], "ratings": ["1", "3.5"], "generation_models": ["m", "n"]}
    rows = [rated, {"prompt": "B?", "generations": ["x", "y"]}]
    report = import_rows(store, rows, ratings(), "uf")
    assert said(store) == [("import", ["y"], ["x"])]
    assert (report.items.new, report.judgements.new) == (2, 1)
    with pytest.raises(DataError, match="1 of 2 answers have no rating"):
        import_rows(store, [{"prompt": "C?", "generations": ["x", "y"], "ratings": [1, None]}], ratings(), "uf")


@pytest.mark.parametrize("name", ["generations", "ratings", "generation_models"])
def test_rated_lists_are_lists(store, name):
    """A string would be as many answers as it has letters."""
    row = {"prompt": "Why?", "generations": ["x", "y"], "ratings": [1, 2], "generation_models": ["m", "n"]}
    for odd, kind in (("ab", "a string"), (2, "a number")):
        with pytest.raises(DataError, match=f"row 1: `{name}` must be a list, got {kind}"):
            import_rows(store, [row | {name: odd}], ratings(), "uf")


FIELDS = {"instruction": "Why?", "response_1": "A", "response_2": "B", "response_3": "C"}


def test_argilla_rankings_of_both_versions(store):
    new = {"id": "1", "status": "completed", "fields": FIELDS, "suggestions": {}, "metadata": {}, "responses": {
        "rank": [{"value": ["response_2", "response_1", "response_3"], "user_id": "u1"}],
        "rationale": [{"value": "because", "user_id": "u1"}],
    }}  # fmt: skip
    ranks = [{"value": f"response-{number}", "rank": rank} for number, rank in ((1, 1), (2, 2), (3, 1))]
    old = {"fields": FIELDS | {"instruction": "Why not?"}, "responses": [
        {"user_id": "u2", "status": "submitted", "values": {"rank": {"value": ranks}}},
        {"user_id": "u3", "status": "discarded", "values": {"rank": {"value": [{"value": "response-1", "rank": 1}]}}},
    ]}  # fmt: skip
    report = import_rows(store, [new, old], argilla(), "arg")
    assert said(store) == [("argilla u1", ["B"], ["A"], ["C"]), ("argilla u2", ["A", "C"], ["B"])]
    assert report.notes == {"response with the status 'discarded', not kept": 1, "response to the question 'rationale', not kept": 1}


def test_argilla_labels(store):
    fields = {"prompt": "Why?", "response_1": "A", "response_2": "B", "hint": ""}
    label = {"fields": fields, "responses": {"best": [{"value": "response_2", "user_id": "u1"}, {"value": "tie", "user_id": "u2"}]}}
    report = import_rows(store, [label], argilla(answers=("response_1", "response_2")), "arg")
    assert said(store) == [("argilla u1", ["B"], ["A"]), ("argilla u2", ["A", "B"])]
    assert not report.notes


def test_what_a_tool_exports_besides_is_named(store):
    record = {"id": "1", "fields": FIELDS | {"hint": "think"}, "metadata": {"split": 1}, "vectors": {}, "responses": {
        "best": [ranking("response_1", "response_2", "response_3")],
    }}  # fmt: skip
    report = import_rows(store, [record], argilla(), "arg")
    place = "not kept: it has no place in the database"
    assert report.notes == {f"column `metadata`, {place}": 1, f"column `fields.hint`, {place}": 1}
    other = task() | {"meta": {"x": 1}, "predictions": [], "project": 3}
    other["data"]["difficulty"] = 2
    report = import_rows(store, [other], label_studio(), "ls")
    assert report.notes == {f"column `meta`, {place}": 1, f"column `data.difficulty`, {place}": 1}


def ranking(*names: str, user: str = "u") -> dict:
    return {"value": list(names), "user_id": user}


UNLIKE = [ranking("response_1", "response_2"), ranking("response_3", "response_2", user="v")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, "`fields` must be an object"),
        ({"fields": {"q": "x", "a": "1", "b": "2"}}, "which field is the prompt"),
        ({"fields": FIELDS, "responses": {"best": [{"value": "response_2", "user_id": "u"}]}}, "Name the answers"),
        ({"fields": FIELDS, "responses": {"rank": [ranking("response_2", "response_9")]}}, "names 'response_9'"),
        ({"fields": FIELDS, "responses": {name: [ranking("response_1", "response_2")] for name in "xy"}}, "several questions"),
        ({"fields": FIELDS, "responses": {"rank": UNLIKE}}, "expected each of"),
        ({"fields": FIELDS, "responses": {"rank": "response_1"}}, "`responses.rank` must be a list of objects, got a string"),
        ({"fields": FIELDS, "responses": ["response_1"]}, "`responses` must be a list of objects, and a string is in it"),
        ({"fields": FIELDS, "responses": [{"values": 1}]}, "`values` must be an object, got a number"),
        ({"fields": FIELDS, "responses": [{"values": {"rank": "response_1"}}]}, "`rank` must be an object, got a string"),
    ],
)
def test_argilla_records_that_cannot_be_read(store, row, message):
    with pytest.raises(DataError, match=message):
        import_rows(store, [row], argilla(), "arg")


def task(selected: str = "left", **annotation) -> dict:
    result = [{"type": "pairwise", "from_name": "pw", "to_name": "text1,text2", "value": {"selected": selected}}]
    data = {"prompt": "Why?", "text1": "A", "text2": "B"}
    return {"id": 1, "data": data, "annotations": [{"completed_by": 7, "result": result} | annotation]}


def control(name: str) -> list[dict]:
    return [{"type": "pairwise", "from_name": name, "to_name": "text1,text2", "value": {"selected": "left"}}]


def test_label_studio_pairs(store):
    tasks = [
        task("right", lead_time=4.5, created_at="2024-01-01T00:00:00Z"),
        task("left", completed_by={"id": 9, "email": "x@y.z"}),
        task(was_cancelled=True, completed_by=8),
        task(result=[{"type": "choices", "value": {"choices": ["Tie"]}}], completed_by=5),
    ]
    tasks[3]["annotations"] += task(completed_by=6)["annotations"]
    report = import_rows(store, tasks, label_studio(), "ls")
    assert said(store) == [
        ("label studio 7", ["B"], ["A"]), ("label studio x@y.z", ["A"], ["B"]), ("label studio 8",), ("label studio 6", ["A"], ["B"]),
    ]  # fmt: skip
    first = next(store.judgements())
    texts = {answer.answer_id: answer.plain for answer in store.answers()}
    assert [texts[answer] for answer in first.shown] == ["A", "B"]
    assert (first.seconds, first.made_at) == (4.5, "2024-01-01T00:00:00Z")
    assert report.notes == {"result of the control 'choices', not kept": 1, "annotation without a Pairwise result, not kept": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Why?", "pw": "left"}, "JSON-MIN"),
        (task("both"), "selects left or right"),
        ({"data": {"prompt": "Why?", "text1": "A"}, "annotations": []}, "which fields are the two answers"),
        (task() | {"annotations": {}}, "which fields are the two answers"),
        (task() | {"annotations": "left"}, "`annotations` must be a list of objects, got a string"),
        (task(result=["left"]), "`result` must be a list of objects, and a string is in it"),
        (task(result=[{"type": "pairwise", "to_name": "text1,text2", "value": "left"}]), "`value` must be an object, got a string"),
        (task(result=[*control("kind"), *control("true")]), "several Pairwise controls: kind, true; keep the results of one of them"),
        (task(created_at="yesterday"), "row 1: the time of the judgement must be a time in ISO 8601"),
    ],
)
def test_label_studio_tasks_that_cannot_be_read(store, row, message):
    with pytest.raises(DataError, match=message):
        import_rows(store, [row], label_studio(), "ls")
