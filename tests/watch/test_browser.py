"""The report and the live page in a real Chromium: no error in the console, nothing asked of the network, readable on a phone.

With TETHER_SCREENSHOTS=docs/img the pictures of the documentation are taken anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tether.report import write_report
from tether.watch.server import serve

sync_api = pytest.importorskip("playwright.sync_api", reason="the extra web is not installed")

pytestmark = pytest.mark.web

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Tab:
    """A page with what it complained of and what it asked for."""

    def __init__(self, browser: Any, width: int = 1100, height: int = 900, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))

    @property
    def overflows(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")

    def picture(self, name: str) -> None:
        """Into the folder of pictures, where one is named."""
        if folder := os.environ.get("TETHER_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / name))
            assert (Path(folder) / name).stat().st_size < 300_000


@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (1100, "dark"), (320, "light"), (360, "dark")])
def test_report_opens_offline(chromium, running, width: int, scheme: str):
    running.go(40, HOSTILE)
    running.end()
    tab = Tab(chromium, width, 1250 if width > 400 else 780, scheme)
    tab.context.set_offline(True)
    tab.page.goto(write_report(running.folder).as_uri())
    assert tab.complaints == []
    assert [url for url in tab.asked if not url.startswith("file:")] == []
    assert not tab.overflows
    assert tab.page.locator("#training img").count() == 0
    tab.page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    assert not tab.overflows
    tab.context.close()


def test_search_shows_what_was_asked_for(chromium, running):
    running.go(12)
    tab = Tab(chromium)
    tab.page.goto(write_report(running.folder).as_uri())
    tab.page.locator("#training summary").first.click()
    tab.page.locator("#training input").fill("ANSWER 7")
    assert tab.page.locator("#training .sample:visible").count() == 1
    assert tab.page.locator("#training output").inner_text() == "1 of 12 shown"
    tab.page.locator("#training input").fill("")
    assert tab.page.locator("#training .sample:visible").count() == 12
    assert tab.complaints == []
    tab.context.close()


def test_report_without_scripts(chromium, running):
    running.go(5)
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(write_report(running.folder).as_uri())
    page.locator("#training summary").first.click()
    assert page.locator("#training .sample").first.is_visible()
    assert not page.locator("#training .search").is_visible()
    context.close()


@pytest.mark.parametrize("width", [1100, 360])
def test_live_page_grows_in_place(chromium, running, width: int):
    running.go(9, HOSTILE)
    with serve(running.folder, say=lambda _: None) as app:
        tab = Tab(chromium, width, 780)
        tab.page.goto(app.link)
        live = tab.page.locator("#live")
        sync_api.expect(live).to_have_text("Live: rl.ppo, step 9 of 40.", timeout=10_000)
        assert tab.page.url == f"http://127.0.0.1:{app.port}/"
        tab.page.locator("#training summary").first.click()
        tab.page.locator("#training input").fill("prompt 3")
        tab.page.evaluate("window.kept = document.querySelector('#training input')")
        tab.page.mouse.wheel(0, 300)
        tab.page.wait_for_timeout(300)
        before = tab.page.evaluate("document.querySelector('#training input').getBoundingClientRect().top")
        running.go(3)
        running.log.write("alarm", stage="rl.ppo", step=12, rule="divergence", seen="the score fell", advice="read the answers", text="-")
        sync_api.expect(live).to_have_text("Live: rl.ppo, step 12 of 40.", timeout=10_000)
        sync_api.expect(tab.page.locator("#alerts .alarm")).to_contain_text("read the answers")
        after = tab.page.evaluate("document.querySelector('#training input').getBoundingClientRect().top")
        assert abs(after - before) < 5  # the reader stays where they were, although an alert came in above
        assert tab.page.evaluate("window.kept === document.querySelector('#training input')")
        assert tab.page.locator("#training input").input_value() == "prompt 3"
        assert tab.page.locator("#training .sample:visible").count() == 1
        assert not tab.overflows
        running.go(28)
        running.end()
        sync_api.expect(live).to_contain_text("The run is finished", timeout=10_000)
        assert tab.complaints == []
        assert {url.split("/")[2] for url in tab.asked} == {f"127.0.0.1:{app.port}"}
        tab.context.close()


def test_another_browser_sees_nothing(chromium, running):
    with serve(running.folder, say=lambda _: None) as app:
        tab = Tab(chromium)
        link = app.link
        tab.page.goto(link)
        sync_api.expect(tab.page.locator("#report")).to_be_visible()
        stranger = Tab(chromium)
        assert stranger.page.goto(link).status == 401
        assert stranger.page.goto(f"http://localhost:{app.port}/").status == 401
        assert tab.page.evaluate("document.cookie") == ""
        tab.context.close()
        stranger.context.close()


def test_lost_connection_is_said_and_the_page_stays(chromium, running):
    running.go(4)
    with serve(running.folder, say=lambda _: None) as app:
        tab = Tab(chromium)
        tab.page.goto(app.link)
        sync_api.expect(tab.page.locator("#live")).to_contain_text("step 4")
    sync_api.expect(tab.page.locator("#live")).to_contain_text("connection to tether watch is lost", timeout=10_000)
    assert tab.page.locator("#curves svg").first.is_visible()
    tab.context.close()


def test_pictures_of_the_documentation(chromium, running):
    """The pages as the documentation shows them; TETHER_SCREENSHOT_RUN names a run folder for the report, else it is the fixture's."""
    _alarmed(running)
    tab = Tab(chromium, 1000, 1100)
    with serve(running.folder, say=lambda _: None) as app:
        tab.page.goto(app.link)
        sync_api.expect(tab.page.locator("#live")).to_contain_text("step 24 of 40", timeout=10_000)
        tab.page.locator("#policies").scroll_into_view_if_needed()
        tab.page.evaluate("document.getElementById('policies').scrollIntoView()")
        tab.picture("watch.png")
    running.go(16)
    running.end()
    tab.page.goto(write_report(os.environ.get("TETHER_SCREENSHOT_RUN") or running.folder).as_uri())
    tab.picture("report.png")
    tab.page.goto(write_report(running.folder).as_uri())
    phone = Tab(chromium, 360, 780, "dark")
    phone.page.goto(write_report(running.folder).as_uri())
    phone.page.evaluate("document.querySelector('.charts').scrollIntoView()")
    phone.picture("report-phone.png")
    assert tab.page.locator("#alerts .alarm").count() == 1
    tab.context.close()
    phone.context.close()


def _alarmed(running) -> None:
    """Twenty-four steps, a look at the panel every four, an alarm; the start is evaluated."""
    for step in range(0, 28, 4):
        score = 0.4 + 0.02 * step - 0.0011 * step * step
        values = {"score": score, "proxy": 0.1 + 0.03 * step, "kl_sequence": 0.12 * step, "length": 20.0 + 2 * step, "distinct": None}
        running.log.write("panel", stage="rl.ppo", step=step, values=values, bands={"score": [0.32, 0.48]} if step == 0 else {}, rows=[])
        if step:
            running.go(4)
    running.log.write(
        "alarm", stage="rl.ppo", step=24, rule="divergence", text="-", false_alarm_rate=0.005, folder="alarms/rl.ppo/00000024-divergence",
        seen="the training reward rose from 0.1 to 0.82 on the held-out prompts while the independent score fell from 0.4 to 0.25",
        advice="The policy may have found what the reward pays for and nobody wants. People read the answers side by side.",
        before_step=0, before={"length": 20.0, "score": 0.4}, after={"length": 68.0, "score": 0.25}, action="warn",
    )  # fmt: skip
    config = json.loads((running.folder / "config.json").read_text())
    (running.folder / "config.json").write_text(json.dumps({**config, "name": "example"}))
