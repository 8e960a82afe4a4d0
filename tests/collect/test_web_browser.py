"""People at work, in a real Chromium: by keyboard alone, two at once, over a restart, without a connection, on a phone."""

from __future__ import annotations

import socket
import sqlite3

import pytest
from web_tools import GUIDELINES, collection

from tether.collect.judgement import Choice, Strength
from tether.collect.web.server import serving
from tether.collect.web.visitors import Role, Visitor

pytestmark = pytest.mark.web


HIDDEN = "Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })"


def _quiet(_: str) -> None:
    """Links are taken from the office."""


def _link(office, name: str = "Ann") -> str:
    return office.link(Visitor(Role.ANNOTATOR, office.named(name).id))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_twenty_comparisons_by_keyboard_alone(tmp_path, tab):
    store = collection(tmp_path / "a.db", 21, guidelines=GUIDELINES)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.begin(_link(office))
        assert ann.page.url == f"{office.address}/"  # the token is gone from the address
        shown = []
        strokes = [("a", "a"), ("b", "2", "Enter"), ("t", "t"), ("x", "Enter"), ("a", "1", "Enter")]
        for k in range(19):
            shown.append(ann.text("#answers .answer:first-child .text"))
            ann.judge(*strokes[k % 5])
        shown.append(ann.text("#answers .answer:first-child .text"))
        ann.judge("k", "1", "Enter")
        assert ann.text("#count") == "19 judged, 1 skipped"
        ann.judge("u")  # the skip is taken back, and its item is shown again
        assert ann.text("#count") == "19 judged"
        assert ann.text("#answers .answer:first-child .text") == shown[-1]
        ann.judge("t", "n", "b", "o", "t", "h", " ", "f", "i", "n", "e", "Control+Enter")
        assert ann.complaints == []
        assert {url.split("/")[2] for url in ann.asked} == {f"127.0.0.1:{office.visitors.port}"}
    live, everything = list(store.judgements()), list(store.judgements(include_withdrawn=True))
    assert (len(live), len(everything)) == (20, 21)
    assert [one.choice for one in live[2:4]] == [Choice.TIE, Choice.BOTH_BAD]
    assert [one.strength for one in live[:5]] == [None, Strength.MUCH, None, None, Strength.SLIGHT]
    assert (live[-1].choice, live[-1].comment) == (Choice.TIE, "both fine")
    for k, (one, left) in enumerate(zip(live[:19], shown, strict=False)):
        first_left = left.startswith("the first")
        assert one.shown[0].endswith("0" if first_left else "1")  # what stood on the left is what was recorded
        if strokes[k % 5][0] in "ab":
            assert one.choice is (Choice.FIRST if first_left == (strokes[k % 5][0] == "a") else Choice.SECOND)
        assert 0 <= (one.seconds or 0) < 60
    (withdrawn,) = [one for one in everything if one.withdrawn_at]
    assert (withdrawn.choice, withdrawn.reason) == (Choice.SKIP, "I cannot judge it")


def test_two_at_once_and_one_in_two_windows(tmp_path, tab):
    store = collection(tmp_path / "a.db", 5, judgements_per_overlap_item=2)
    with serving(store, say=_quiet) as office:
        people = [tab(), tab()]
        for person, name in zip(people, ("Ann", "Ben"), strict=True):
            person.page.goto(_link(office, name))
            person.page.locator("#compare").wait_for()  # without guidelines there is none to read
        other = people[0].context.new_page()
        other.goto(office.address)
        other.locator("#compare").wait_for()
        for _ in range(4):
            for person in people:
                person.judge("a", "a")
        other.keyboard.press("b")
        other.keyboard.press("b")
        other.locator("#state", has_text="judged this item already").wait_for()
        for person in people:
            person.judge("a", "a")
            assert "That was all" in person.text("#done")
    said = [(one.annotator, one.item_id) for one in store.judgements()]
    assert len(said) == len(set(said)) == 10


def test_who_begins_twice_asks_once(tmp_path, tab):
    with serving(collection(tmp_path / "a.db", 3, guidelines=GUIDELINES), say=_quiet) as office:
        ann, held = tab(), []
        ann.page.route("**/api/next", lambda route: held.append(route))  # no answer yet
        ann.page.goto(_link(office))
        ann.page.locator("#guidelines").wait_for()
        for _ in range(3):
            ann.page.keyboard.press("Enter")
        ann.page.locator("#begin").click()
        ann.page.wait_for_timeout(300)
        assert len(held) == 1
        held[0].continue_()
        ann.page.locator("#compare").wait_for()


def test_damage_is_told_and_the_judgement_waits_in_the_browser(tmp_path, tab):
    place = tmp_path / "a.db"
    store = collection(place, 30)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        store.engine.dispose()
        settled = sqlite3.connect(place)
        settled.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        settled.close()
        size = place.stat().st_size
        place.write_bytes(place.read_bytes()[:4096] + bytes(size - 4096))
        ann.keys("a", "Enter")
        ann.page.locator("#state.waiting", has_text="Kept here, not saved yet. The database on the server is damaged").wait_for()
        assert "Tell the owner" in ann.text("#state")
        kept = "() => Object.keys(localStorage).filter((key) => key.startsWith('tether-outbox-')).length"
        assert ann.page.evaluate(kept) == 1


def test_a_restart_loses_nothing(tmp_path, tab):
    store, port = collection(tmp_path / "a.db", 6), _free_port()
    ann = tab()
    with serving(store, port=port, say=_quiet) as office:
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        ann.judge("a", "a")
    ann.keys("b", "b")
    ann.page.locator("#state.waiting", has_text="Kept here, not saved yet").wait_for()
    assert len(list(store.judgements())) == 1
    ann.page.close()  # even the page is lost; the browser keeps the judgement
    ann.page = ann.context.new_page()
    with serving(store, port=port, say=_quiet) as office:
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        assert ann.text("#count") == "2 judged"
        ann.judge("t", "t")
    assert len(list(store.judgements())) == 3


def test_an_open_page_goes_on_when_the_new_link_is_opened_beside_it(tmp_path, tab):
    store, port = collection(tmp_path / "a.db", 6), _free_port()
    ann = tab()
    with serving(store, port=port, say=_quiet) as office:
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
    with serving(store, port=port, say=_quiet) as office:
        ann.keys("a", "a")
        ann.page.locator("#state.waiting", has_text="Open the new link in this browser").wait_for()
        assert list(store.judgements()) == []
        ann.context.new_page().goto(_link(office))
        ann.page.locator("#count", has_text="1 judged").wait_for()
        assert ann.text("#state") == ""
    assert len(list(store.judgements())) == 1


def test_two_people_in_one_browser_do_not_judge_for_each_other(tmp_path, tab):
    store = collection(tmp_path / "a.db", 4)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office, "Ann"))
        ann.page.locator("#compare").wait_for()
        ben = ann.context.new_page()
        ben.goto(_link(office, "Ben"))
        ben.locator("#compare").wait_for()
        ann.keys("a", "a")
        ann.page.locator("#state.waiting", has_text="The link of somebody else was opened").wait_for()
        assert list(store.judgements()) == []
        ben.goto(_link(office, "Ann"))
        ann.page.locator("#count", has_text="1 judged").wait_for()
        assert ann.text("#state") == ""
    assert [one.annotator for one in store.judgements()] == ["a1"]


def test_without_a_connection_and_with_answers_that_get_lost(tmp_path, tab):
    store = collection(tmp_path / "a.db", 4)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        ann.context.set_offline(True)
        ann.keys("a", "a")
        ann.page.locator("#state.waiting", has_text="cannot be reached").wait_for()
        ann.context.set_offline(False)
        ann.page.locator("#count", has_text="1 judged").wait_for()
        lost = []

        def lose(route) -> None:  # the server stores it, the page never hears of it
            if lost:
                route.continue_()
            else:
                lost.append(route.fetch().status)
                route.abort()

        ann.page.route("**/api/judgements", lose)
        ann.judge("b", "b")
        assert ann.text("#count").startswith("2 judged")
        assert lost == [200]
        assert ann.text("#state") == ""  # sent again with its id, it is no second word
    assert len(list(store.judgements())) == 2


def test_ranking_by_keys_and_by_drag(tmp_path, tab):
    store = collection(tmp_path / "a.db", [("zero", "one", "two", "three")] * 2)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office))
        ann.page.locator("#ranks li").first.wait_for()
        left_to_right = [text.split("\n")[-1] for text in ann.page.locator(".answer").all_inner_texts()]
        assert ann.page.locator("#save").is_disabled()
        ann.keys("c", "a", "=", "d", "Backspace", "b")
        assert ann.text("#live") == "D is 4." or ann.text("#live") == "B is 3."
        ann.judge("Enter")
        first = [left_to_right[at] for at in (2, 0, 1, 3)]
        left_to_right = [text.split("\n")[-1] for text in ann.page.locator(".answer").all_inner_texts()]
        rows = ann.page.locator("#ranks li")
        for _ in range(4):  # the last one to the front: D, C, B, A in the end
            rows.nth(3).drag_to(rows.nth(0), target_position={"x": 4, "y": 10}, source_position={"x": 14, "y": 10})
        second = [left_to_right["ABCD".index(name)] for name in rows.locator("b").all_inner_texts()]
        rows.nth(1).focus()
        ann.keys("ArrowUp", "ArrowDown")  # there and back
        ann.judge("Enter")
        assert ann.complaints == []
    one, two = store.judgements()
    answers = {answer.answer_id: answer.text for answer in store.answers()}
    assert [[answers[a] for a in tier] for tier in one.ranking] == [first[:2], [first[2]], [first[3]]]
    assert [[answers[a] for a in tier] for tier in two.ranking] == [[text] for text in second]


RANKED = [
    ([("take", 2), ("take", 0), ("take", 1), ("tie", 1), ("move", 0, 0)], [[0], [2], [1], [3]]),  # the first of a tie goes up
    ([("take", 0), ("take", 1), ("tie",), ("take", 2), ("move", 2, 1)], [[0, 2, 1], [3]]),  # put among tied ones
    ([("take", 0), ("take", 1), ("tie",), ("take", 2), ("tie", 2), ("move", 1, 3)], [[0, 2], [3], [1]]),  # the middle one goes
    ([("take", 0), ("take", 1), ("tie",), ("take", 2), ("move", 1, 1), ("move", 0, -1)], [[0, 1], [2], [3]]),  # dropped where it was
    ([("take", 3), ("take", 0), ("tie",), ("take", 1), ("move", 3, 1)], [[0], [3], [1], [2]]),
]


def test_ties_of_a_ranking_stay_between_those_that_were_tied(tmp_path, tab):
    with serving(collection(tmp_path / "a.db", 1), say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        ranked = """async (steps) => {
          const { Ranking } = await import("/static/rank.js");
          const ranking = new Ranking(document.createElement("ol"), () => {});
          ranking.start(4);
          for (const [name, ...places] of steps) ranking[name](...places);
          return ranking.complete && ranking.tiers();
        }"""
        for steps, tiers in RANKED:
            assert ann.page.evaluate(ranked, steps) == tiers


def test_time_counts_only_while_somebody_looks(tmp_path, tab):
    store = collection(tmp_path / "a.db", 3, break_after_minutes=30, guidelines=GUIDELINES)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.page.clock.install()
        ann.begin(_link(office))
        for _ in range(50):  # 40 minutes with a hand on the mouse
            ann.page.clock.run_for(48_000)
            ann.page.mouse.move(300 + _, 300)
        ann.judge("a", "a")
        ann.page.locator("#break").wait_for()
        assert "for 40 minutes" in ann.text("#break")
        ann.page.locator("#rested").click()
        assert not ann.page.locator("#break").is_visible()
        ann.keys("g")
        ann.page.clock.run_for(600_000)  # ten minutes over the guidelines
        ann.keys("g")
        ann.page.clock.fast_forward(3_600_000)  # the machine slept for an hour: two minutes count
        ann.judge("a", "a")
        assert not ann.page.locator("#break").is_visible()
        ann.page.evaluate(f"{HIDDEN}; document.dispatchEvent(new Event('visibilitychange'))")
        ann.page.mouse.move(500, 500)
        ann.page.clock.run_for(60_000)  # another tab is in front
        ann.judge("a", "a")
    assert [one.seconds for one in store.judgements()] == [pytest.approx(seconds, abs=9) for seconds in (2400, 120, 0)]


def test_words_that_differ_are_marked_and_no_others(tmp_path, tab):
    texts = [("One red fox, and `one` dog.", "One grey fox and `two` dogs."), ("same", "same"), ("a b c d", "")]
    with serving(collection(tmp_path / "a.db", texts), say=_quiet) as office:
        ann, found = tab(), {}
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        for _ in texts:
            ann.keys("m")
            for card in ann.page.locator(".answer").all():
                found[card.locator(".text").inner_text()] = card.locator("mark").all_inner_texts()
            ann.judge("t", "t")
    assert found == {
        "One red fox, and one dog.": ["red", ",", "one", "dog"], "One grey fox and two dogs.": ["grey", "two", "dogs"],
        "same": [], "a b c d": ["a b c d"], "(empty)": [],
    }  # fmt: skip


def test_views_and_the_single_letter_switch(tmp_path, tab):
    texts = [("the **cat** sat\n\n```python\nprint(1)\n```\n" + "line\n\n" * 200, "the **dog** sat\u202e down\n" + "line\n\n" * 100)]
    store = collection(tmp_path / "a.db", texts, guidelines=GUIDELINES)
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.begin(_link(office))
        assert set(ann.page.locator("#answers strong").all_inner_texts()) == {"cat", "dog"}
        assert ann.text(".unseen") == "U+202E"
        ann.keys("m")
        marked = " ".join(ann.page.locator("#answers mark").all_inner_texts())
        assert "cat" in marked
        assert "dog" in marked
        assert "sat" not in marked
        ann.keys("m", "r")
        assert ann.page.locator("#answers mark, #answers strong").count() == 0
        assert "**cat**" in ann.text("#answers")
        ann.keys("r")
        scrolls = "[...document.querySelectorAll('.pane')].map((pane) => pane.scrollTop / (pane.scrollHeight - pane.clientHeight))"
        ann.page.evaluate("document.querySelector('.pane').scrollTop = 1e6")
        ann.page.wait_for_function(f"() => {scrolls}.every((share) => share > 0.98)")
        ann.keys("s")
        ann.page.evaluate("document.querySelector('.pane').scrollTop = 0")
        ann.page.wait_for_timeout(200)
        assert sorted(round(share) for share in ann.page.evaluate(scrolls)) == [0, 1]
        ann.keys("?")
        ann.page.locator("#letters").uncheck()
        ann.keys("Escape", "a")
        assert ann.page.locator(".answer.chosen").count() == 0
        assert ann.page.evaluate("getComputedStyle(document.body).colorScheme || getComputedStyle(document.documentElement).colorScheme")
        ann.page.locator("#theme").click()
        assert ann.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_owner_invites_and_a_guest_types_a_name(tmp_path, tab):
    store = collection(tmp_path / "a.db", 3)
    with serving(store, names=True, say=_quiet) as office:
        owner = tab()
        owner.page.goto(office.link(Visitor(Role.OWNER)))
        owner.page.locator("#invite [type=submit]:enabled").wait_for()
        owner.page.locator("#name").fill("Ann")
        owner.page.keyboard.press("Enter")
        owner.page.locator("#made-link").wait_for()
        ann = tab()
        ann.page.goto(owner.text("#made-link"))
        ann.page.locator("#compare").wait_for()
        ann.judge("a", "a")
        guest = tab()
        guest.page.goto(office.link(Visitor(Role.GUEST)))
        guest.page.locator("#join [type=submit]:enabled").wait_for()
        guest.page.locator("#name").fill("Ben")
        guest.page.keyboard.press("Enter")
        guest.page.locator("#compare").wait_for()
        guest.judge("b", "b")
        owner.page.reload()
        assert owner.page.locator("section[aria-labelledby=people] tbody tr").count() == 2
        assert owner.page.locator("svg").count() == 2
        stranger = tab()
        assert stranger.page.goto(office.address).status == 401
        assert ann.page.evaluate("document.cookie") == ""
        assert owner.complaints + ann.complaints + guest.complaints == []
