"""What is decided about a request before anything of the app runs, and what every response carries.

In this order: the Host is ours (403), the client asks not too often (429), the token is right (401), a change comes from our own page
(403, 415) and is small (413) and quick (408). Whatever goes wrong inside is one line in the log and tells the sender nothing (500).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import PlainTextResponse, Response

from tether.access import ALWAYS, LOOPBACK, host_is_known
from tether.collect.web.limits import LARGEST_BODY, SLOWEST_S, Guesses, Rate
from tether.collect.web.visitors import Role, Visitor, Visitors

__all__ = ["OPEN", "POLICY", "Guard", "headers_of"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; object-src 'none'; "
    "frame-ancestors 'none'; form-action 'self'"
)
"""Content-Security-Policy of every response: our own files, and nothing inline."""

OPEN = "/open/"
"""The only path without a cookie: what follows is the token."""

_HEADERS = {**ALWAYS, "Content-Security-Policy": POLICY}
_READS, _CHANGES = ("GET",), ("POST",)


@dataclass
class Guard:
    """ASGI in, ASGI out. ``names``: the Hosts that are ours; ``log(event, **fields)`` writes one line."""

    app: Any
    visitors: Visitors
    port: int
    log: Callable[..., object]
    names: Collection[str] = LOOPBACK
    rate: Rate = field(default_factory=Rate)
    guesses: Guesses = field(default_factory=Guesses)
    slowest_s: float = SLOWEST_S

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":  # there is none here, whatever its Origin
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        started = False

        async def send_with_headers(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [pair for pair in message["headers"] if pair[0].lower() != b"server"] + _raw(_HEADERS)
            await send(message)

        try:
            response = await self._refusal(scope, receive)
            await (response or self.app)(scope, receive, send_with_headers)
        except Exception as error:
            self.log("error", method=scope["method"], path=_told(scope["path"]), error=repr(error), trace=traceback.format_exc())
            if not started:
                await PlainTextResponse("Something went wrong here. The owner finds it in the log.", 500)(scope, receive, send_with_headers)

    async def _refusal(self, scope: Any, receive: Any) -> Response | None:
        """The response to what does not reach the app; None where it may. Puts who asks and the body into the scope."""
        headers, address = headers_of(scope), (scope.get("client") or ("",))[0]
        if not host_is_known(headers.get("host", ""), self.port, self.names):
            return _plain(403, "This address is not served here.")
        visitors = self.visitors.of(headers.get("cookie", ""))
        if not self.rate.admits(_client(visitors, address)):
            return _plain(429, "Too many requests; wait a second.", {"Retry-After": "1"})
        scope["state"] = {"visitors": visitors}
        if scope["path"].startswith(OPEN):
            return None if scope["method"] in _READS else _plain(405, "Only GET.", {"Allow": "GET"})
        if not visitors:
            await self.punish(address)
            return _plain(401, "Open the newest link you were given, in this browser.")
        if scope["method"] in _READS:
            return None
        if scope["method"] not in _CHANGES:
            return _plain(405, "Only GET and POST.", {"Allow": "GET, POST"})
        return _foreign(headers) or await self._body(scope, headers, receive)

    async def punish(self, address: str) -> None:
        """Who has guessed often waits."""
        if delay := self.guesses.wrong(address):
            await asyncio.sleep(delay)

    async def _body(self, scope: Any, headers: Mapping[str, str], receive: Any) -> Response | None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > LARGEST_BODY:
            return _plain(413, f"At most {LARGEST_BODY} bytes.", {"Connection": "close"})
        try:
            async with asyncio.timeout(self.slowest_s):
                body = await _whole(receive)
        except TimeoutError:
            return _plain(408, "The request took too long.", {"Connection": "close"})
        if body is None:
            return _plain(413, f"At most {LARGEST_BODY} bytes.", {"Connection": "close"})
        scope["state"]["body"] = body
        return None


def headers_of(scope: Any) -> dict[str, str]:
    """Headers of a request by lower-case name."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _foreign(headers: Mapping[str, str]) -> Response | None:
    """Refuses a change that our own page did not ask for: a form of another site cannot send JSON, our header, or our Origin."""
    own = headers.get("origin") == f"http://{headers.get('host', '')}"
    if not own or headers.get("x-tether") != "1" or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return _plain(403, "Only the page of this server may do that.")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return None if kind == "application/json" else _plain(415, "Only application/json.")


async def _whole(receive: Any) -> bytes | None:
    """The body; None where it is too large. What a client that left has sent is as good as nothing."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        size += len(message.get("body", b""))
        if size > LARGEST_BODY:
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _client(visitors: Mapping[Role, Visitor], address: str) -> str:
    """Annotators behind one address do not share their rate."""
    return "; ".join(f"{role} {visitor.annotator}" for role, visitor in visitors.items()) or address


def _told(path: str) -> str:
    """A path for the log: never a token."""
    return OPEN + "..." if path.startswith(OPEN) else path[:200]


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(text, status, headers)


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
