"""A browser for the tests marked web, and a page of the labelling server in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Tab:
    """A page, what it complained of, what it asked for and how many dialogs it opened."""

    def __init__(self, chromium: Any, width: int, height: int, scheme: str) -> None:
        # Without transitions: axe-core would measure the contrast of colours on their way.
        size = {"width": width, "height": height}
        self.context = chromium.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.context.on("request", lambda request: self.asked.append(request.url))

    @property
    def overflows(self) -> bool:
        """True where one would have to scroll sideways."""
        return self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")

    def begin(self, link: str) -> None:
        """Open a personal link, read the guidelines, look at the first item."""
        self.page.goto(link)
        self.page.locator("#guidelines").wait_for()
        self.page.keyboard.press("Enter")
        self.page.locator("#compare").wait_for()
        self.settle()

    def keys(self, *names: str) -> None:
        """Pressed by somebody who has seen what is on the screen: a new item takes no judgement for the first moment."""
        self.settle()
        for name in names:
            self.page.keyboard.press(name)

    def judge(self, *names: str) -> None:
        """Keys that save, and then the wait for the next item."""
        before = self.text("#count")
        self.keys(*names)
        self.page.wait_for_function("before => document.getElementById('count').textContent !== before", arg=before)

    def settle(self) -> None:
        """Until the item on the screen takes a judgement."""
        self.page.wait_for_function("() => document.getElementById('dock')?.getAttribute('aria-busy') !== 'true'")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def open_tab(width: int = 1200, height: int = 800, scheme: str = "light") -> Tab:
        tabs.append(Tab(chromium, width, height, scheme))
        return tabs[-1]

    yield open_tab
    for one in tabs:
        one.context.close()
