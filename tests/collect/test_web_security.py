"""The rules W1 to W13 and W16 of the labelling page (shared/reliability.md, 2.2), one test or more for each. The browser's part of W6 is in
``test_web_browser.py``, real sockets are in ``test_web_sockets.py``.
"""

from __future__ import annotations

import ast
import json
import re
import socket
import stat
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from web_tools import ADDRESS, MODEL, OWN, PORT, Desktop, collection, judgement, next_item, post
from xss import HOSTILE

from tether import access
from tether.collect.web import app as web_app
from tether.collect.web import guard as web_guard
from tether.collect.web.limits import LARGEST_BODY, Guesses, Rate
from tether.collect.web.server import _log
from tether.collect.web.visitors import Role, Visitor
from tether.errors import StoreError, StoreFull

WEB = Path(web_app.__file__).parent


@pytest.fixture
def desk(tmp_path) -> Desktop:
    return Desktop(collection(tmp_path / "a.db"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> tuple[Desktop, TestClient]:
    """For tests that may leave nothing behind, with an annotator's browser."""
    desk = Desktop(collection(tmp_path_factory.mktemp("shared") / "a.db"))
    return desk, desk.annotator()


def _routes(desk: Desktop) -> list[tuple[str, str]]:
    """Every registered route with each of its methods, parameters filled in."""
    found = []
    for route in desk.app.app.routes:
        path = route.path.replace("{name}", "base.css").replace("{token:path}", "no-token")
        found += [(method, path) for method in route.methods - {"HEAD"}]
    assert len(found) == 11
    return found


# W2


def test_w2_link_is_random_works_once_and_is_told_anew(desk):
    link = desk.office.link(Visitor(Role.OWNER))
    assert len(link.rpartition("/")[2]) >= 43  # 256 bits in base64
    assert desk.browser().get(link).status_code == 200
    assert desk.browser().get(link).status_code == 401
    personal = desk.office.link(Visitor(Role.ANNOTATOR, desk.office.named("Ann").id))
    assert [desk.browser().get(personal).status_code for _ in range(2)] == [200, 401]
    assert len(desk.told) == 1
    assert desk.told[0] != link
    assert desk.browser().get(desk.told[0]).status_code == 200


def test_w2_a_newer_personal_link_ends_the_older(desk):
    ann = Visitor(Role.ANNOTATOR, desk.office.named("Ann").id)
    older, newer = desk.office.link(ann), desk.office.link(ann)
    assert desk.browser().get(older).status_code == 401
    assert desk.browser().get(newer).status_code == 200


def test_w2_cookie_is_out_of_reach_of_scripts_and_of_other_sites(desk):
    link = desk.office.link(Visitor(Role.OWNER))
    answer = desk.browser().get(link)
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert name.partition("=")[2] not in answer.text
    assert link.rpartition("/")[2] not in answer.text  # the page that follows has another address
    assert answer.headers["Referrer-Policy"] == "no-referrer"


OTHERS = ['note={"a": 1, "b": [2]}', "version=2", "=x", "a b c", 'q="open', "\xe4=\xf6", f"tether_collect_{PORT + 1}=x"]


@pytest.mark.parametrize("other", OTHERS)
def test_w2_cookies_of_other_programs_do_not_hide_ours(desk, other):
    """The browser sends those of every port of this machine, the oldest first."""
    ((name, value),) = desk.annotator().cookies.items()
    header = f"{other}; {name}={value}; {other}".encode("latin-1")
    assert desk.browser().get("/", headers={"Cookie": header}).status_code == 200
    assert desk.browser().get("/", headers={"Cookie": f"{other}; x{name}={value}".encode("latin-1")}).status_code == 401


def test_w2_tokens_are_compared_in_constant_time_and_are_never_logged(desk, monkeypatch):
    compared = []
    monkeypatch.setattr(access.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    link = desk.office.link(Visitor(Role.OWNER))
    browser = desk.browser()
    browser.get(link)
    browser.get("/owner")
    desk.browser().get(f"{link}x")
    assert len(compared) >= 3
    assert link.rpartition("/")[2] not in json.dumps(desk.logged)
    assert not [cookie.value for cookie in browser.cookies.jar if cookie.value in json.dumps(desk.logged)]


def test_w2_nothing_is_seen_without_the_token(desk):
    wrong = {f"tether_{kind}_{PORT}": "x" * 43 for kind in ("collect", "owner")}
    for method, path in [*_routes(desk), ("GET", "/nothing"), ("GET", "/docs"), ("GET", "/openapi.json")]:
        for cookies in ({}, wrong, {"tether_collect_1": "x", "a": '"'}):
            browser = desk.browser()
            browser.cookies.update(cookies)
            answer = browser.request(method, path, headers=OWN, json={})
            assert answer.status_code == 401, path
            assert MODEL not in answer.text


def test_w2_annotators_and_guests_are_no_owners(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"), names=True)
    for browser in (desk.annotator(), desk.enter(Role.GUEST)):
        assert browser.get("/owner").status_code == 403
        assert post(browser, "/api/links", {"name": "Eve"}).status_code == 403
    assert post(desk.enter(Role.GUEST), "/api/next").status_code == 403
    assert post(Desktop(collection(tmp_path / "b.db")).annotator(), "/api/join", {"name": "Eve"}).status_code == 403


# W3


@pytest.mark.parametrize("host", ["", "evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{PORT}"])
def test_w3_other_hosts_are_refused_even_with_the_token(shared, host):
    desk, browser = shared
    link = desk.office.link(Visitor(Role.OWNER))
    assert desk.browser().get(link, headers={"Host": host}).status_code == 403
    assert browser.get("/", headers={"Host": host}).status_code == 403
    assert browser.post("/api/next", json={}, headers={**OWN, "Host": host, "Origin": f"http://{host}"}).status_code == 403


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"127.0.0.1:{PORT}", f"[::1]:{PORT}"])
def test_w3_the_names_of_this_machine_are_served(shared, host):
    desk, _ = shared
    assert desk.browser().get(desk.office.link(Visitor(Role.OWNER)), headers={"Host": host}).status_code == 200


# W4


FOREIGN = [
    {"Origin": None}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"http://localhost:{PORT}"}, {"X-Tether": None},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
]  # fmt: skip


@pytest.mark.parametrize("changed", FOREIGN, ids=str)
def test_w4_changes_come_from_our_own_page(shared, changed):
    desk, browser = shared
    sent = judgement(next_item(browser))
    headers = {name: value for name, value in {**OWN, **changed}.items() if value is not None}
    for path, body in (("/api/judgements", sent), ("/api/next", {}), ("/api/undo", {"judgement_id": "x"})):
        assert browser.post(path, json=body, headers=headers).status_code == 403
    assert list(desk.store.judgements()) == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/js"])
def test_w4_forms_are_refused(shared, kind):
    desk, browser = shared
    sent = json.dumps(judgement(next_item(browser)))
    headers = {**OWN, "Content-Type": kind}
    assert browser.post("/api/judgements", content=sent, headers=headers).status_code == 415
    assert list(desk.store.judgements()) == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_w4_only_post_changes_anything(shared, method):
    _, browser = shared
    for path in ("next", "judgements", "undo", "join", "links"):
        assert browser.request(method, f"/api/{path}", headers=OWN).status_code == 405
    assert browser.request("POST", "/", headers=OWN, json={}).status_code == 405


# W5


def test_w5_no_origin_is_allowed_and_there_is_no_websocket(desk):
    browser = desk.annotator()
    for method, path in _routes(desk):
        answer = browser.request(method, path, headers={**OWN, "Access-Control-Request-Method": "POST"}, json={})
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    for origin in (ADDRESS, "http://evil.example"):
        with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/api/next", headers={"Origin": origin}):
            pass


# W6


def test_w6_what_models_wrote_is_in_no_page(tmp_path):
    """The page of an annotator is the same whatever is in the database; texts travel as JSON, which no browser shows as a page."""
    texts = [tuple(HOSTILE[at : at + 30]) for at in range(0, len(HOSTILE), 30)]
    plain, hostile = Desktop(collection(tmp_path / "a.db")), Desktop(collection(tmp_path / "b.db", texts))
    assert plain.annotator().get("/").content == hostile.annotator(HOSTILE[0]).get("/").content
    browser, seen = hostile.annotator(), set()
    for _ in texts:
        answer = post(browser, "/api/next")
        assert answer.headers["Content-Type"] == "application/json"
        seen |= set(answer.json()["item"]["answers"])
        sent = judgement(answer.json()["item"], "skip", reason=HOSTILE[0])
        assert post(browser, "/api/judgements", sent).status_code == 200
    assert seen == set(HOSTILE)  # and arrive as they were


def test_w6_names_and_the_question_are_escaped_for_the_owner(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>{{7*7}}"
    desk = Desktop(collection(tmp_path / "a.db", question=hostile))
    desk.office.named(hostile)
    page = desk.enter(Role.OWNER).get("/owner")
    assert "&lt;img src=x" in page.text
    assert "<img" not in page.text
    assert "{{7*7}}" in page.text


# W7


def test_w7_every_response_has_the_headers(desk):
    owner, ann = desk.enter(Role.OWNER), desk.annotator()
    browsers, routes = (owner, ann, desk.browser()), _routes(desk)
    answers = [browser.request(method, path, headers=OWN, json={}) for browser in browsers for method, path in routes]
    answers += [ann.get("/nothing"), ann.get("/", headers={"Host": "x"}), ann.put("/"), ann.post("/api/next", content="x", headers=OWN)]
    answers += [post(ann, "/api/judgements", content=b"x" * (LARGEST_BODY + 1), headers={"Content-Type": "application/json"})]
    assert {answer.status_code for answer in answers} >= {200, 204, 303, 401, 403, 404, 405, 413, 415, 422}
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
            "object-src 'none'; frame-ancestors 'none'; form-action 'self'"
        )
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "Server" not in answer.headers


def test_w7_content_types_and_nothing_inline(desk):
    browser = desk.annotator()
    for name, kind in web_app.STATIC.items():
        answer = browser.get(f"/static/{name}")
        assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert len(answer.text.splitlines()) <= 350
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", answer.text)
    for template in (WEB / "templates").glob("*.html"):
        text = template.read_text(encoding="utf-8")
        assert "<script>" not in text
        assert "style=" not in text
        assert not re.search(r"<[^>]*\son\w+=", text)
        assert "://" not in text


# W8


PATHS = [
    "../canary.txt", "..%2fcanary.txt", "%2e%2e/canary.txt", "%2e%2e%2fcanary.txt", "%252e%252e%252fcanary.txt", "..\\canary.txt",
    "..%5ccanary.txt", "base.css%00", "%00", "/etc/passwd", "%2fetc%2fpasswd", "link.txt", "x" * 5000, "../templates/owner.html",
    "..%2f..%2fserver.py", "BASE.CSS", "base.css/", "C:\\a", "file:///etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_w8_no_path_is_a_file(shared, path):
    desk, browser = shared
    folder = Path(desk.store.place).parent
    (folder / "canary.txt").write_text("canary")
    if not (folder / "link.txt").is_symlink():
        (folder / "link.txt").symlink_to(folder / "canary.txt")
    for prefix in ("/static/", "/", "/api/"):
        answer = browser.get(f"{ADDRESS}{prefix}{path}")
        assert answer.status_code == 404
        assert answer.text == "There is nothing here."


# W9


def test_w9_nothing_is_fetched(tmp_path, monkeypatch):
    """Addresses in texts are texts. No module of the page can open a connection of its own, and none is opened."""
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for file in WEB.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported.isdisjoint({"urllib.request", "http.client", "httpx", "requests", "aiohttp", "socket", "ftplib", "subprocess"})
    texts = [("http://evil.example/a.png", "![x](http://169.254.169.254/latest)"), ("file:///etc/passwd", "//evil.example/")]
    desk = Desktop(collection(tmp_path / "a.db", texts))
    browser = desk.annotator()

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    item = next_item(browser)
    assert post(browser, "/api/judgements", judgement(item, comment="http://evil.example/")).status_code == 200
    assert desk.enter(Role.OWNER).get("/owner").status_code == 200


# W10


def test_w10_large_bodies_are_refused_whether_or_not_they_say_so(desk):
    browser = desk.annotator()
    headers = {**OWN, "Content-Type": "application/json"}
    large = b'{"a": "' + b"x" * LARGEST_BODY + b'"}'
    assert browser.post("/api/judgements", content=large, headers=headers).status_code == 413
    assert browser.post("/api/judgements", content=iter([large[:9], large[9:]]), headers=headers).status_code == 413
    assert browser.post("/api/judgements", content=b"x", headers={**headers, "Content-Length": "9" * 30}).status_code == 413
    number = b"1" * 10**7
    assert browser.post("/api/judgements", content=number, headers=headers).status_code == 413


ODD = [
    b"[" * 100_000, b'{"a":' * 100_000, b"1" * 1_000_000, b"-", b"", b"nul", b"\xff\xfe", b'{"seconds": NaN}', b'{"seconds": Infinity}',
    b"[]", b"1", b'{"seconds": 1e999}', b'{"a": 1, "a": 2}', b'"text"', b"null", b"{}", b'{"judgement_id": "x"}', b'\xef\xbb\xbf{}',
]  # fmt: skip


@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body[:20]))
def test_w10_odd_json_is_refused(shared, body):
    desk, browser = shared
    answer = browser.post("/api/judgements", content=body, headers={**OWN, "Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert list(desk.store.judgements()) == []


def test_w10_a_client_that_asks_too_often_waits_and_others_do_not(tmp_path):
    now = [0.0]
    desk = Desktop(collection(tmp_path / "a.db"), rate=Rate(clock=lambda: now[0]))
    ann, ben = desk.annotator("Ann"), desk.annotator("Ben")
    assert [ann.get("/static/base.css").status_code for _ in range(42)] == [200] * 40 + [429] * 2
    assert ben.get("/").status_code == 200
    now[0] += 0.5
    assert [ann.get("/static/base.css").status_code for _ in range(11)] == [200] * 10 + [429]
    assert ann.get("/").headers["Retry-After"] == "1"


def test_w10_guessing_tokens_costs_time(tmp_path, monkeypatch):
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(web_guard.asyncio, "sleep", sleep)
    desk = Desktop(collection(tmp_path / "a.db"), guesses=Guesses(clock=lambda: 0.0))
    for _ in range(6):
        assert desk.browser().get("/open/wrong").status_code == 401
        assert desk.browser().get("/owner").status_code == 401
    assert waited == [1.0, 1.0]
    assert desk.annotator().get("/").status_code == 200  # who has a link is let in at once
    assert len(waited) == 2


# W11


def test_w11_errors_tell_nothing(desk, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("/home/secret/path")

    browser = desk.annotator()
    monkeypatch.setattr(desk.store, "next_item", broken)
    answer = post(browser, "/api/next")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "/home/secret/path" in desk.logged[-1]["error"]  # the owner is told
    assert "Traceback" in desk.logged[-1]["trace"]
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert browser.get(path).status_code == 404


@pytest.mark.parametrize(("error", "status"), [(StoreFull("/home/secret"), 507), (StoreError("/home/secret"), 503)])
def test_w11_a_database_that_refuses_is_a_status(desk, monkeypatch, error, status):
    def refuse(*_: object) -> None:
        raise error

    browser = desk.annotator()
    sent = judgement(next_item(browser))
    monkeypatch.setattr(desk.store, "record", refuse)
    answer = post(browser, "/api/judgements", sent)
    assert answer.status_code == status
    assert "secret" not in answer.text


# W12


def test_w12_a_field_stays_in_its_line_of_the_log(tmp_path, capsys):
    desk = Desktop(collection(tmp_path / "a.db"), names=True)
    browser = desk.enter(Role.GUEST)
    name = 'Ann\x1b[31m"}\u2028{"event": "forged"}'
    assert post(browser, "/api/join", {"name": name}).status_code == 200
    for entry in [*desk.logged, {"event": "x", "path": "a\r\nb"}]:
        _log(**entry)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(desk.logged) + 1
    assert {json.loads(line)["event"] for line in lines} == {"opened", "joined", "x"}
    assert all(line.isprintable() for line in lines)


def test_w12_a_line_of_the_log_is_written_in_one_piece(monkeypatch):
    class Pieces(list):
        write = list.append

        def flush(self) -> None:
            """Nothing waits."""

    pieces = Pieces()
    monkeypatch.setattr(sys, "stderr", pieces)
    _log("refused", path="/a\nb")
    assert pieces == ['{"event": "refused", "path": "/a\\nb"}\n']


# W13


@pytest.mark.parametrize("text", ["'; DROP TABLE tether_judgements; --", '" OR 1=1 --', "%s %(a)s :x ? {}", "\\'; --", "🦊\u202e"])
def test_w13_sql_is_text(tmp_path, text):
    desk = Desktop(collection(tmp_path / "a.db"), names=True)
    browser = desk.enter(Role.GUEST)
    assert post(browser, "/api/join", {"name": text}).status_code == 200
    assert post(browser, "/api/judgements", judgement(next_item(browser), comment=text)).status_code == 200
    assert post(browser, "/api/judgements", judgement(next_item(browser), "skip", reason=text)).status_code == 200
    assert post(browser, "/api/undo", {"judgement_id": text}).status_code == 422
    one, two = desk.store.judgements()
    assert (one.comment, two.reason) == (text, text)
    assert [annotator.name for annotator in desk.store.annotators()] == [text]


# W16


def test_w16_only_the_owner_reads_the_database(tmp_path):
    desk = Desktop(collection(tmp_path / "a.db"))
    browser = desk.annotator()
    post(browser, "/api/judgements", judgement(next_item(browser)))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) > 1  # the journal as well
    assert set(modes.values()) == {0o600}
