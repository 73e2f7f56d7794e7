# SPDX-License-Identifier: MIT
"""rouse-serve for a long time with faults: its memory and its descriptors stay as they are.

`make soak SOAK_SECONDS=600` takes so long, and `make check` some seconds. In turns the server has
no descriptors left, no memory, clients that reset their connections, and none of these. Its access
log is a disk that is full all the time, and one of its files cannot be read (EIO): a filter of the
kernel fails each sendfile(2) of that file's size. ROUSE_SEED repeats a run.
"""

from __future__ import annotations

import errno
import os
import platform
import random
import resource
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from serve_common import (
    ALLOW,
    FAIL,
    SANITIZED,
    Client,
    Server,
    eventually,
    filter_calls,
    get,
    main,
    not_run,
    seed,
    tree,
)

SECONDS = float(os.environ.get("SOAK_SECONDS", "8"))
PHASE_S = 0.25
CLIENTS = 40
ANSWERS = {200, 404, 503}
TARGETS = ("/one.txt", "/small.txt", "/mega.bin", "/nothing", "/broken.bin")
BROKEN_BYTES = 99_991  # of the file that cannot be read; no other transfer has this size
SENDFILE = {"x86_64": (40, 0xC000003E), "aarch64": (71, 0xC00000B7)}  # number, and machine
LOAD, IS, RETURN = 0x20, 0x15, 0x06  # instructions of the filter
NUMBER_AT, MACHINE_AT, BYTES_AT = 0, 4, 16 + 3 * 8  # in what it looks at
KIB_MORE = 4096  # that a server may grow by in the second half of the time: its caches and arenas


def break_file() -> None:
    """From now on, let each sendfile(2) of that many bytes fail with EIO in this process."""
    number, machine = SENDFILE[platform.machine()]
    steps = (
        *((LOAD, 0, 0, MACHINE_AT), (IS, 0, 5, machine), (LOAD, 0, 0, NUMBER_AT)),
        *((IS, 0, 3, number), (LOAD, 0, 0, BYTES_AT), (IS, 0, 1, BROKEN_BYTES)),
        *((RETURN, 0, 0, FAIL | errno.EIO), (RETURN, 0, 0, ALLOW)),
    )
    filter_calls(*steps)


class Soak(unittest.TestCase):
    def setUp(self) -> None:
        self.dice = random.Random(seed())
        self.answered = self.refused = 0

    def ask(self, server: Server) -> None:
        """Ask for something. An answer is whole, or the connection is closed without one."""
        try:
            with server.connect() as client:
                client.send(get(self.dice.choice(TARGETS)) * self.dice.choice((1, 1, 3)))
                if self.dice.random() < 0.2:
                    client.reset()
                    return
                reply = client.reply()
        except (OSError, EOFError):
            self.refused += 1
            return
        self.assertIn(reply.status, ANSWERS)
        self.answered += 1

    def plain(self, server: Server) -> None:
        self.ask(server)

    def many(self, server: Server) -> None:
        """Connections that come all at once, of which most are reset."""
        clients: list[Client] = []
        try:
            clients += (server.connect() for _ in range(CLIENTS))
            for client in clients:
                client.send(get(self.dice.choice(TARGETS)))
        except OSError:
            self.refused += 1
        for client in clients:
            client.reset()

    def limited(self, kind: int, left: Callable[[Server], int]) -> Callable[[Server], None]:
        """Ask while the server may have only so much of something."""

        def ask(server: Server) -> None:
            pid = server.process.pid
            before = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (left(server), before[1]))
            try:
                self.many(server)
                self.ask(server)
            finally:
                resource.prlimit(pid, kind, before)

        return ask

    def kib(self, server: Server) -> int:
        text = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
        return int(text.partition("VmRSS:")[2].split()[0])

    def space(self, server: Server) -> int:
        text = Path(f"/proc/{server.process.pid}/statm").read_text(encoding="ascii")
        return int(text.split()[0]) * resource.getpagesize()

    def descriptors(self, server: Server) -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    def test_memory_and_descriptors_stay_as_they_are(self) -> None:
        if SANITIZED:
            not_run("a sanitizer keeps freed memory")
        phases = (
            self.plain,
            self.many,
            self.limited(resource.RLIMIT_NOFILE, lambda server: self.descriptors(server) + 5),
            self.limited(resource.RLIMIT_AS, lambda server: self.space(server) + (64 << 10)),
        )
        arguments = ("--access-log", "/dev/full")
        with tree() as root, Server(root, *arguments, preexec=break_file) as server:
            (root / "broken.bin").write_bytes(bytes(BROKEN_BYTES))
            seen: list[tuple[int, int]] = []
            end = time.monotonic() + SECONDS
            while time.monotonic() < end or len(seen) < 8:
                for phase in phases:
                    until = time.monotonic() + PHASE_S
                    while time.monotonic() < until:
                        phase(server)
                self.assertTrue(eventually(lambda: server.held() == 0))
                seen.append((self.descriptors(server), self.kib(server)))
            self.assertEqual(server.ask("/one.txt").status, 200)
            with self.assertRaisesRegex(EOFError, f"amid a body, 0 of {BROKEN_BYTES}"):
                server.ask("/broken.bin")
        half, last = seen[len(seen) // 2], seen[-1]
        print(
            f"{len(seen)} rounds, {self.answered} answers, {self.refused} refused: {half}, {last}"
        )
        self.assertEqual(last[0], half[0])
        self.assertLess(last[1], half[1] + KIB_MORE, seen)


if __name__ == "__main__":
    main()
