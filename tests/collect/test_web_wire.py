"""What the page knows of an item, and what becomes of a choice."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from web_tools import MODEL, Desktop, collection, judgement, next_item, post

from tether.collect import schema
from tether.collect.engine import sqlalchemy as sa
from tether.collect.engine import writing
from tether.collect.entries import Answer
from tether.collect.exchange.dump import dump, load
from tether.collect.judgement import Choice, Item, Strength
from tether.collect.web.app import PAGE_OF
from tether.collect.web.body import BadBody, read_object
from tether.collect.web.owner import overview
from tether.collect.web.visitors import Role, Visitor


def test_nothing_on_the_wire_tells_where_an_answer_is_from(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db", 6))
    ann, ben = desk.annotator("Ann"), desk.annotator("Ben")
    sent = []
    for browser in (ann, ben):
        sent += [browser.get(path).text for path in ("/", "/api/session")]
        for _ in range(6):
            answer = post(browser, "/api/next")
            sent += [answer.text, str(answer.headers)]
            sent.append(post(browser, "/api/judgements", judgement(answer.json()["item"])).text)
    whole = "\n".join(sent)
    assert MODEL not in whole
    assert "provenance" not in whole
    items = [json.loads(text)["item"] for text in sent if text.startswith('{"item"')]
    assert len(items) == 12
    ids = [answer for item in items for answer in item["shown"]]
    assert len(set(ids)) == 24  # an answer has another id for each annotator: two of them find nothing out by comparing
    assert {frozenset(item) for item in items} == {frozenset({"item", "prompt", "answers", "shown"})}


def test_a_test_question_looks_like_any_other(tmp_path):
    """The counts go on in the same way: what is left is told as a share."""
    desk = Desktop(collection(tmp_path / "a.db", 4, gold_share=0.99))
    known = Item("gold", "p0", (f"{MODEL}-0-1", f"{MODEL}-0-0"), Choice.SECOND)
    desk.store.add_items([known])
    browser, seen = desk.annotator(), []
    for _ in range(5):
        answer = post(browser, "/api/next").json()
        seen.append(answer["progress"])
        post(browser, "/api/judgements", judgement(answer["item"]))
    assert "gold" in {one.item_id for one in desk.store.judgements()}
    assert [set(progress) for progress in seen] == [{"judged", "skipped", "share"}] * 5
    shares = [progress["share"] for progress in seen]
    assert shares == sorted(set(shares))
    assert [progress["judged"] for progress in seen] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_is_stored_as_the_answer_that_stood_there(tmp_path, side):
    desk = Desktop(collection(tmp_path / "a.db", 8))
    browser, expected = desk.annotator(), []
    for _ in range(8):
        item = next_item(browser)
        chosen = item["answers"][0 if side == "left" else 1]
        expected.append(Choice.FIRST if chosen.startswith("the first") else Choice.SECOND)
        assert post(browser, "/api/judgements", judgement(item, side, strength="much", comment="because", seconds=2.25)).status_code == 200
    stored = list(desk.store.judgements())
    assert [one.choice for one in stored] == expected
    assert set(expected) == {Choice.FIRST, Choice.SECOND}  # sides are drawn
    assert {(one.strength, one.comment, one.seconds, one.annotator) for one in stored} == {(Strength.MUCH, "because", 2.25, "a1")}
    assert [person.left for person in overview(desk.store).people] == ["100 % [68, 100]" if side == "left" else "0 % [0, 32]"]


def test_a_ranking_is_stored_in_tiers(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db", [("zero", "one", "two")]))
    browser = desk.annotator()
    item = next_item(browser)
    by_text = dict(zip(item["answers"], item["shown"], strict=True))
    tiers = [[by_text["two"]], [by_text["zero"], by_text["one"]]]
    assert post(browser, "/api/judgements", judgement(item, "ranked", ranking=tiers)).status_code == 200
    (stored,) = desk.store.judgements()
    assert stored.ranking == ((f"{MODEL}-0-2",), (f"{MODEL}-0-0", f"{MODEL}-0-1"))


def test_sent_twice_is_stored_once_and_a_second_word_is_a_conflict(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"))
    browser = desk.annotator()
    item = next_item(browser)
    sent = judgement(item, "tie")
    assert [post(browser, "/api/judgements", sent).status_code for _ in range(3)] == [200] * 3
    assert post(browser, "/api/judgements", judgement(item, "tie")).status_code == 409
    assert len(list(desk.store.judgements())) == 1


def test_a_judgement_finds_its_item_after_a_restart(tmp_path):
    first = Desktop(collection(tmp_path / "a.db"))
    sent = judgement(next_item(first.annotator()))
    again = Desktop(first.store)
    assert post(again.annotator(), "/api/judgements", sent).status_code == 200
    assert len(list(first.store.judgements())) == 1


def test_ids_that_are_none_do_not_have_everything_read_again(tmp_path, monkeypatch):
    desk = Desktop(collection(tmp_path / "a.db"))
    browser, read = desk.annotator(), []
    items = desk.store.items
    monkeypatch.setattr(desk.store, "items", lambda: read.append(1) or items())
    item = next_item(browser)
    for k in range(3):
        assert post(browser, "/api/judgements", judgement(item) | {"item": f"none {k}"}).status_code == 422
    assert len(read) == 1
    assert post(browser, "/api/judgements", judgement(item)).status_code == 200
    desk.store.add_answers([Answer("late 0", "p0", "late"), Answer("late 1", "p0", "later")])
    desk.store.add_items([Item("late", "p0", ("late 0", "late 1"))])
    while (item := next_item(browser)) is not None:  # what is shown is met, also what came later
        assert post(browser, "/api/judgements", judgement(item)).status_code == 200
    assert "late" in {one.item_id for one in desk.store.judgements()}


def test_undo_brings_the_item_back_and_asked_twice_takes_back_one(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db", 4))
    browser = desk.annotator()
    items = []
    for _ in range(3):
        items.append(next_item(browser))
        post(browser, "/api/judgements", judgement(items[-1]))
    newest = post(browser, "/api/next").json()["last"]
    for _ in range(2):
        answer = post(browser, "/api/undo", {"judgement_id": newest}).json()
        assert answer["item"] == items[-1]
        assert answer["progress"]["judged"] == 2
    assert len(list(desk.store.judgements())) == 2


def test_a_page_is_not_taken_over_by_the_next_person_in_its_browser(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"))
    browser = desk.annotator("Ann")
    page = {PAGE_OF: browser.get("/api/session").json()["page"]}
    word = judgement(next_item(browser))
    assert browser.get(desk.office.link(Visitor(Role.ANNOTATOR, desk.office.named("Ben").id))).status_code == 200
    for path, body in (("/api/judgements", word), ("/api/next", {}), ("/api/undo", {"judgement_id": word["judgement_id"]})):
        answer = post(browser, path, body, headers=page)
        assert (answer.status_code, "your own newest link" in answer.text) == (403, True)  # 403 waits in the page, 422 would be dropped
    assert list(desk.store.judgements()) == []
    assert browser.get("/api/session").json()["page"] != page[PAGE_OF]
    browser.get(desk.office.link(Visitor(Role.ANNOTATOR, "a1")))
    assert post(browser, "/api/judgements", word, headers=page).status_code == 200
    assert [one.annotator for one in desk.store.judgements()] == ["a1"]


def test_a_page_is_of_one_collection_and_of_its_copies(tmp_path):
    """Annotators are called a1, a2, ... in every collection, and two of them may be served on one port, one after the other."""
    store, other = collection(tmp_path / "a.db"), collection(tmp_path / "b.db")
    dump(store, tmp_path / "a.jsonl")
    copy = load(tmp_path / "copy.db", tmp_path / "a.jsonl")
    mine, others, copied = (Desktop(one).office.page_of("a1") for one in (store, other, copy))
    assert mine == copied != others


def test_nobody_takes_back_what_another_said(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"))
    ann, ben = desk.annotator("Ann"), desk.annotator("Ben")
    post(ann, "/api/judgements", judgement(next_item(ann)))
    stored = post(ann, "/api/next").json()["last"]
    assert post(ben, "/api/undo", {"judgement_id": stored}).status_code == 422
    assert len(list(desk.store.judgements())) == 1


WRONG = [
    {"choice": "first"}, {"choice": None}, {"choice": "ranked"}, {"choice": "skip"}, {"strength": "huge"},
    {"strength": "much", "choice": "tie"},
    {"shown": []}, {"shown": ["x", "y"]}, {"shown": "xy"}, {"item": "x"}, {"item": 1}, {"judgement_id": "1"}, {"judgement_id": "g" * 32},
    {"seconds": -1}, {"seconds": True}, {"seconds": "1"}, {"seconds": 1e9}, {"comment": "x" * 5000}, {"comment": "\u0000"}, {"comment": 1},
    {"reason": "\ud800"}, {"ranking": [["x"]]}, {"ranking": 1}, {"annotator": "a2"},
]  # fmt: skip


def test_what_does_not_fit_is_refused(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"))
    browser = desk.annotator()
    item = next_item(browser)
    for wrong in WRONG:
        headers = {"Content-Type": "application/json"}
        answer = post(browser, "/api/judgements", content=json.dumps(judgement(item) | wrong), headers=headers)
        assert answer.status_code == 422, wrong
        assert MODEL not in answer.text
    assert list(desk.store.judgements()) == []


def test_a_typed_name_goes_on_where_it_stopped(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"), names=True)
    for typed in ("Ann Smith", "  Ann   Smith "):
        browser = desk.enter(Role.GUEST)
        assert "Type your name" in browser.get("/").text
        assert post(browser, "/api/join", {"name": typed}).status_code == 200
        assert 'id="dock"' in browser.get("/").text
        post(browser, "/api/judgements", judgement(next_item(browser)))
    assert [annotator.name for annotator in desk.store.annotators()] == ["Ann Smith"]
    kept = desk.store.add_annotator("Bo  Jones")  # as a file or the command line may have written it
    assert desk.office.named("Bo Jones") == kept
    other = desk.store.add_annotator("Bo Jones")
    assert (desk.office.named("Bo Jones"), desk.office.named("Bo  Jones")) == (other, kept)
    assert post(browser, "/api/next").json()["progress"]["judged"] == 2
    assert post(desk.enter(Role.GUEST), "/api/join", {"name": " "}).status_code == 422


def test_the_owner_sees_who_did_how_much(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db", 5, overlap=0.0))
    owner = desk.enter(Role.OWNER)
    assert "Nobody yet" in owner.get("/owner").text
    made = post(owner, "/api/links", {"name": "Ann"}).json()
    ann = desk.browser()
    assert ann.get(made["link"]).status_code == 200
    for choice, more in (("left", {}), ("tie", {}), ("skip", {"reason": "unclear"})):
        post(ann, "/api/judgements", judgement(next_item(ann), choice, seconds=3.0, **more))
    now = overview(desk.store)
    (person,) = now.people
    assert (person.name, person.judged, person.skipped, person.seconds, person.ties) == ("Ann", 2, 1, "3.0 s", 0.5)
    assert (now.wanted, now.got, now.num_items) == (5, 2, 5)
    assert [chart.title for chart in now.charts] == ["Judgements", "Speed"]
    figures = {figure.name: figure for figure in now.measured}
    assert figures["gold accuracy"].value == "not known"
    assert figures["gold accuracy"].advice == "Not known yet: no test question was judged."
    assert ("[" in figures["left share"].value, figures["left share"].unit, figures["gold accuracy"].unit) == (True, "share", "")
    page = owner.get("/owner").text
    assert "Raw agreement" in page
    assert "Ann" in page
    assert "3.0 s" in page
    assert "<svg" in page
    assert made["link"] not in page


def test_a_time_that_is_none_does_not_hide_the_owners_page(tmp_path):
    """No judgement is recorded with one; a dump that was changed by hand may still bring it."""
    desk = Desktop(collection(tmp_path / "a.db"))
    browser = desk.annotator()
    for _ in range(2):
        post(browser, "/api/judgements", judgement(next_item(browser)))
    with writing(desk.store.engine) as connection:
        connection.execute(sa.update(schema.judgements).where(schema.judgements.c.number == 0).values(made_at="yesterday"))
    done = overview(desk.store).charts[0]
    assert [len(line.marks) for line in done.lines] == [1]


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '1, "a": 2', "[" * 10_000])
def test_what_is_json_to_python_alone_is_refused(value):
    assert read_object(b'{"a": 1e3}', ("a",)) == {"a": 1000.0}
    with pytest.raises(BadBody) as refused:
        read_object(f'{{"a": {value}}}'.encode(), ("a",))
    assert refused.value.status == 400


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_are_an_object_or_a_clean_refusal(body: bytes):
    with suppress(BadBody):
        assert read_object(body, ("a",)).keys() == {"a"}
