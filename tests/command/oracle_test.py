#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recorded figures agree with strace and with the kernel's counters for the same run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

from common import BUILD, FIXTURES, here, next_line, start, start_ready

from rouse.sched import procfs
from rouse.store import decode, find

CONNECTIONS, REQUESTS = 5, 20
CALLS = {"accept4": "accept", "recvfrom": "read", "sendto": "write"}
ROUNDS = 200


def not_run() -> str:
    """The reason why strace cannot be used. Empty if it can."""
    if not shutil.which("strace"):
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name) / "recordings"
        self.own = {"ROUSE_OBS_DIR": str(self.folder)}
        self.calls = Path(place.name) / "calls"

    def only_file(self) -> Path:
        (file,) = self.folder.iterdir()
        return file


@unittest.skipIf(not_run(), f"not run: {not_run()}")
class Calls(Case):
    def serve(self) -> tuple[dict[str, Any], Counter[str]]:
        """The report on a rouse-serve that has answered, and the socket calls that strace saw."""
        # One file per thread (-ff), because in a common file an interrupted call takes two lines.
        trace = ("strace", "-ff", "-y", "-e", f"trace={','.join(CALLS)}", "-o", self.calls)
        serve = (BUILD / "serve/rouse-serve", "--respond", "x", "--port", "0", "--workers", "2")
        server = start(self, *trace, *serve, ROUSE_IO="epoll", **self.own)
        port = int(re.findall(r":(\d+)/", next_line(server))[0])
        for _ in range(CONNECTIONS):
            with socket.create_connection(("127.0.0.1", port), 60) as client:
                for _ in range(REQUESTS):
                    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    self.assertTrue(client.recv(4096).startswith(b"HTTP/1.1 200"))
                client.shutdown(socket.SHUT_WR)
                self.assertEqual(client.recv(1), b"")  # the server has read our end of input
        pid = int(self.only_file().stem.partition("-")[0])  # in a container a namespace follows
        done = here("report", "--json", "--all", str(pid), **self.own)
        self.assertEqual(done.returncode, 0, done.stderr)
        os.kill(pid, signal.SIGKILL)
        server.wait(60)
        seen: Counter[str] = Counter()
        for file in self.calls.parent.glob(f"{self.calls.name}.*"):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                call = re.fullmatch(r"(\w+)\(\d+<(?:socket|TCP).*\) += (\d+)\b.*", line)
                if call:  # it returned without an error
                    seen[CALLS[call[1]]] += 1
        sections: dict[str, Any] = json.loads(done.stdout)["sections"]
        return sections, seen

    def test_completed_calls_are_those_that_strace_saw_succeed(self) -> None:
        sections, seen = self.serve()
        recorded = {row["kind"]: row["completed"] for row in sections["calls"]}
        self.assertEqual(recorded, dict(seen))
        requests = CONNECTIONS * REQUESTS
        self.assertEqual(
            recorded,
            {"accept": CONNECTIONS, "read": requests + CONNECTIONS, "write": requests},
        )
        self.assertEqual(sum(row["accepted"] for row in sections["accepts"]), CONNECTIONS)


class Waits(Case):
    def test_a_kernel_thread_switched_as_often_as_it_waited(self) -> None:
        """Observe a thread that only sleeps, 1 ms each time."""
        known = FIXTURES / "known_states"
        program = start_ready(self, known, ROUSE_THREADS="kernel", **self.own)
        source = find.open_source(self.only_file())
        self.addCleanup(source.close)

        def look() -> tuple[int, int, int]:
            """The thread's waits, and the kernel's count before and after reading them."""
            threads = find.read(source).threads
            (tid,) = threads["tid"][[decode.text_of(n) == "sleeper" for n in threads["name"]]]
            before = procfs.read_thread(program.pid, int(tid))
            threads = find.read(source).threads
            after = procfs.read_thread(program.pid, int(tid))
            (waits,) = threads["waits"][threads["tid"] == tid]
            assert before and after and before.voluntary is not None
            assert after.voluntary is not None
            return int(waits), before.voluntary, after.voluntary

        first = last = look()
        while last[0] - first[0] < ROUNDS:
            last = look()
        waits = last[0] - first[0]
        # A wait is counted at its end, but its switch at its start, so the counts may differ by 1.
        self.assertGreaterEqual(waits, last[1] - first[2] - 1)
        self.assertLessEqual(waits, last[2] - first[1] + 1)


if __name__ == "__main__":
    if not_run():
        print(f"not run: {not_run()}: calls are not compared with those that it sees")
    unittest.main(verbosity=2)
