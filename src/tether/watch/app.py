"""Who may see what: a request to a response, without a socket.

A one-time link carries a random token; it is changed for another one in a cookie that scripts cannot read and other sites cannot send.
Everything else answers 401. The Host must be a name of this machine (a page elsewhere that makes its own name point here, DNS
rebinding, is refused), only GET is known, and no response allows another origin, a frame or anything that is not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from urllib.parse import parse_qs, quote, urlsplit

from tether.access import ALWAYS, NOTHING, cookie, cookie_header, fresh_token, host_is_known, same, welcome
from tether.report.page import asset, content_policy, render_page
from tether.watch.live import Live

__all__ = ["PATHS", "Response", "WatchApp"]

PATHS = ("/", "/content", "/favicon.ico")
"""Every path besides the one-time link ``/open/TOKEN``."""


@dataclass(frozen=True, slots=True)
class Response:
    """Status, body and headers; ``headers`` is complete but for the length."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass
class WatchApp:
    """State: the token of the link that is open, and the one of the cookie."""

    live: Live
    port: int
    on_new_link: Callable[[str], object] = lambda link: None
    _link: str = field(default_factory=fresh_token)
    _session: str = field(default_factory=fresh_token)

    @property
    def link(self) -> str:
        """The address to open once. Afterwards there is another."""
        return f"http://127.0.0.1:{self.port}/open/{self._link}"

    @property
    def cookie(self) -> str:
        """Its name holds the port: cookies do not tell ports apart, and two runs may be watched at once."""
        return f"tether_watch_{self.port}"

    def respond(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        """The answer to any request; ``headers`` by lower-case name."""
        if not host_is_known(headers.get("host", ""), self.port):
            return _plain(403, "This address is not served here.")
        if method != "GET":
            return _plain(405, "Only GET.", {"Allow": "GET"})
        url = urlsplit(target) if target.startswith("/") and not target.startswith("//") else urlsplit("/unknown")
        if url.path.startswith("/open/"):
            return self._open(url.path.removeprefix("/open/"))
        if not self._knows(headers.get("cookie", "")):
            return _plain(401, "Open the link that tether watch has printed last.")
        if url.path == "/":
            return self._page()
        if url.path == "/content":
            return self._content(parse_qs(url.query).get("have", [""])[0])
        return _plain(204, "") if url.path == "/favicon.ico" else _plain(404, "There is nothing here.")

    def refuse(self) -> Response:
        """The answer to what is no request at all."""
        return _plain(400, "This is no request.")

    def _open(self, token: str) -> Response:
        """The link works once; the next one is told to the terminal, for another browser."""
        if not same(token, self._link):
            return _plain(401, "This link was used before, or never was one. Open the one that tether watch has printed last.")
        self._link = fresh_token()
        self.on_new_link(self.link)
        return _response(200, welcome("/", "The report"), "text/html", NOTHING, {"Set-Cookie": cookie_header(self.cookie, self._session)})

    def _knows(self, header: str) -> bool:
        found = cookie(header, self.cookie)
        return found is not None and same(found, self._session)

    def _page(self) -> Response:
        now = self.live.snapshot()
        css, script = asset("page.css"), asset("page.js") + (resources.files("tether.watch") / "live.js").read_text(encoding="utf-8")
        policy = content_policy(css, script, "connect-src 'self'; img-src 'self'; ")
        page = render_page(now.name, now.main, css, script, policy, live=True)
        return _response(200, page, "text/html", f"{policy}; frame-ancestors 'none'", {})

    def _content(self, have: str) -> Response:
        now = self.live.snapshot()
        if have == now.version:
            return _plain(204, "")
        told = {"X-Tether-Version": now.version, "X-Tether-State": quote(now.state)}
        return _response(200, now.main, "text/html", NOTHING, told)


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return _response(status, text, "text/plain", NOTHING, headers or {})


def _response(status: int, text: str, kind: str, policy: str, headers: Mapping[str, str]) -> Response:
    own = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy}
    return Response(status, text.encode("utf-8"), {**ALWAYS, **own, **headers})
