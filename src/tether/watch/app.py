"""Who may see what: a request to a response, without a socket.

A one-time link carries a random token; it is changed for another one in a cookie that scripts cannot read and other sites cannot send.
Everything else answers 401. The Host must be a name of this machine (a page elsewhere that makes its own name point here, DNS
rebinding, is refused), only GET is known, and no response allows another origin, a frame or anything that is not ours.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from urllib.parse import parse_qs, quote, urlsplit

from tether.report.page import asset, content_policy, render_page
from tether.watch.live import Live

__all__ = ["PATHS", "Response", "WatchApp"]

PATHS = ("/", "/content", "/favicon.ico")
"""Every path besides the one-time link ``/open/TOKEN``."""

_TOKEN_BYTES = 32
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# A page of this site asks for "/": the browser then sends the cookie wherever the link was clicked. A redirect from elsewhere would not.
_WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Tether</title>'
    '<p><a href="/">The report</a></p></html>'
)


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
    _link: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))

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
        if headers.get("host", "").lower() not in {f"{name}:{self.port}" for name in ("localhost", "127.0.0.1", "[::1]")}:
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
        if not _same(token, self._link):
            return _plain(401, "This link was used before, or never was one. Open the one that tether watch has printed last.")
        self._link = secrets.token_urlsafe(_TOKEN_BYTES)
        self.on_new_link(self.link)
        cookie = f"{self.cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        return _response(200, _WELCOME, "text/html", _NOTHING, {"Set-Cookie": cookie})

    def _knows(self, header: str) -> bool:
        try:
            found = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self._session)

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
        return _response(200, now.main, "text/html", _NOTHING, told)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return _response(status, text, "text/plain", _NOTHING, headers or {})


def _response(status: int, text: str, kind: str, policy: str, headers: Mapping[str, str]) -> Response:
    own = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy}
    return Response(status, text.encode("utf-8"), {**_ALWAYS, **own, **headers})
