#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The raw servers of the HTTP tables send one whole answer per request, however it arrives."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "release"))
NOT_RUN = 77
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TEXT = "Hello, world!\n"


class NotHereError(Exception):
    """The reason why this server cannot run here."""


@contextmanager
def serving(name: str, *loops: str) -> Iterator[int]:
    """Start the server and yield its port."""
    program = str(BUILD / "bench" / name)
    with subprocess.Popen(
        [program, "0", TEXT, *loops], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            found = re.search(r":(\d+)/", process.stdout.readline())
            if found is None:
                said = process.stderr.read().strip()
                if process.wait() == NOT_RUN:
                    raise NotHereError(said)
                raise AssertionError(said)
            yield int(found[1])
        finally:
            process.kill()


def receive(connection: socket.socket, count: int) -> bytes:
    """Receive exactly this many bytes, or fewer if the stream ends."""
    parts = bytearray()
    while len(parts) < count and (part := connection.recv(1 << 20)):
        parts += part
    return bytes(parts)


def answer(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(REQUEST)
        connection.shutdown(socket.SHUT_WR)
        return receive(connection, 1 << 20)


class Raw:
    """The tests that each server must pass."""

    name: str

    def setUp(self) -> None:
        self.random = random.Random(int(os.environ.get("ROUSE_SEED", "1")))

    def burst(self, port: int, count: int, whole: bytes) -> None:
        """Send requests in pieces of any size, and read only when many have been sent."""
        data = REQUEST * count
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            stuck = threading.Event()

            def send() -> None:
                at = 0
                while at < len(data):
                    size = self.random.choice((1, 3, 31, 33, 35, 1000, 70_000, 1_000_000))
                    connection.sendall(data[at : at + size])
                    at += size
                    if at > 4_000_000:
                        stuck.set()
                stuck.set()

            sender = threading.Thread(target=send)
            sender.start()
            stuck.wait(1.0)  # the server may stop reading before everything has been sent
            got = receive(connection, len(whole) * count)
            sender.join()
        if got != whole * count:
            raise AssertionError(f"{len(got)} bytes of {len(whole) * count}, or others")

    def test_one_answer_per_request(self) -> None:
        with serving(self.name) as port:
            whole = answer(port)
            head, _, body = whole.partition(b"\r\n\r\n")
            assert body == TEXT.encode()
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert f"Content-Length: {len(TEXT)}".encode() in head
            for count in (1, 2, 64, 65, 1000, 20_000, 200_000):
                self.burst(port, count, whole)

    def test_clients_that_leave_early_harm_no_other_client(self) -> None:
        with serving(self.name) as port:
            whole = answer(port)
            for _ in range(200):
                connection = socket.create_connection(("127.0.0.1", port), timeout=30)
                connection.setblocking(False)
                connection.send(REQUEST * self.random.choice((1, 100, 20_000)))
                connection.close()
            self.burst(port, 1000, whole)


def listeners(port: int) -> int:
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    at = f"0100007F:{port:04X}"
    return sum(words[1] == at and words[3] == "0A" for words in map(str.split, rows))


class Epoll(Raw, unittest.TestCase):
    name = "bench-raw-epoll"


class Uring(Raw, unittest.TestCase):
    name = "bench-raw-uring"

    def setUp(self) -> None:
        super().setUp()
        try:
            with serving(self.name):
                pass
        except NotHereError as reason:
            self.skipTest(str(reason))

    def test_several_loops_listen_and_end_together(self) -> None:
        with serving(self.name, "3") as port:
            assert listeners(port) == 3
            whole = answer(port)
            for _ in range(100):
                assert answer(port) == whole
            assert listeners(port) == 3
        end = time.monotonic() + 30
        while listeners(port) and time.monotonic() < end:
            time.sleep(0.01)
        assert listeners(port) == 0


if __name__ == "__main__":
    if not (BUILD / "bench" / "bench-raw-epoll").exists():
        print(f"not run: no bench-raw-epoll in {BUILD}")
        sys.exit(77)
    unittest.main(verbosity=2)
