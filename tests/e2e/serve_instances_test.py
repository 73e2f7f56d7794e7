# SPDX-License-Identifier: MIT
"""rouse-serve as several processes: their connections, their deaths, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import unittest
from pathlib import Path

from serve_common import PROGRAM, Server, eventually, get, main

INSTANCES = 3


def children(pid: int) -> set[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return set(map(int, text.split()))


def connections_of(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            count += str(link.readlink()).startswith("socket:")
    return count


def is_gone(pid: int) -> bool:
    """Whether all threads of a process have ended. The first one may end before a worker, which
    still accepts connections."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z" and len(threads) == 1


class Instances(unittest.TestCase):
    def served(self, *options: str, status: int | None = 0) -> Server:
        words = ("--respond", "hello", "--instances", str(INSTANCES), *options)
        server = self.enterContext(Server(*words, status=status))
        self.assertIn(f"instances: {INSTANCES}", server.line)
        self.assertTrue(eventually(lambda: len(children(server.process.pid)) == INSTANCES))
        return server

    def test_connections_are_spread_over_the_instances(self) -> None:
        server = self.served()
        pids = children(server.process.pid)
        idle = {pid: connections_of(pid) for pid in pids}
        clients = [self.enterContext(server.connect()) for _ in range(60)]
        for client in clients:
            client.send(get("/"))
            self.assertEqual(client.reply().status, 200)
        for pid in pids:
            self.assertGreater(connections_of(pid), idle[pid])

    def test_an_instance_that_dies_is_started_again_and_no_connection_is_refused(self) -> None:
        server = self.served()
        before = children(server.process.pid)
        victim = min(before)
        kept = [self.enterContext(server.connect()) for _ in range(30)]
        for client in kept:
            client.send(get("/"))
            client.reply()
        os.kill(victim, signal.SIGKILL)
        self.assertTrue(eventually(lambda: is_gone(victim)))  # until then it may still accept
        for _ in range(100):
            self.assertEqual(server.ask("/").status, 200)
        self.assertTrue(eventually(lambda: len(children(server.process.pid)) == INSTANCES))
        self.assertEqual(len(children(server.process.pid) & before), INSTANCES - 1)
        self.assertRegex(
            server.messages(),
            r"rouse-serve: instance \d was ended by signal 9 \(Killed\); a new one",
        )
        alive = 0
        for client in kept:
            client.send(get("/"))
            try:
                alive += client.reply().status == 200
            except (OSError, EOFError):
                continue
        self.assertGreater(alive, 0)  # the other instances go on

    def test_a_signal_drains_all_and_leaves_no_process(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.served()
            pids = children(server.process.pid)
            server.process.send_signal(number)
            self.assertEqual(server.process.wait(20), 0)
            self.assertTrue(all(map(is_gone, pids)))

    def test_the_instances_of_a_supervisor_that_was_killed_end(self) -> None:
        server = self.served(status=None)
        pids = children(server.process.pid)
        server.process.kill()
        server.process.wait(20)
        self.assertTrue(eventually(lambda: all(map(is_gone, pids))))

    def test_instances_that_cannot_start_are_given_up(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            words = [str(PROGRAM), "--port", "0", "--respond", "x", "--instances", "2"]
            words += ["--metrics", port]
            done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("5 times in a row soon after its start; giving up\n", done.stderr)

    def test_each_instance_has_metrics_of_its_own(self) -> None:
        words = [str(PROGRAM), "--port", "0", "--respond", "x", "--metrics", "0"]
        words += ["--instances", str(INSTANCES)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            lines = [server.stdout.readline() for _ in range(1 + INSTANCES)]
            server.terminate()
        places = {line.split(" at ")[1] for line in lines if "metrics for Prometheus at" in line}
        self.assertEqual(len(places), INSTANCES)
        self.assertEqual(server.returncode, 0)


if __name__ == "__main__":
    main()
