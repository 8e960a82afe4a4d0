"""Who may talk to a page that is served on this machine. Shared by ``tether watch`` and ``tether collect serve``. Imports no torch.

A one-time link carries a random token; it is changed for another one in a cookie that scripts cannot read and other sites cannot send.
The Host must be a name of this machine: a page elsewhere that makes its own name point here (DNS rebinding) is refused. No response
allows another origin, a frame or a copy in a cache.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
from collections.abc import Collection

from tether.errors import RunError

__all__ = [
    "ALWAYS", "LOOPBACK", "NOTHING", "cookie", "cookie_header", "fresh_token", "host_is_known", "listen", "listen_on_loopback", "same",
    "welcome",
]  # fmt: skip

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine as a Host header writes them."""

ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every response."""

NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of a response that is no page."""

_TOKEN_BYTES = 32


def fresh_token() -> str:
    """256 random bits, fit for an address."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def same(one: str, other: str) -> bool:
    """Equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def host_is_known(header: str, port: int, names: Collection[str] = LOOPBACK) -> bool:
    """True where the Host header is one of ``names`` (lower case) with this port."""
    return header.lower() in {f"{name}:{port}" for name in names}


def cookie(header: str, name: str) -> str | None:
    """The value of a cookie in the header, None where it is missing. Cookies know no ports: those of other programs on this machine stand
    beside ours, and whatever they look like (``http.cookies`` stops at the first odd one) does not hide it.
    """
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for found, _, value in pairs if found == name), None)


def cookie_header(name: str, value: str) -> str:
    """Set-Cookie for this site alone, until the browser is closed."""
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict"


def welcome(target: str, text: str) -> str:
    """A page of this site that asks for ``target``: the browser then sends the cookie wherever the link was clicked. No redirect does."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}"><title>Tether</title>'
        f'<p><a href="{target}">{text}</a></p></html>'
    )


def listen_on_loopback(port: int) -> list[socket.socket]:
    """Listeners of one port on 127.0.0.1 and, where the machine has it, ::1; 0 takes a free one. Raises RunError where it is taken."""
    for _ in range(20 if port == 0 else 1):
        first = listen("127.0.0.1", port)
        try:
            return [first, _bound(socket.AF_INET6, "::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return [first]  # no IPv6 here
            first.close()
    raise RunError("no port is free on both 127.0.0.1 and ::1; name one with --port")


def listen(address: str, port: int) -> socket.socket:
    """A listener on one address of this machine. Raises RunError where it cannot be had."""
    try:
        return _bound(socket.AF_INET6 if ":" in address else socket.AF_INET, address, port)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise RunError(f"{address} is no address of this machine; `ip addr` lists those it has") from error
        told = f"port {port} of {address} cannot be used ({error.strerror or error}); take another --port, or none for a free one"
        raise RunError(told) from error


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(256)
    except OSError:
        listener.close()
        raise
    return listener
