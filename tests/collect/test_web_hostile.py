"""W6 and accessibility in a real Chromium: hostile texts are texts, every page passes axe-core in both themes and fits a phone.

With TETHER_SCREENSHOTS=docs/img the pictures of the documentation are taken anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from web_tools import GUIDELINES, collection, judgement
from xss import HOSTILE

from tether.collect.entries import Answer
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.store import Store
from tether.collect.web.server import serving
from tether.collect.web.visitors import Role, Visitor
from tether.types import Message, Prompt

pytestmark = pytest.mark.web

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")

SKELETON = """() => [...document.querySelectorAll('*')].filter((node) => !node.closest('.text') && !node.closest('dialog'))
  .map((node) => node.tagName + '#' + node.id).sort().join(' ')"""
CHILDREN = """() => [...new Set([...document.querySelectorAll('.text *')].map((node) => node.tagName))].sort()"""
OURS = {"BLOCKQUOTE", "CODE", "DIV", "EM", "HR", "LI", "MARK", "OL", "P", "PRE", "SPAN", "STRONG", "UL"}


def _quiet(_: str) -> None:
    """Links are taken from the office."""


def _link(office, name: str = "Ann") -> str:
    return office.link(Visitor(Role.ANNOTATOR, office.named(name).id))


def _hostile(path: Path) -> Store:
    """Every text as a prompt and as both answers, with ids that are hostile as well."""
    store = collection(path, 0, question=HOSTILE[0], guidelines="\n\n".join(HOSTILE))
    for k, text in enumerate(HOSTILE):
        store.add_prompts([Prompt(f"{k}{text}", (Message("system", text), Message("user", text)))])
        store.add_answers(Answer(f"{k}{n}{text}", f"{k}{text}", text + " tail" * n) for n in (0, 1))
        store.add_items([Item(f"i{k}{text}", f"{k}{text}", (f"{k}0{text}", f"{k}1{text}"))])
    return store


def test_w6_hostile_texts_do_nothing(tmp_path, tab):
    store = _hostile(tmp_path / "a.db")
    with serving(store, say=_quiet) as office:
        ann = tab()
        ann.begin(_link(office, HOSTILE[10]))
        skeletons, seen = set(), set()
        for k in range(len(HOSTILE)):
            for view in ("", "m", "r"):
                if view:
                    ann.page.keyboard.press(view)
                skeletons.add(ann.page.evaluate(SKELETON))
                assert set(ann.page.evaluate(CHILDREN)) <= OURS
            seen |= {text.strip() for text in ann.page.locator("#answers .plain").all_text_contents()}
            ann.page.keyboard.press("r")
            ann.page.mouse.move(400 + k, 400)
            ann.judge("t", "t")
        assert len(skeletons) == 1  # no node outside the boxes of text came or went
        assert sum("alert(1)" in text for text in seen) > 80  # and they were shown
        owner = tab()
        owner.page.goto(office.link(Visitor(Role.OWNER)))
        assert owner.page.locator("section[aria-labelledby=people] tbody th").inner_text() == " ".join(HOSTILE[10].split())
        for one in (ann, owner):
            assert one.dialogs == []
            assert one.complaints == []  # a refusal of the Content-Security-Policy would be one
            assert {url.split("/")[2] for url in one.asked} == {f"127.0.0.1:{office.visitors.port}"}
            assert one.page.evaluate("window.caught") is None
            assert one.page.url.startswith(office.address)


LONG = ["*a", "**a", "_a ", "*a ", "> ", "* a\n", "1. a\n", "```\n", "[", "\\", "*(", "***a", "a\n", "`` ` ", "\u200b", "<a "]

SPACES = " " * 500_000
LINES = [f"```{SPACES}`", f"{'~' * 500_000}`", f"#{SPACES}\u2028", f"-{SPACES}\u2028", f"{'`' * 500}{SPACES}`", f">{SPACES}\u2028"]
"""Lines that end otherwise than they begin, where a pattern has to try again."""


def test_w10_texts_are_rendered_in_linear_time(tmp_path, tab):
    """A hundred thousand characters and more of each; a renderer that is not linear runs into the time limit of the page, 15 s."""
    with serving(collection(tmp_path / "a.db", 1), say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        render = """async (text) => {
          const { renderMarkdown } = await import("/static/markdown.js");
          window.rendered = false;
          setTimeout(() => {
            const box = document.createElement("div");
            renderMarkdown(box, text);
            window.rendered = box.childNodes.length > 0;
          });
        }"""
        for text in (*(part * (100_000 // len(part)) for part in LONG), *LINES):
            ann.page.evaluate(render, text)
            ann.page.wait_for_function("() => window.rendered")
        assert ann.complaints == []


@pytest.mark.parametrize("width", [1280, 360])
def test_w10_a_word_without_end_can_be_judged(tmp_path, tab, width):
    """A browser needs minutes for one word of a million letters, the page has 15 s: it is shown, marked and judged."""
    word, accents = "A" * 1_000_000, "A" * 999 + "\U0001f468" + "e\u0301" * 2000
    ways = [(word, word[1:]), (f"`{word}`", f"```\n{word}\n```"), (accents, "some words and " + "B" * 5000 + " some more")]
    lengths = "() => [...document.querySelectorAll('#answers .text')].map((node) => node.textContent.length)"
    store = collection(tmp_path / "a.db", ways)
    store.add_prompts([Prompt("long", (Message("user", word),))])
    store.add_answers(Answer(f"long{n}", "long", text) for n, text in enumerate("xy"))
    store.add_items([Item("long", "long", ("long0", "long1"))])
    with serving(store, say=_quiet) as office:
        ann = tab(width)
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        seen = set()
        for _ in range(len(ways) + 1):
            seen |= set(ann.page.evaluate(lengths))
            ann.keys("m", "m", "r")
            seen |= set(ann.page.evaluate(lengths))
            ann.keys("r")
            ann.judge("t", "t")
        assert {1_000_000, 999_999, len(accents) + 1} <= seen  # a face is two units of JavaScript
        assert ann.complaints == []


def _violations(tab: Any) -> list[str]:
    """What axe-core finds that is serious or critical. The script is run by the debugger, which no Content-Security-Policy holds up."""
    tab.page.evaluate(AXE)
    found = tab.page.evaluate("async () => (await axe.run()).violations")
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in ("serious", "critical")]


def _rich(path: Path) -> Store:
    """What the pages of the documentation show: made-up answers to made-up questions."""
    answers = (
        "Use slicing:\n\n```python\nxs = [1, 2, 3]\nprint(xs[::-1])\n```\n\nThis makes a **new list**; the old one stays as it is. To "
        "reverse it *in place*, call `xs.reverse()`.",
        "Use slicing:\n\n```python\nxs = [1, 2, 3]\nprint(xs[::-1])\n```\n\nThis reverses the list *in place*; nothing is copied. To get a "
        "**new list**, call `xs.reverse()`.\n\n- It is fast.\n- It works for tuples as well.",
        "Lists cannot be reversed in Python.",
        "Write a loop:\n\n```python\nout = []\nfor x in xs:\n    out.insert(0, x)\n```",
    )
    store = collection(path, 0, guidelines=GUIDELINES)
    for k in range(12):
        store.add_prompts([Prompt(f"q{k}", (Message("user", f"How do I reverse a list in Python? (example {k + 1})"),))])
        store.add_answers(Answer(f"q{k}a{n}", f"q{k}", text) for n, text in enumerate(answers))
        store.add_items([Item(f"q{k}", f"q{k}", tuple(f"q{k}a{n}" for n in range(4 if k == 8 else 2)))])
    return store


def _judged(store: Store) -> None:
    """Some history for the owner's page."""
    pairs = [item for item in store.items() if len(item.answers) == 2]
    for a, name in enumerate(("Ann", "Ben", "Chloë")):
        who = store.add_annotator(name).id
        for k, item in enumerate(pairs[: 9 - 2 * a]):
            choice = (Choice.FIRST, Choice.SECOND, Choice.FIRST, Choice.TIE)[(k + a) % 4]
            shown = item.answers if (k + a) % 3 else item.answers[::-1]
            made = f"2026-05-04T09:{10 + 3 * k + a:02}:00.000+00:00"
            store.record(Judgement(f"{a}-{k}", item.item_id, who, choice, shown, seconds=31.0 - 2 * k + 4 * a, made_at=made))


def _to_ranking(ann: Any) -> None:
    for _ in range(12):
        if ann.page.locator("#ranking").is_visible():
            return
        ann.judge("t", "t")
    raise AssertionError("no item to rank came")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (320, 640), (640, 400)], ids=["wide", "phone", "enlarged twice"])
def test_every_page_is_accessible_and_fits(tmp_path, tab, scheme, width, height):
    store = _rich(tmp_path / "a.db")
    _judged(store)
    with serving(store, names=True, say=_quiet) as office:
        one = tab(width, height, scheme)

        def check(where: str) -> None:
            assert _violations(one) == [], where
            assert not one.overflows, where
            _picture(one, f"collect-{where}-{scheme}-{width}.png")

        one.page.goto(office.link(Visitor(Role.GUEST)))
        one.page.locator("#join").wait_for()
        check("join")
        one.page.goto(office.link(Visitor(Role.OWNER)))
        one.page.locator("#invite").wait_for()
        check("owner")
        one.begin(_link(office, "Dora"))
        check("compare")
        one.keys("g")
        check("guidelines")
        one.keys("g", "a", "2", "m")
        check("chosen")
        one.keys("Escape", "r", "k")
        check("skip")
        one.keys("2", "Escape", "?")
        check("keys")
        one.keys("Escape", "r")
        _to_ranking(one)
        one.keys("c", "a", "=")
        check("rank")
        one.context.set_offline(True)
        one.keys("b", "Enter")
        one.page.locator("#state.waiting").wait_for()
        check("waiting")
        one.context.set_offline(False)
        one.page.locator("#state:not(.waiting)").wait_for(state="attached")
        while not one.page.locator("#done").is_visible():
            _finish(one)
        check("done")
        assert [text for text in one.complaints if "ERR_INTERNET_DISCONNECTED" not in text] == []


def _finish(one: Any) -> None:
    one.judge(*(("a", "b", "c", "d", "Enter") if one.page.locator("#ranking").is_visible() else ("t", "t")))


SHOWN = {
    "collect-chosen-light-1280.png": "collect-compare.png",
    "collect-compare-dark-1280.png": "collect-dark.png",
    "collect-rank-light-1280.png": "collect-rank.png",
    "collect-compare-light-320.png": "collect-phone.png",
    "collect-owner-light-1280.png": "collect-owner.png",
}
"""Pictures of the documentation; TETHER_SCREENSHOTS_ALL=folder takes all of them, to look at."""


def _picture(tab: Any, name: str) -> None:
    if (folder := os.environ.get("TETHER_SCREENSHOTS")) and name in SHOWN:
        target = Path(folder) / SHOWN[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        tab.page.screenshot(path=str(target))
        assert target.stat().st_size < 150_000
    if folder := os.environ.get("TETHER_SCREENSHOTS_ALL"):
        tab.page.screenshot(path=str(Path(folder) / name))


def test_screen_readers_hear_what_happens(tmp_path, tab):
    with serving(collection(tmp_path / "a.db", 3), say=_quiet) as office:
        ann = tab()
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        assert ann.text("#live") == "Two answers to compare."
        ann.judge("a", "a")
        assert ann.text("#live") == "Saved. Two answers to compare."
        ann.judge("u")
        assert ann.text("#live").startswith("Undone")
        assert ann.page.evaluate("document.activeElement.id") == "question"
        for name in ("Text of the prompt", "Answer A", "Answer B"):
            assert ann.page.get_by_role("region", name=name).count() >= 1
        assert ann.page.get_by_role("button", name="A is better").get_attribute("aria-pressed") == "false"


def test_an_item_of_the_wire_is_what_the_page_sends(tmp_path, tab):
    """The page and the tests without a browser speak of the same fields."""
    with serving(collection(tmp_path / "a.db", 2), say=_quiet) as office:
        ann = tab()
        sent = []
        ann.page.on("request", lambda request: sent.append(request.post_data_json) if request.url.endswith("judgements") else None)
        ann.page.goto(_link(office))
        ann.page.locator("#compare").wait_for()
        ann.judge("x", "x")
        assert set(sent[0]) == set(judgement({"item": "", "shown": []}))
