"""What goes wrong at a desk: a key too often, two windows, a lost session, a right-to-left text, a phone of 320 pixels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from people import HASTY, six_people
from test_web_hostile import _violations
from web_tools import collection

from tether.collect.entries import Answer
from tether.collect.judgement import Judgement
from tether.collect.settings import Settings
from tether.collect.stats.page import page
from tether.collect.stats.summary import summarise
from tether.collect.store import Store
from tether.collect.web.server import serving
from tether.collect.web.visitors import Role, Visitor
from tether.types import Prompt

pytestmark = pytest.mark.web


def _quiet(_: str) -> None:
    """Links are taken from the office."""


def _link(office, name: str = "Ann") -> str:
    return office.link(Visitor(Role.ANNOTATOR, office.named(name).id))


def _open(tab, office, width: int = 1200, height: int = 800, scheme: str = "light"):
    ann = tab(width, height, scheme)
    ann.page.goto(_link(office))
    ann.page.locator("#compare").wait_for()
    ann.settle()
    return ann


def _next(ann) -> None:
    ann.page.locator("#count", has_text="1 judged").wait_for()


@pytest.mark.parametrize("key", ["a", "b", "t", "x"])
def test_a_key_pressed_too_often_judges_one_item(tmp_path, tab, key):
    store = collection(tmp_path / "a.db", 4)
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        ann.page.evaluate("""(key) => {
          const strike = () => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
          strike(); strike();
          new MutationObserver(() => { strike(); strike(); strike(); }).observe(document.getElementById("count"), { childList: true });
        }""", key)  # three more strokes come the moment the next item is there
        _next(ann)
        assert ann.page.locator("[aria-pressed=true][data-choice]").count() == 0
        ann.settle()
        ann.page.keyboard.press("Enter")
        ann.page.wait_for_timeout(300)
        assert ann.text("#count") == "1 judged"
    assert len(list(store.judgements())) == 1


def test_a_key_that_is_held_judges_nothing(tmp_path, tab):
    store = collection(tmp_path / "a.db", 4)
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        for _ in range(12):
            ann.page.keyboard.down("a")  # the second and later ones are repeats, as of a key that is held
        ann.page.keyboard.up("a")
        assert ann.page.locator("[data-choice=left][aria-pressed=true]").count() == 1
        for _ in range(12):
            ann.page.keyboard.down("Enter")
            ann.page.wait_for_timeout(60)
        ann.page.keyboard.up("Enter")
        _next(ann)
    assert len(list(store.judgements())) == 1


def test_a_double_click_judges_nothing_and_no_second_item(tmp_path, tab):
    store = collection(tmp_path / "a.db", 4)
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        ann.page.locator("[data-choice=right]").dblclick()
        ann.page.wait_for_timeout(300)
        assert list(store.judgements()) == []
        ann.page.locator("#save").dblclick()
        _next(ann)
        ann.page.wait_for_timeout(600)
        assert ann.text("#count") == "1 judged"
    assert len(list(store.judgements())) == 1


def test_two_windows_without_a_connection_lose_nothing(tmp_path, tab):
    """Each keeps its own; a window that is closed before it could send leaves its judgement for the other."""
    store = collection(tmp_path / "a.db", [("one", "two"), ("three", "four")])
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        ann.keys("a", "Enter")
        _next(ann)
        ann.settle()
        other = ann.context.new_page()
        other.goto(office.address)
        other.locator("#compare").wait_for()
        ann.context.set_offline(True)
        ann.keys("a", "Enter")
        ann.page.locator("#state.waiting").wait_for()
        other.evaluate("localStorage.length")
        kept = "() => Object.keys(localStorage).filter((key) => key.startsWith('tether-outbox-')).length"
        assert ann.page.evaluate(kept) == 1
        other.wait_for_timeout(500)
        other.keyboard.press("b")
        other.keyboard.press("Enter")
        other.locator("#state.waiting").wait_for()
        assert other.evaluate(kept) == 2  # not written over
        ann.page.close()
        ann.page = other
        ann.context.set_offline(False)
        other.locator("#done, #state:not(:empty)").first.wait_for()
        other.reload()
        other.locator("#done").wait_for()
        assert other.evaluate(kept) == 0
    assert len(list(store.judgements())) == 2


def test_who_is_signed_out_is_told_and_loses_nothing(tmp_path, tab):
    store = collection(tmp_path / "a.db", 3)
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        office.visitors._sessions.clear()  # as a server that was started anew
        ann.keys("a", "Enter")
        ann.page.locator("#state.waiting", has_text="You are signed out").wait_for()
        assert list(store.judgements()) == []
        older, newer = _link(office), _link(office)
        assert ann.context.new_page().goto(older).status == 401  # another one was made since
        ann.context.new_page().goto(newer)
        _next(ann)
        assert ann.text("#state") == ""
    assert len(list(store.judgements())) == 1


def test_the_focus_is_on_the_question_after_each_judgement_and_stays_in_the_ranking(tmp_path, tab):
    store = collection(tmp_path / "a.db", [("zero", "one", "two", "three")] * 3)
    focus = "() => document.activeElement.id || document.activeElement.getAttribute('aria-label')"
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        ann.page.get_by_role("button", name="Move C up").focus()
        ann.page.keyboard.press("Enter")
        assert ann.page.evaluate(focus) == "Move C up"
        assert ann.text("#live") == "C is 1."
        ann.page.get_by_role("button", name="Move B up").focus()
        ann.page.keyboard.press("Enter")
        ann.page.get_by_role("button", name="Tie B with the one above").focus()
        ann.page.keyboard.press("Space")
        assert ann.page.evaluate(focus) == "Tie B with the one above"
        assert ann.text("#live") == "B is = 1."
        ann.keys("a")  # the last one has one place left
        ann.page.locator("#save").focus()
        ann.judge("Enter")
        assert ann.page.evaluate(focus) == "question"
        ann.page.locator("#undo").focus()
        ann.page.keyboard.press("Enter")
        ann.page.locator("#live", has_text="Undone: the last judgement is open again.").wait_for()
        assert ann.page.evaluate(focus) == "question"
    assert list(store.judgements()) == []


def test_each_text_has_its_own_direction(tmp_path, tab):
    hebrew = "שלום לכולם\n\n- אחת\n- שתיים\n\n> ציטוט"
    store = collection(tmp_path / "a.db", [(hebrew, "left to right\n\n- one")], question="איזו תשובה טובה יותר?")
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        found = ann.page.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".answer .text")].map((box) => {
          const list = getComputedStyle(box.querySelector("ul"));
          const room = list.direction === "rtl" ? list.paddingRight : list.paddingLeft;
          return [getComputedStyle(box).direction, parseFloat(room) > 0];
        }))""")
        assert found == {"rtl": True, "ltr": True}  # bullets have room on the side where they stand
        assert ann.page.evaluate("getComputedStyle(document.getElementById('question')).direction") == "rtl"
        ann.page.locator("#note").fill("הערה")
        assert ann.page.evaluate("document.getElementById('note').matches(':dir(rtl)')")


def test_long_answers_scroll_together_also_when_there_are_four(tmp_path, tab):
    """The one that is scrolled leads: those that follow, much shorter, do not push it back."""
    store = collection(tmp_path / "a.db", [tuple("word " * count for count in (9000, 2500, 1500, 4000))])
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        places = ann.page.evaluate("""async () => {
          const panes = [...document.querySelectorAll(".pane")];
          const leader = panes.reduce((one, other) => (other.scrollHeight > one.scrollHeight ? other : one));
          const next = () => new Promise((resolve) => requestAnimationFrame(resolve));
          const frame = async () => { for (let k = 0; k < 3; k += 1) await next(); };
          const seen = [];
          for (let top = 37; top < 2000; top += 137) { leader.scrollTop = top; await frame(); seen.push(leader.scrollTop - top); }
          const share = (pane) => pane.scrollTop / (pane.scrollHeight - pane.clientHeight);
          return { seen, spread: Math.max(...panes.map(share)) - Math.min(...panes.map(share)) };
        }""")
        assert set(places["seen"]) == {0}
        assert places["spread"] < 0.02


@pytest.mark.parametrize("height", [480, 640])
def test_skipping_leaves_room_for_the_answers_on_a_small_phone(tmp_path, tab, height):
    store = collection(tmp_path / "a.db", [("line of an answer\n\n" * 40, "another line\n\n" * 40)])
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office, 320, height)
        ann.page.locator("#skip").click()
        box = ann.page.locator("#dock").bounding_box()
        assert box["height"] <= 0.5 * height + 1
        ann.page.locator(".answer .pane").first.scroll_into_view_if_needed()
        ann.page.mouse.wheel(0, 200)
        top = ann.page.locator(".answer .pane").first.bounding_box()["y"]
        assert top < box["y"] - 40  # something of it is seen above the panel
        for name in ("I cannot judge it", "The prompt is unclear", "A text is cut off", "It is disturbing"):
            ann.page.get_by_role("button", name=name).scroll_into_view_if_needed()
        ann.page.locator("#skip").click()  # taken back
        assert ann.page.locator("#choices").is_visible()
        assert ann.page.locator("#skip").get_attribute("aria-pressed") == "false"
        assert not ann.overflows


def test_a_reason_of_ones_own_is_typed_and_stored(tmp_path, tab):
    """Its letters are keys elsewhere: A, T, X, U, M, R, L, S and G would choose, undo and more; K held opens the panel once."""
    store = collection(tmp_path / "a.db", 6)
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        ann.judge("b", "Enter")
        ann.settle()
        for _ in range(4):
            ann.page.keyboard.down("k")
        ann.page.keyboard.up("k")
        assert ann.page.evaluate("document.activeElement.id") == "reason"
        assert ann.page.locator("#reason").input_value() == ""
        ann.page.keyboard.type("Galaxy texts: 2 much, RSL?", delay=5)
        ann.judge("Enter")
        ann.keys("k", "3")
        assert ann.page.locator("#reason").input_value() == "A text is cut off"
        ann.keys("2")  # another of ours, with the focus on Save
        ann.judge("Enter")
        ann.keys("k", "1")
        ann.page.keyboard.type("Unsure", delay=5)  # written over it
        ann.judge("Enter")
        ann.settle()
        ann.page.locator("#skip").focus()
        ann.page.keyboard.press("Enter")
        ann.page.locator("#reasons legend").click()
        ann.page.keyboard.type("taxes", delay=5)  # from anywhere
        ann.judge("Enter")
        ann.keys("k", "o", "Escape")
        assert ann.page.locator("#choices").is_visible()
        assert ann.page.locator("#skip").get_attribute("aria-pressed") == "false"
        assert ann.text("#count") == "1 judged, 4 skipped"
    said = [one.reason for one in store.judgements() if one.reason]
    assert sorted(said) == sorted(["Galaxy texts: 2 much, RSL?", "The prompt is unclear", "Unsure", "taxes"])


def test_undo_before_the_judgement_is_saved_says_so(tmp_path, tab):
    store = collection(tmp_path / "a.db", 3)
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office)
        ann.context.set_offline(True)
        ann.keys("a", "Enter")
        ann.page.locator("#state.waiting").wait_for()
        ann.page.keyboard.press("u")
        ann.page.locator("#state", has_text="not saved yet, so it cannot be undone").wait_for()
        ann.context.set_offline(False)
        _next(ann)
        ann.keys("u")
        ann.page.locator("#count", has_text="0 judged").wait_for()
    assert list(store.judgements()) == []


def test_after_a_choice_a_small_phone_still_shows_the_answers(tmp_path, tab):
    store = collection(tmp_path / "a.db", [("a short answer", "another short answer")])
    with serving(store, say=_quiet) as office:
        ann = _open(tab, office, 320, 600)
        ann.page.locator("[data-choice=left]").click()
        dock = ann.page.locator("#dock")
        assert dock.bounding_box()["height"] <= 0.3 * 600
        assert dock.evaluate("(node) => node.scrollHeight <= node.clientHeight + 1")  # nothing of it is hidden
        for name in ("[data-choice=right]", "[data-strength=slight]", "#note", "#skip", "#save"):
            box = ann.page.locator(name).bounding_box()
            assert min(box["width"], box["height"]) >= 24
        bottom = dock.bounding_box()["y"]
        ann.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        tops = [one.bounding_box()["y"] for one in ann.page.locator(".answer").all()]
        assert all(0 <= top < bottom - 40 for top in tops)  # both are seen above it
        assert not ann.overflows
        assert _violations(ann) == []


def _stored(path) -> Store:
    """The six people of ``people.py`` in a database."""
    made = six_people(60)
    store = Store.create(path, Settings(seed=1, overlap=1.0, judgements_per_overlap_item=3))
    store.add_prompts(Prompt(name, f"Question {name}?") for name in dict.fromkeys(item.prompt_id for item in made.items))
    store.add_answers(Answer(a, a.split("a")[0], "x" * length) for a, length in made.lengths.items())
    store.add_items(made.items)
    who = {name: store.add_annotator(name).id for name in dict.fromkeys(j.annotator for j in made.judgements)}
    said: dict[tuple[str, str], Judgement] = {}
    for j in made.judgements:
        said.setdefault((j.annotator, j.item_id), j)
    store.record_all([
        Judgement(j.judgement_id, j.item_id, who[j.annotator], j.choice, j.shown, j.strength, (), j.reason, "", j.seconds)
        for j in said.values()
    ])  # fmt: skip
    return store


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_owner_reads_who_is_hasty(tmp_path, tab, width, scheme):
    with serving(_stored(tmp_path / "a.db"), say=_quiet) as office:
        owner = tab(width, 800, scheme)
        owner.page.goto(office.link(Visitor(Role.OWNER)))
        owner.page.locator("#invite").wait_for()
        told = owner.text("section[aria-labelledby=named]")
        assert HASTY in told
        assert "Answers in 1." in told
        assert "hasty, surely more than" in told
        assert f"--without {HASTY}" in told
        assert not owner.overflows
        assert _violations(owner) == []
        assert "`" not in owner.page.locator("body").inner_text()
        for region in owner.page.locator(".scroll").all():
            assert region.evaluate("(node) => node.getBoundingClientRect().right <= innerWidth")
            region.evaluate("(node) => { node.scrollLeft = 1e5; }")
            name = region.locator("tbody th").first
            assert name.evaluate("(node) => node.getBoundingClientRect().left >= 0")  # whose row it is stays seen
        assert owner.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_of_statistics_fits_and_is_accessible(tmp_path, tab, width, scheme):
    made = six_people(80)
    long = "a-person-with-a-name-that-does-not-end-" * 3
    made = replace(made, judgements=tuple(replace(j, annotator=long) if j.annotator == "Emil" else j for j in made.judgements))
    target = tmp_path / "stats.html"
    target.write_text(page(summarise(made.judgements, made.items, made.lengths), title="Judgements of a-database-with-a-long-name.db"))
    one = tab(width, 900, scheme)
    one.page.goto(target.as_uri())
    one.page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    assert not one.overflows
    assert one.page.locator("#people tbody th").first.evaluate("(node) => node.offsetWidth / node.closest('.scroll').offsetWidth") < 0.65
    assert _violations(one) == []
    assert "`" not in one.page.locator("body").inner_text()
    assert one.page.locator("#people svg .line").count() == 0
    assert one.complaints == []
