"""The sockets: loopback only, and nothing that a browser or a stranger sends ends the server."""

from __future__ import annotations

import errno
import http.client
import socket

import pytest
from local_sockets import addresses, raw

from tether.errors import RunError
from tether.watch import watch
from tether.watch.server import serve


def _get(port: int, path: str, cookie: str = "", address: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read()
    connection.close()
    return found


def test_link_to_page(running):
    running.go(2)
    said: list[str] = []
    with serve(running.folder, say=said.append) as app:
        path = app.link.partition(str(app.port))[2]
        assert _get(app.port, "/")[0] == 401
        status, headers, _ = _get(app.port, path)
        assert status == 200
        cookie = headers["Set-Cookie"].partition(";")[0]
        status, headers, body = _get(app.port, "/", cookie)
        assert status == 200
        assert "Server" not in headers
        assert b"Reward against KL" in body
        assert _get(app.port, path)[0] == 401
        assert app.link in said[0]


def test_listens_on_loopback_alone(running):
    with serve(running.folder, say=lambda _: None) as app:
        assert addresses(app.port) <= {"0100007F", "00000000000000000000000001000000"}
        assert "0100007F" in addresses(app.port)


def test_ipv6(running):
    with socket.socket(socket.AF_INET6) as probe:
        if probe.connect_ex(("::1", 9)) not in {0, errno.ECONNREFUSED}:
            pytest.skip("no IPv6 here")
    with serve(running.folder, say=lambda _: None) as app:
        assert _get(app.port, "/", address="::1")[0] == 401


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 1\r\n\r\nx", b"405"),
        (b"FETCH / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"405"),
        (b"HEAD / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\n\r\n", b"403"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"\x16\x03\x01 tls\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"400"),
    ],
)
def test_odd_requests_are_answered_with_the_headers_and_no_more(running, data: bytes, status: bytes):
    with serve(running.folder, say=lambda _: None) as app:
        answer = raw(app.port, data.replace(b"PORT", str(app.port).encode()))
        assert status in answer.partition(b"\r\n")[0]
        assert b"nosniff" in answer
        assert b"Python" not in answer
        assert b"Traceback" not in answer
        assert _get(app.port, "/")[0] == 401


def test_slow_connections_hold_up_nobody(running):
    with serve(running.folder, say=lambda _: None) as app:
        slow = [socket.create_connection(("127.0.0.1", app.port), timeout=5) for _ in range(50)]
        for connection in slow:
            connection.sendall(b"GET / HT")
        assert _get(app.port, "/")[0] == 401
        for connection in slow:
            connection.close()


def test_no_run_and_a_taken_port_are_run_errors(running, tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        watch(tmp_path / "nothing")
    with serve(running.folder, say=lambda _: None) as app, pytest.raises(RunError, match="cannot be used"):
        watch(running.folder, port=app.port)
