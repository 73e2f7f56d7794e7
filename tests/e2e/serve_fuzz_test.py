# SPDX-License-Identifier: MIT
"""rouse-serve answers random input with whole answers only, and leaves nothing behind.

The inputs are made of the requests in corpus/, whose names begin with the statuses of their
answers, and of others. `make fuzz FUZZ_SECONDS=600` runs this for longer, with the address
sanitizer. ROUSE_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import socket
import time
import unittest
from pathlib import Path

from serve_common import KINDS, Client, Server, eventually, get, main, seed, tree

SECONDS = float(os.environ.get("FUZZ_SECONDS", "6"))
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.http"))
KNOWN = [path.read_bytes() for path in CORPUS]
CLIENTS = 16
STATUSES = {
    200,
    206,
    301,
    304,
    400,
    403,
    404,
    405,
    408,
    411,
    412,
    413,
    414,
    416,
    431,
    500,
    501,
    503,
    505,
}

TIMES = ("idle-timeout", "header-timeout", "body-timeout", "write-timeout")
LIMITS = [part for name in TIMES for part in (f"--{name}", "5")]

HEADERS = (
    b"Content-Length: 5\r\n",
    b"Content-Length: 70000\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
    b"If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT\r\n",
    b'If-None-Match: "x"\r\n',
    b'If-None-Match: W/"x, "y"\r\nX: "\r\nif-none-match:z, W/"\r\n',
    b'If-Match: "x", W/"y"\r\n',
    b'If-Range: W/"x"\r\n',
    b"Expect: 100-continue\r\n",
    b"Range: bytes=0-1\r\n",
    b"X: " + b"y" * 3000 + b"\r\n",
    b"Host: again\r\n",
    b" folded\r\n",
)
TARGETS: tuple[str, ...] = (
    "/",
    "/one.txt",
    "/small.txt",
    "/page.css",
    "/over.js",
    "/sub",
    "/sub/",
    "/nothing",
)
TARGETS += ("/../secret", "/%2e%2e/secret", "/%", "/a%00", "*", "http://x/one.txt", "/mega.bin")
TARGETS += ("/" + "x" * 5000, "/" + "sub/../" * 100, "relative", "", "/?q#f")
METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "CONNECT", "PRI", "G", "get")
PIECES = (b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"/", b"%", b"HTTP/1.0", b"0\r\n\r\n", b"\xff")


class Fuzz:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def request(self) -> bytes:
        dice = self.dice
        headers = b"".join(dice.choices(HEADERS, k=dice.choice((0, 0, 0, 1, 1, 2))))
        text = get(dice.choice(TARGETS), headers, dice.choice(METHODS))
        return text + dice.choice((b"", b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n"))

    def mutate(self, data: bytes) -> bytes:
        dice = self.dice
        at, to = sorted((dice.randint(0, len(data)), dice.randint(0, len(data))))
        kind = dice.randrange(6)
        if kind == 0:
            return data[:at] + dice.choice(PIECES) + data[at:]
        if kind == 1:
            return data[:at] + dice.randbytes(dice.randint(1, 8)) + data[at + 1 :]
        if kind == 2:
            return data[:at] + data[min(to, at + 9) :]
        if kind == 3:
            return data[:to] + data[at:]
        if kind == 4:
            return data[:at]
        return data[:at] + data[at : at + 1] * dice.choice((2, 50, 20000)) + data[at:]

    def input(self) -> bytes:
        known = self.dice.random() < 0.3
        data = b"".join(
            self.dice.choice(KNOWN) if known else self.request()
            for _ in range(self.dice.randint(1, 6))
        )
        for _ in range(self.dice.choice((0, 0, 1, 1, 1, 2, 5))):
            data = self.mutate(data)
        return data

    def send(self, client: Client, data: bytes) -> None:
        """Send in pieces, sometimes with short pauses."""
        while data:
            count = self.dice.choice((1, 7, 100, 1024, 16384, len(data)))
            client.send(data[:count])
            data = data[count:]
            if self.dice.random() < 0.02:
                time.sleep(0.001)


def check_answers(data: bytes) -> None:
    """Check that the output is a sequence of whole answers, without using their lengths: an answer
    to HEAD has no body."""
    if data and not data.startswith(b"HTTP/1.1 "):
        raise AssertionError(f"no answer: {data[:80]!r}")
    for part in data.split(b"HTTP/1.1 ")[1:]:
        head, end, _ = part.partition(b"\r\n\r\n")
        if not end or int(head[:3]) not in STATUSES or b"\r\nDate: " not in head:
            raise AssertionError(f"no whole answer: {head!r}")


def is_unused(server: Server) -> bool:
    return server.held() == 0


class Corpus(unittest.TestCase):
    def test_each_request_of_the_corpus_has_the_answers_that_its_name_says(self) -> None:
        self.assertGreater(len(CORPUS), 30)
        with tree() as root, Server(root) as server:
            for path, data in zip(CORPUS, KNOWN, strict=True):
                expected = [int(status) for status in re.findall(r"(?:^|_)(\d{3})(?=_)", path.name)]
                for step in (len(data), 1):
                    with self.subTest(path=path.name, step=step), server.connect() as client:
                        with contextlib.suppress(OSError):  # it was refused before its end
                            for at in range(0, len(data), step):
                                client.send(data[at : at + step])
                            client.socket.shutdown(socket.SHUT_WR)
                        self.assertEqual([reply.status for reply in client.replies()], expected)


class Random(unittest.TestCase):
    def play(self, server: Server, fuzz: Fuzz, end: float) -> int:
        count = 0
        while time.monotonic() < end:
            clients = [server.connect() for _ in range(CLIENTS)]
            for client in clients:
                count += 1
                try:
                    fuzz.send(client, fuzz.input())
                    if fuzz.dice.random() < 0.1:
                        client.reset()
                        continue
                    client.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # the server closed before all of it was sent
            for client in clients:
                self.read(client)
        return count

    def read(self, client: Client) -> None:
        if client.socket.fileno() < 0:
            return
        parts = []
        with client:
            try:
                while data := client.socket.recv(1 << 20):
                    parts.append(data)
            except ConnectionResetError:
                return
        check_answers(b"".join(parts))

    def test_random_input(self) -> None:
        fuzz = Fuzz(random.Random(seed()))
        with tree() as root:
            for path in root.rglob("*.*"):  # nothing in a body looks like an answer
                path.write_bytes(b"z" * path.stat().st_size)
            for kind in KINDS:
                with Server(root, *LIMITS, kind=kind) as server:
                    count = self.play(server, fuzz, time.monotonic() + SECONDS / 2)
                    self.assertGreater(count, 100)
                    self.assertEqual(server.ask("/one.txt").body, b"z")
                    self.assertTrue(eventually(functools.partial(is_unused, server)))
                    self.assertEqual(server.messages(), "")


if __name__ == "__main__":
    main()
