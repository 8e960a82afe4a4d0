"""Contents say what is there already: the name of a file, the order of its rows and the ids of an older database do not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.collect import schema
from tether.collect.adding import Added
from tether.collect.engine import sqlalchemy as sa
from tether.collect.engine import writing
from tether.collect.entries import Answer, Provenance
from tether.collect.exchange.export import export_rows
from tether.collect.exchange.formats import hh, ratings, trl
from tether.collect.exchange.identity import item_of, prompt_id_of
from tether.collect.exchange.imported import import_prompts, import_rows
from tether.collect.exchange.rule import Rule
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.types import Message, Prompt

ROWS = [{"prompt": f"p{i % 3}", "chosen": f"yes {i}", "rejected": f"no {i % 2}"} for i in range(8)]


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "x.db", Settings()) as made:
        yield made


def sizes(store: Store) -> tuple[int, ...]:
    """Prompts, answers, items, judgements, annotators."""
    tables = (store.prompts(), store.answers(), store.items(), store.judgements(), store.annotators())
    return tuple(sum(1 for _ in rows) for rows in tables)


def test_the_same_pairs_in_another_file_are_the_same_items(store):
    first = import_rows(store, ROWS, trl(), "first.jsonl")
    before = sizes(store)
    second = import_rows(store, ROWS, trl(), "second.jsonl")
    assert (first.items, first.judgements) == (Added(8, 0), Added(8, 0))
    assert (second.prompts.new, second.answers.new, second.items, second.judgements) == (0, 0, Added(0, 8), Added(0, 8))
    assert "0 items and 0 judgements added; 8 items and 8 judgements were there already" in str(second)
    assert sizes(store) == before
    assert {answer.provenance.source for answer in store.answers()} == {"first.jsonl"}


def test_another_annotator_adds_a_word_and_nothing_else(store):
    import_rows(store, ROWS, trl("Ann"), "x")
    report = import_rows(store, ROWS, trl("Bo"), "y")
    assert (report.answers.new, report.items.new, report.judgements) == (0, 0, Added(8, 0))
    assert [one.name for one in store.annotators()] == ["Ann", "Bo"]
    assert {row["num_judgements"] for row in export_rows(store, Rule(split="all"))} == {2}


def test_a_word_that_differs_is_a_further_annotator_once(store):
    pair, turned = {"prompt": "p", "chosen": "a", "rejected": "b"}, {"prompt": "p", "chosen": "b", "rejected": "a"}
    assert import_rows(store, [pair], trl(), "x").judgements == Added(1, 0)
    assert import_rows(store, [turned, pair], trl(), "y").judgements == Added(1, 1)
    assert import_rows(store, [turned], trl(), "z").judgements == Added(0, 1)
    assert [one.name for one in store.annotators()] == ["import", "import (2)"]
    assert {one.choice for one in store.judgements()} == {Choice.FIRST, Choice.SECOND}


def test_a_word_that_was_taken_back_stays_so(store):
    import_rows(store, ROWS[:1], trl(), "x")
    store.undo("a1")
    assert import_rows(store, ROWS[:1], trl(), "y").judgements == Added(0, 1)
    assert list(store.judgements()) == []


def test_the_model_tells_equal_texts_apart(store):
    def rated(*models: str) -> dict:
        completions = [{"response": "same", "model": model, "rating": at} for at, model in enumerate(models)]
        return {"prompt": "p", "completions": [*completions, {"response": "other", "rating": 9}]}

    import_rows(store, [rated("m", "n"), rated("m", "m")], ratings(), "x")
    assert sorted(answer.provenance.model for answer in store.answers()) == ["", "m", "m", "n"]
    assert import_rows(store, [rated("m", "m"), rated("n", "m")], ratings(), "y").answers.new == 0
    assert len(list(store.items())) == 2


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=12), st.randoms())
def test_any_rows_in_any_order_and_file_are_taken_once(tmp_path_factory, triples, random):
    rows = [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for prompt, chosen, rejected in triples]
    with Store.create(tmp_path_factory.mktemp("any") / "x.db", Settings()) as store:
        first = import_rows(store, rows, trl(), "x")
        before = sizes(store)
        random.shuffle(rows)
        second = import_rows(store, rows, trl(), "y")
        assert (second.prompts.new, second.answers.new, second.items.new, second.judgements.new) == (0, 0, 0, 0)
        assert sizes(store) == before
        assert second.judgements.known == first.judgements.new == sum(chosen != rejected for _, chosen, rejected in triples)


def test_equal_answers_are_counted_and_make_no_item(store):
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b"}, {"prompt": "q", "chosen": "b", "rejected": "b"}]
    report = import_rows(store, rows, trl(), "x")
    assert "1 x row whose answers are the same text" in str(report)
    assert sizes(store) == (1, 2, 1, 1, 1)
    assert "1 x row whose answers" in str(import_rows(store, rows[1:], trl(), "x"))
    talk = "\n\nHuman: Why?\n\nAssistant: Because."
    assert import_rows(store, [{"chosen": talk, "rejected": talk}], hh(), "x").notes.total() == 1
    rated = {"prompt": "r", "completions": [{"response": text, "rating": at} for at, text in enumerate(("x", "x", "y"))]}
    assert import_rows(store, [rated], ratings("all"), "x").notes.total() == 1
    assert {len(item.answers) for item in store.items()} == {2}


def old_import(store: Store, source: str) -> None:
    """What Tether made of ROWS when an answer's id was a hash of the file's name too."""
    annotator = {one.name: one.id for one in store.annotators()}.get("import") or store.add_annotator("import").id
    for row in ROWS:
        prompt = prompt_id_of(row["prompt"])
        store.add_prompts([Prompt(prompt, row["prompt"])])
        pair = [Answer.of(prompt, row[side], Provenance(source)) for side in ("chosen", "rejected")]
        store.add_answers(pair)
        item = item_of(prompt, [answer.answer_id for answer in pair])
        store.add_items([item])
        choice = Choice.FIRST if item.answers[0] == pair[0].answer_id else Choice.SECOND
        store.record(Judgement(f"{source} {item.item_id}", item.item_id, annotator, choice, item.answers))


def test_a_database_with_ids_of_file_names_takes_the_file_again_without_doubling(store):
    old_import(store, "x.jsonl")
    before = sizes(store)
    for source in ("x.jsonl", "y.jsonl"):
        report = import_rows(store, ROWS, trl(), source)
        assert (report.items, report.judgements) == (Added(0, 8), Added(0, 8))
    assert sizes(store) == before


def test_a_database_that_doubled_them_gets_no_third_one(store):
    old_import(store, "x.jsonl")
    old_import(store, "y.jsonl")
    before = sizes(store)
    assert import_rows(store, ROWS, trl(), "z.jsonl").judgements == Added(0, 8)
    assert sizes(store) == before


def test_items_of_ones_own_are_recognised_too(store):
    store.add_prompts([Prompt("own", "p")])
    store.add_answers([Answer(name, "own", name) for name in "ba"])
    store.add_items([Item("mine", "own", ("b", "a"))])
    report = import_rows(store, [{"prompt": "p", "chosen": "a", "rejected": "b"}], trl(), "x")
    assert (report.prompts.new, report.answers.new, report.items) == (0, 0, Added(0, 1))
    (judgement,) = store.judgements()
    assert (judgement.item_id, judgement.choice) == ("mine", Choice.SECOND)


def test_the_order_of_new_items_is_that_of_the_rows(store):
    import_rows(store, ROWS, trl(), "x")
    texts = {answer.answer_id: answer.plain for answer in store.answers()}
    firsts = [min(int(texts[name].split()[1]) for name in item.answers if texts[name].startswith("yes")) for item in store.items()]
    assert all(one < two for one, two in pairwise(firsts))


def as_turns(row: dict) -> dict:
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    return {name: [{"role": role, "content": row[name]}] for name, role in roles.items()}


@pytest.mark.parametrize("turns_first", [False, True])
def test_a_string_and_one_turn_are_the_same_prompt_and_answer(store, turns_first):
    forms = [ROWS, list(map(as_turns, ROWS))]
    first, second = forms[::-1] if turns_first else forms
    import_rows(store, first, trl(), "first.jsonl")
    before, texts = sizes(store), [prompt.text for prompt in store.prompts()]
    report = import_rows(store, second, trl(), "second.jsonl")
    assert (report.prompts.new, report.answers.new, report.items, report.judgements) == (0, 0, Added(0, 8), Added(0, 8))
    assert sizes(store) == before
    assert [prompt.text for prompt in store.prompts()] == texts  # in the form that came first
    assert isinstance(texts[0], str) != turns_first


def test_other_turns_stay_other_prompts(store):
    texts = ["Hi", (Message("system", "Hi"),), (Message("system", ""), Message("user", "Hi")), (Message("user", "hi"),)]
    assert len({prompt_id_of(text) for text in texts}) == len(texts)
    assert prompt_id_of("Hi") == prompt_id_of((Message("user", "Hi"),))


def test_both_forms_are_on_one_side_of_the_split(tmp_path):
    with Store.create(tmp_path / "x.db", Settings(held_out_share=0.5)) as store:
        texts = [f"Question {i}?" for i in range(60)]
        store.add_prompts(Prompt(f"a{i}", text) for i, text in enumerate(texts))
        store.add_prompts(Prompt(f"b{i}", (Message("user", text),)) for i, text in enumerate(texts))
        side = {prompt.prompt_id: prompt.held_out for prompt in store.prompts()}
    assert 0 < sum(side[f"a{i}"] for i in range(60)) < 60
    assert all(side[f"a{i}"] == side[f"b{i}"] for i in range(60))


def test_an_older_database_keeps_its_sides_and_gives_them_to_the_other_form(tmp_path):
    """There, one turn of a user had an id and a side by a hash of another text: here all are on the other side than they would be now."""
    texts = [f"Question {i}?" for i in range(20)]
    with Store.create(tmp_path / "x.db", Settings(held_out_share=0.5)) as store:
        store.add_prompts(Prompt(f"old{i}", (Message("user", text),)) for i, text in enumerate(texts))
        with writing(store.engine) as connection:
            connection.execute(sa.update(schema.prompts).values(held_out=sa.not_(schema.prompts.c.held_out)))
        sides = {prompt.prompt_id: prompt.held_out for prompt in store.prompts()}
    with Store.open(tmp_path / "x.db") as store:
        again = store.add_prompts(Prompt(f"old{i}", (Message("user", text),)) for i, text in enumerate(texts))
        assert again == Added(0, 20)
        store.add_prompts(Prompt(f"new{i}", text) for i, text in enumerate(texts))
        found = {prompt.prompt_id: prompt.held_out for prompt in store.prompts()}
        assert {name: found[name] for name in sides} == sides
        assert [found[f"new{i}"] for i in range(20)] == [found[f"old{i}"] for i in range(20)]
        assert import_rows(store, [{"prompt": texts[0], "chosen": "a", "rejected": "b"}], trl(), "x").prompts == Added(0, 1)


def test_prompts_alone_are_found_by_their_contents(store, tmp_path):
    store.add_prompts([Prompt("mine", (Message("user", "Why?"),))])
    (tmp_path / "p.jsonl").write_text('{"prompt": "Why?"}\n{"prompt": [{"role": "user", "content": "How?"}]}\n{"prompt": "How?"}\n')
    assert import_prompts(store, tmp_path / "p.jsonl") == Added(1, 2)
    assert [prompt.text for prompt in store.prompts()] == [(Message("user", "Why?"),), (Message("user", "How?"),)]
    assert import_prompts(store, tmp_path / "p.jsonl") == Added(0, 3)


def test_an_answer_in_two_forms_is_nothing_to_compare(store):
    store.add_prompts([Prompt("p", "Why?")])
    store.add_answers([Answer("a", "p", "So."), Answer("b", "p", (Message("assistant", "So."),))])
    store.add_items([Item("i", "p", ("a", "b"))])
    store.record(Judgement("j", "i", store.add_annotator("Ann").id, Choice.FIRST, ("a", "b")))
    assert list(export_rows(store, Rule(split="all"))) == []
