"""Sockets and the process: this machine alone unless another address is named, one event loop, slow connections closed."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any

from tether.access import ALWAYS, LOOPBACK, listen, listen_on_loopback
from tether.collect.store import Store
from tether.collect.web.app import Office, build_app
from tether.collect.web.guard import POLICY
from tether.collect.web.limits import SLOWEST_S
from tether.collect.web.visitors import Role, Visitor, Visitors
from tether.collect.web.wire import Desk
from tether.errors import ConfigError, StoreError

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise StoreError("the page needs Starlette and uvicorn; run: pip install 'tether[collect]'") from error

__all__ = ["serve", "serving"]


def _say(text: str) -> None:
    """At once, also where the output is no terminal."""
    print(text, flush=True)


def _log(event: str, **fields: object) -> None:
    """One line of JSON on the error output: whatever a field holds, it stays in its line."""
    sys.stderr.write(json.dumps({"event": event, **fields}, default=str) + "\n")  # in one piece: routes run in threads
    sys.stderr.flush()


def serve(
    url_or_path: str,
    *,
    port: int = 0,
    host: str = "",
    annotators: Sequence[str] = (),
    names: bool = False,
    say: Callable[[str], object] = _say,
) -> None:
    """Serve the page for the database until Ctrl-C or SIGTERM; says the links to open.

    ``host``: another address of this machine than the loopback ones. ``annotators``: names that get a personal link; ``names``: whoever has
    the shared link types a name. Raises StoreError where there is no database, StoreDamaged where its file is not sound, RunError where
    the port is taken or the address is not of this machine, ConfigError for a host that is no single address.
    """
    _address(host)
    with Store.open(url_or_path) as store:
        server, office, listeners = _prepare(store, port, host, names, say)
        _tell(office, host, annotators, say)
        with suppress(KeyboardInterrupt):
            server.run(sockets=listeners)
        say("stopped; everything that was acknowledged is in the database")


@contextmanager
def serving(
    store: Store, *, port: int = 0, host: str = "", names: bool = False, say: Callable[[str], object] = _say, **guard: Any
) -> Iterator[Office]:
    """The same in the background, for the length of the block; ``guard``: settings of ``Guard``."""
    server, office, listeners = _prepare(store, port, host, names, say, **guard)
    thread = threading.Thread(target=server.run, kwargs={"sockets": listeners}, name="tether-collect", daemon=True)
    thread.start()
    try:
        yield office
    finally:
        server.should_exit = True
        thread.join(timeout=15)


def _prepare(
    store: Store, port: int, host: str, names: bool, say: Callable[[str], object], **guard: Any
) -> tuple[uvicorn.Server, Office, list[Any]]:
    address = _address(host)
    listeners = [listen(address, port)] if address else listen_on_loopback(port)
    taken = listeners[0].getsockname()[1]
    shown = f"[{address}]" if ":" in address else address or "127.0.0.1"
    visitors = Visitors(taken, names)
    next_link = "Opened. For another browser of the owner:\n  "
    office = Office(store, visitors, Desk(store), f"http://{shown}:{taken}", _log, lambda link: say(next_link + link))
    app = build_app(office, port=taken, names=(*LOOPBACK, shown) if address else LOOPBACK, **guard)
    config = uvicorn.Config(
        app, http=_Patient, ws="none", lifespan="off", access_log=False, log_config=None, log_level="critical", server_header=False,
        proxy_headers=False, timeout_keep_alive=15, timeout_graceful_shutdown=5,
    )  # fmt: skip
    return uvicorn.Server(config), office, listeners


def _address(host: str) -> str:
    """The address to listen on, "" for the loopback ones. Raises ConfigError for a name and for all addresses at once."""
    if host in ("", "localhost", "127.0.0.1", "::1"):
        return ""
    wanted = "give one address of this machine, such as 192.168.1.20 (`ip addr` lists them); the page answers under that alone"
    try:
        found = ip_address(host)
    except ValueError:
        raise ConfigError(f"--host {host} is no IP address (a name, or with a port?); {wanted}. The port is --port") from None
    if found.is_unspecified:
        raise ConfigError(f"--host {host} means every address of this machine; {wanted}")
    if found.is_multicast or str(found) == "255.255.255.255":
        raise ConfigError(f"--host {host} is an address of many machines; {wanted}")
    return str(found)


def _tell(office: Office, host: str, annotators: Sequence[str], say: Callable[[str], object]) -> None:
    if _address(host):
        say(
            f"WARNING: whoever can reach {host} can reach this page, and what it sends is not encrypted. The links below are all that "
            "keeps others out; on a network that is not yours, keep to 127.0.0.1 and use ssh -L."
        )
    say(f"The owner's page (progress, links for annotators). Open it once; stop with Ctrl-C:\n  {office.link(Visitor(Role.OWNER))}")
    if office.visitors.names:
        say(f"For annotators, who type their name:\n  {office.link(Visitor(Role.GUEST))}")
    for annotator in dict.fromkeys(map(office.named, annotators)):  # a second link would end the first
        say(f"For {annotator.name}, to open once:\n  {office.link(Visitor(Role.ANNOTATOR, annotator.id))}")


class _Patient(H11Protocol):
    """A connection that is given up where the head of a request takes too long, and whose refusals carry the headers of every response."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():
            self._expect()
        else:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._between_requests():
            self._expect_nothing()  # the keep-alive timer of the base class runs

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no request at all."""
        head = {**ALWAYS, "Content-Security-Policy": POLICY, "Content-Type": "text/plain; charset=utf-8", "Connection": "close"}
        body = b"This is no request."
        lines = [b"HTTP/1.1 400 Bad Request", *(f"{name}: {value}".encode() for name, value in head.items())]
        self.transport.write(b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body]))
        self.transport.close()

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect(self) -> None:
        """A request's head within the time; more bytes of it do not prolong that."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(SLOWEST_S, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
