"""Raw connections to a server of this machine, and the addresses that it listens on."""

from __future__ import annotations

import socket


def raw(port: int, data: bytes) -> bytes:
    """Everything that is answered to ``data``; PORT in it stands for the port."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data.replace(b"PORT", str(port).encode()))
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def addresses(port: int) -> set[str]:
    """Local addresses that listen on ``port``, as the kernel writes them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A" and int(local.partition(":")[2], 16) == port:
                    found.add(local.partition(":")[0])
    return found
