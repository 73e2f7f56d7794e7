# SPDX-License-Identifier: MIT
"""An idle rouse-serve with a hundred connected clients has no wake-up and makes no system call."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from serve_common import KINDS, SANITIZED, Client, Server, eventually, get, main, not_run

QUIET_SECONDS = 10
# Longer than the test: a time-out causes a legitimate wake-up.
TIMES = ("idle-timeout", "header-timeout", "body-timeout")
PATIENT = [part for name in TIMES for part in (f"--{name}", "600")]
PATIENT += ["--min-rate", "0", "--per-address", "0"]
TRACED_SECONDS = 3
ATTEMPTS = 5
# A chunk has a head and then slots of 256 bytes: src/obs/ledger.c
CHUNK_BYTES, CHUNK_SLOTS = 16 * 4096, 255


def runs(pid: int) -> dict[str, str]:
    """By kernel thread: its running time, time in the run queue, and number of times it ran."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {task.name: (task / "schedstat").read_text() for task in tasks}


def is_quiet(pid: int) -> bool:
    before = runs(pid)
    time.sleep(0.5)
    return runs(pid) == before


def tracing_is_allowed() -> bool:
    if not shutil.which("strace"):
        return False
    command = ["strace", "-o", "/dev/null", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


class Idle(unittest.TestCase):
    def setUp(self) -> None:
        self.servers: list[Server] = []
        for kind in KINDS:
            server = Server("--respond", "x", *PATIENT, kind=kind)
            self.servers.append(self.enterContext(server))
            for index in range(100):
                client = self.enterContext(server.connect())
                self.use(client, index)
        for server in self.servers:
            is_over = eventually(functools.partial(is_quiet, server.process.pid))
            self.assertTrue(is_over, "is never quiet")

    def use(self, client: Client, index: int) -> None:
        """Clients send no request, one, many at once, or an incomplete one."""
        count = (0, 1, 100)[index % 3]
        client.send(get("/") * count)
        for _ in range(count):
            client.reply()
        if index % 4 == 3:
            client.send(get("/")[:20])

    def test_no_wake_up_in_ten_seconds(self) -> None:
        before = [runs(server.process.pid) for server in self.servers]
        time.sleep(QUIET_SECONDS)
        self.assertEqual([runs(server.process.pid) for server in self.servers], before)

    @unittest.skipUnless(tracing_is_allowed(), "strace is not installed, or may not trace here")
    def test_no_system_call(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder) / kind for kind in KINDS]
            tracers = [
                subprocess.Popen(
                    ["strace", "-f", "-p", str(server.process.pid), "-o", log],
                    stderr=subprocess.DEVNULL,
                )
                for server, log in zip(self.servers, logs, strict=True)
            ]
            try:
                # strace first prints the current call of each thread.
                for server, log in zip(self.servers, logs, strict=True):
                    self.wait_for_tracer(server, log)
                before = [log.read_bytes() for log in logs]
                time.sleep(TRACED_SECONDS)
                self.assertEqual([log.read_bytes() for log in logs], before)
            finally:
                for tracer in tracers:
                    tracer.terminate()
                    tracer.wait()

    def wait_for_tracer(self, server: Server, log: Path) -> None:
        def is_attached() -> bool:
            traced = {line.split()[0] for line in log.read_text().splitlines()}
            return traced >= runs(server.process.pid).keys()

        self.assertTrue(eventually(lambda: log.exists() and is_attached()))
        self.assertTrue(eventually(lambda: is_quiet(server.process.pid)))


def resident_bytes(pid: int) -> int:
    # smaps counts page by page. /proc/PID/statm lacks the pages that a CPU has not added up yet.
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"no Rss in /proc/{pid}/smaps_rollup")


class Memory(unittest.TestCase):
    def test_an_idle_connection_has_a_page_of_stack_and_little_else(self) -> None:
        few, more = 1500, 9500
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if most < more + 100:
            self.skipTest(f"not run: a process may have {most} descriptors")
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        # The stack's page is 4,096 bytes of them. Slots are allocated and touched chunk by chunk.
        # The limit allows for 5 % of the threads to have a second page: 3 % have one on a busy
        # machine, and none on an idle one, where a connection takes 4,480 bytes.
        slot = CHUNK_BYTES / CHUNK_SLOTS + CHUNK_BYTES / (more - few)
        for recording, most_each in (("off", 4700), ("counted", 4700 + slot)):
            with self.subTest(recording=recording):
                for _ in range(ATTEMPTS):
                    each = self.bytes_of_each(recording, few, more)
                    if each <= most_each:
                        break
                self.assertLessEqual(each, most_each)

    def bytes_of_each(self, recording: str, few: int, more: int) -> float:
        """Bytes per connection, from two sizes that both include the program's fixed memory."""
        sizes = []
        with (
            # On a busy machine a spare may be added in between, which has memory of its own.
            mock.patch.dict(os.environ, {"ROUSE_OBS": recording, "ROUSE_SPARES": "0"}),
            Server("--respond", "x", *PATIENT, kind="user") as server,
            contextlib.ExitStack() as clients,
        ):
            for count in (few, more - few):
                for _ in range(count):
                    client = clients.enter_context(server.connect())
                    client.send(get("/"))
                    client.reply()
                sizes.append(resident_bytes(server.process.pid))
        return (sizes[1] - sizes[0]) / (more - few)


if __name__ == "__main__":
    if SANITIZED:
        not_run("a sanitizer has a thread of its own, which wakes up")
    main()
