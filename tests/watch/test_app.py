"""Who may see what."""

from __future__ import annotations

import re

import pytest

from tether.watch.app import PATHS, WatchApp
from tether.watch.live import Live

PORT = 8123
HOST = f"127.0.0.1:{PORT}"


@pytest.fixture
def app(running) -> WatchApp:
    running.go(3)
    return WatchApp(Live(running.folder), PORT)


def _get(app: WatchApp, target: str, cookie: str = "", host: str = HOST):
    return app.respond("GET", target, {"host": host, **({"cookie": cookie} if cookie else {})})


def _enter(app: WatchApp) -> str:
    answer = _get(app, app.link.removeprefix(f"http://{HOST}"))
    assert answer.status == 200
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_link_is_long_random_and_works_once(app: WatchApp):
    first = app.link
    told: list[str] = []
    app.on_new_link = told.append
    assert len(first.rpartition("/")[2]) >= 43  # 256 bits in base64
    _enter(app)
    assert app.link != first
    assert told == [app.link]
    assert _get(app, first.removeprefix(f"http://{HOST}")).status == 401
    _enter(app)


def test_cookie_is_out_of_reach_of_scripts_and_of_other_sites(app: WatchApp):
    answer = _get(app, app.link.removeprefix(f"http://{HOST}"))
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert name.startswith(f"tether_watch_{PORT}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    assert name.partition("=")[2] not in answer.body.decode()
    assert "Domain" not in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/report.html", "/events.jsonl", "/open/", "/open/x"])
def test_nothing_is_seen_without_the_token(app: WatchApp, path: str):
    other = f"tether_watch_{PORT}=" + "x" * 43
    for cookie in ("", other, "tether_watch_1=" + _enter(app).partition("=")[2], 'tether="', "\xff=\xff"):
        answer = _get(app, path, cookie)
        assert answer.status == 401
        assert b"toy" not in answer.body


OTHERS = ["", "evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{PORT}", f"[::2]:{PORT}"]


@pytest.mark.parametrize("host", OTHERS)
def test_other_hosts_are_refused_even_with_the_token(app: WatchApp, host: str):
    cookie = _enter(app)
    assert _get(app, "/", cookie, host).status == 403
    assert _get(app, app.link.removeprefix(f"http://{HOST}"), "", host).status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_the_names_of_this_machine_are_served(app: WatchApp, host: str):
    assert _get(app, "/", _enter(app), f"{host}:{PORT}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "get"])
def test_only_get(app: WatchApp, method: str):
    answer = app.respond(method, "/", {"host": HOST, "cookie": _enter(app)})
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "path",
    ["/../config.json", "/%2e%2e/config.json", "/%252e%252e/x", "/..\\config.json", "//evil.example/", "/\0", "/" + "x" * 9000, "/content/",
     "http://127.0.0.1:8123/", "*", "/config.json", "/open", "?x"],
)  # fmt: skip
def test_no_path_is_a_file(app: WatchApp, path: str):
    answer = _get(app, path, _enter(app))
    assert answer.status == 404
    assert b"tiny" not in answer.body


def test_every_answer_has_the_headers(app: WatchApp):
    cookie = _enter(app)
    answers = [_get(app, path, c) for path in (*PATHS, "/nothing", "/open/x") for c in ("", cookie)]
    answers += [app.refuse(), app.respond("POST", "/", {"host": HOST}), _get(app, "/", host="x")]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Frame-Options"] == "DENY"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert not [name for name in answer.headers if name.startswith("Access-Control") or name == "Server"]


def test_page_and_content(app: WatchApp, running):
    cookie = _enter(app)
    page = _get(app, "/", cookie)
    assert "Reward against KL, by step" in page.body.decode()
    assert not re.search(r"\son\w+=|style=|src=", page.body.decode().partition("<script>")[0])
    first = _get(app, "/content?have=", cookie)
    version = first.headers["X-Tether-Version"]
    assert first.status == 200
    assert _get(app, f"/content?have={version}", cookie).status == 204
    running.go()
    app.live._not_before = 0.0
    second = _get(app, f"/content?have={version}", cookie)
    assert second.status == 200
    assert "step%204%20of%2040" in second.headers["X-Tether-State"]


def test_a_name_from_the_log_is_no_header(app: WatchApp, running):
    running.log.write("stage_started", stage="rl.x\r\nSet-Cookie: a=b", num_steps=1)
    app.live._not_before = 0.0
    answer = _get(app, "/content?have=", _enter(app))
    assert not [value for value in answer.headers.values() if "\n" in value or "\r" in value]
