"""The labelling page on real sockets: W1, W5 and W10 (shared/reliability.md, 2.2), and what no browser would send."""

from __future__ import annotations

import http.client
import os
import socket
import stat
from collections.abc import Iterator

import pytest
from local_sockets import addresses, raw
from web_tools import MODEL, collection

from tether.cli import main
from tether.collect.web import server
from tether.collect.web.app import Office
from tether.collect.web.limits import Guesses
from tether.collect.web.server import serve, serving
from tether.collect.web.visitors import Role, Visitor
from tether.errors import ConfigError, RunError, StoreError


@pytest.fixture(scope="module")
def office(tmp_path_factory) -> Iterator[Office]:
    store = collection(tmp_path_factory.mktemp("served") / "a.db")
    with serving(store, say=lambda _: None, guesses=Guesses(free=10**6)) as office:
        yield office


def _port(office: Office) -> int:
    return office.visitors.port


def _status(port: int, path: str, address: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection(address, port, timeout=10)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_w1_listens_on_loopback_alone(office):
    assert addresses(_port(office)) <= {"0100007F", "00000000000000000000000001000000"}
    assert "0100007F" in addresses(_port(office))
    assert _status(_port(office), "/") == 401


def test_w1_another_address_is_warned_of_and_needs_the_token(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: [listener.close() for listener in sockets])
    collection(tmp_path / "b.db").close()
    serve(str(tmp_path / "b.db"), host="127.0.0.2", annotators=["Ann", " Ann "], names=True, say=said.append)
    assert said[0].startswith("WARNING: whoever can reach 127.0.0.2")
    assert [line.count("http://127.0.0.2:") for line in said] == [0, 1, 1, 1, 0]
    said.clear()
    serve(str(tmp_path / "b.db"), say=said.append)
    assert not [line for line in said if "WARNING" in line]


def test_w1_another_address_answers_under_its_own_name_alone(tmp_path):
    with serving(collection(tmp_path / "b.db"), host="127.0.0.2", say=lambda _: None) as office:
        assert addresses(_port(office)) == {"0200007F"}
        assert _status(_port(office), "/", "127.0.0.2") == 401
        assert _status(_port(office), office.link(Visitor(Role.OWNER)).partition(str(_port(office)))[2], "127.0.0.2") == 200
        with socket.create_connection(("127.0.0.2", _port(office)), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: labels.example\r\nConnection: close\r\n\r\n")
            assert b"403" in connection.recv(100)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "labels.example", "127.0.0.1:80", "http://127.0.0.1", "-"])
def test_w1_a_host_is_one_address(tmp_path, host):
    collection(tmp_path / "b.db").close()
    with pytest.raises(ConfigError, match="one address of this machine"):
        serve(str(tmp_path / "b.db"), host=host)


def test_w1_what_is_wrong_with_a_host_is_said(tmp_path):
    collection(tmp_path / "b.db").close()
    for host, kind, said in (
        ("labels.example", ConfigError, "is no IP address"), ("0.0.0.0", ConfigError, "means every address"),
        ("224.0.0.1", ConfigError, "of many machines"), ("192.0.2.77", RunError, r"192\.0\.2\.77 is no address of this machine; `ip addr`"),
    ):  # fmt: skip
        with pytest.raises(kind, match=said):
            serve(str(tmp_path / "b.db"), host=host)


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main(["collect", "serve", "x.db", "--port", "70000"]) == 2
    assert main(["collect", "serve", str(tmp_path / "nothing.db")]) == 1
    told = capsys.readouterr().err
    assert "--port 70000: expected a number from 0 (a free port) to 65535" in told
    assert "nothing.db" in told


def test_no_database_and_a_taken_port_are_errors(office, tmp_path):
    with pytest.raises(StoreError):
        serve(str(tmp_path / "nothing.db"))
    collection(tmp_path / "b.db").close()
    with pytest.raises(RunError, match="cannot be used"):
        serve(str(tmp_path / "b.db"), port=_port(office))


ODD = [
    (b"FETCH / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"401"),
    (b"HEAD / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"),
    (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET / HTTP/1.0\r\n\r\n", b"403"),
    (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.example\r\n\r\n", b"400"),
    (b"GET / HTTP/9.9\r\n\r\n", b"403"),
    (b"\x16\x03\x01 tls\r\n\r\n", b"400"),
    (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"401"),
    (b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"401"),
    (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"40"),
]


@pytest.mark.parametrize(("data", "status"), ODD, ids=range(len(ODD)))
def test_w7_odd_requests_are_answered_with_the_headers_and_no_more(office, data, status):
    answer = raw(_port(office), data)
    assert status in answer.partition(b"\r\n")[0]
    assert b"nosniff" in answer
    assert b"default-src 'none'" in answer
    for word in (b"uvicorn", b"Traceback", b"Python", b"root:", MODEL.encode()):
        assert word not in answer
    assert _status(_port(office), "/") == 401


def test_w5_no_websocket_whatever_its_origin(office):
    for origin in (b"http://127.0.0.1:PORT", b"http://evil.example"):
        head = b"GET /api/next HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: " + origin
        answer = raw(_port(office), head + b"\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")
        assert b" 401 " in answer.partition(b"\r\n")[0]


def test_w10_200_slow_connections_hold_up_nobody(office):
    slow = [socket.create_connection(("127.0.0.1", _port(office)), timeout=10) for _ in range(200)]
    try:
        for part in (b"G", b"ET / HT", b"TP/1.1\r\nHost: 127"):
            for connection in slow:
                connection.sendall(part)
            assert _status(_port(office), "/") == 401
    finally:
        for connection in slow:
            connection.close()


def test_w10_a_head_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SLOWEST_S", 0.3)
    with serving(collection(tmp_path / "b.db"), say=lambda _: None) as office:
        with socket.create_connection(("127.0.0.1", _port(office)), timeout=10) as connection:
            assert connection.recv(10) == b""  # said nothing
        with socket.create_connection(("127.0.0.1", _port(office)), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
            assert b"403" in connection.recv(4096)
            connection.sendall(b"GET / HT")  # a second one on the same connection
            assert b"HTTP/1.1" not in b"".join(iter(lambda: connection.recv(4096), b""))


def test_w10_a_body_that_takes_too_long_is_given_up(tmp_path):
    with serving(collection(tmp_path / "b.db"), say=lambda _: None, slowest_s=0.3) as office:
        port, visitor = _port(office), Visitor(Role.ANNOTATOR, office.named("Ann").id)
        cookie = office.visitors.admit(visitor).partition(";")[0]
        own = f"Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nX-Tether: 1\r\nCookie: {cookie}"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            head = f"POST /api/next HTTP/1.1\r\n{own}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
            connection.sendall(head.encode() + b"{")
            assert b" 408 " in connection.recv(4096)


def test_w16_only_the_owner_reads_the_database(office):
    assert stat.S_IMODE(os.stat(office.store.place).st_mode) == 0o600
