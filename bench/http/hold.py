# SPDX-License-Identifier: MIT
"""hold.py PORT COUNT [SOURCE] - keep connections idle until standard input ends.

Each connection makes one request. Several of these processes can hold more connections than the
descriptor limit of one allows. SOURCE (127.0.0.x) gives each process its own range of ports. It
prints the number of connections, and the reason if there are fewer than COUNT.
"""

from __future__ import annotations

import resource
import socket
import sys

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(port: int, source: str) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    connection.sendall(REQUEST)
    if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
        connection.close()
        raise OSError("no answer")
    return connection


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    source = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held: list[socket.socket] = []
    reason = ""
    try:
        while len(held) < count:
            held.append(connect(port, source))
    except OSError as error:
        reason = str(error)
    print(len(held), reason, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
