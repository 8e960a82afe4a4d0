"""Sockets of ``tether watch``: the loopback addresses of this machine and no others, one thread a connection, nothing logged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tether.access import listen_on_loopback
from tether.watch.app import Response, WatchApp
from tether.watch.live import Live

__all__ = ["serve", "watch"]

_SLOWEST_S = 10  # a connection that says nothing for so long is closed
_POLL_S = 0.1  # how soon a listener notices that it is to stop


def _say(text: str) -> None:
    """At once, also where the output is no terminal."""
    print(text, flush=True)


def watch(folder: str | Path, *, port: int = 0, say: Callable[[str], object] = _say) -> None:
    """Serve the live report of the run in ``folder`` until Ctrl-C; says the link to open. ``port`` 0 takes a free one.

    Raises RunError where there is no run, or the port is taken.
    """
    with serve(Path(folder), port, say) as app:
        say(f"The report of {folder}, live. Open this link once, on this machine; stop with Ctrl-C:\n  {app.link}")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            say("stopped watching; the run itself goes on")


@contextmanager
def serve(folder: Path, port: int = 0, say: Callable[[str], object] = _say) -> Iterator[WatchApp]:
    """The app, served in the background for the length of the block."""
    live = Live(folder)
    listeners = listen_on_loopback(port)
    app = WatchApp(live, listeners[0].getsockname()[1], lambda link: say(f"Opened. For another browser:\n  {link}"))
    servers = [_Server(listener, app) for listener in listeners]
    threads = [threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="tether-watch", daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield app
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    """One listener that is bound already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, app: WatchApp) -> None:
        super().__init__(listener.getsockname()[:2], _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.app = app

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the middle of an answer is no news."""


class _Connection(BaseHTTPRequestHandler):
    """Reads one request, asks the app, writes the answer. The hooks of the base class that would log or tell versions say nothing."""

    timeout = _SLOWEST_S
    default_request_version = "HTTP/1.0"  # what cannot be read is answered with a status and headers, too
    server: _Server

    def do_GET(self) -> None:
        """Ask the app."""
        self._write(self.server.app.respond(self.command, self.path, self._headers()))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses by itself: another method, or a line that is no request."""
        app = self.server.app
        self._write(app.respond(self.command, self.path, self._headers()) if code == 501 else app.refuse())

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _write(self, response: Response) -> None:
        self.close_connection = True
        self.send_response_only(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status != 204:
            self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the token."""
