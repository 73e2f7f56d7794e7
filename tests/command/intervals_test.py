#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse top` observes a real program whose threads spend their time in known ways."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, SOURCE, rouse

from rouse.sched import procfs
from rouse.store import find
from rouse.tables import build

STATES = ("usr", "lat", "mutex", "rwlock", "cond", "sem", "join", "io", "poll", "accept", "sleep")
WHOLE = ("usr", "sys", "lck", "slp", "lat")


class Known(subprocess.Popen[str]):
    def __init__(self, folder: Path, threads: str) -> None:
        super().__init__(
            [FIXTURES / "known_states"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROUSE_OBS_DIR": str(folder), "ROUSE_THREADS": threads},
        )
        assert self.stdout and self.stdin
        self.lines, self.letters = self.stdout, self.stdin
        assert self.lines.readline() == "ready\n"

    def send(self, letter: str) -> None:
        self.letters.write(letter)
        self.letters.flush()


def line_of(top: subprocess.Popen[str]) -> str:
    """The next line that does not say that a thread was preempted while it changed its words."""
    assert top.stderr
    while "words may be of two moments" in (line := top.stderr.readline()):
        pass
    return line


class Beside(unittest.TestCase):
    threads = "user"

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name) / "recordings"
        self.program = Known(self.folder, self.threads)
        self.addCleanup(self.end)

    @staticmethod
    def kill(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self.program.kill()
        self.program.wait()
        self.program.lines.close()
        self.program.letters.close()

    def top(self, *words: str) -> Any:
        """The threads that `rouse top` shows after one second, by name."""
        done = rouse("top", "--batch", "1", "1", "--json", *words, ROUSE_OBS_DIR=str(self.folder))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(done.stdout)
        return {thread["name"].rpartition(":")[2]: thread for thread in found["threads"]}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a run without an end, and wait until it has printed once."""
        top = subprocess.Popen(
            [sys.executable, "-m", "rouse", "top", "--batch", "0.2", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_OBS_DIR": str(self.folder)},
        )
        assert top.stdout
        top.stdout.readline()
        return top


class UserThreads(Beside):
    def test_states_are_measured_and_add_up(self) -> None:
        found = self.top("--all")
        for name in ("holder", "wanter", "sleeper", "runner", "waiter", "listener"):
            total = sum(found[name][state] for state in STATES)
            self.assertAlmostEqual(total, 100, delta=1, msg=name)
            self.assertIsNone(found[name]["sys"])

    def test_each_thread_is_at_its_known_site(self) -> None:
        found = self.top("--all")
        self.assertEqual([found[n]["cond"] for n in ("waiter", "runner")], [100, 0])
        self.assertEqual(found["listener"]["accept"], 100)
        self.assertGreater(found["runner"]["usr"] + found["runner"]["lat"], 99)
        self.assertGreater(found["sleeper"]["sleep"], found["sleeper"]["usr"])
        self.assertEqual(found["sleeper"]["lck"], 0)
        # The lock is held for 10 of 12 ms, and requested again 1 ms after it was released.
        self.assertGreater(found["wanter"]["mutex"], 40)
        self.assertGreater(found["holder"]["sleep"], 60)
        self.assertGreater(found["sleeper"]["vcx"], 10)

    def test_workers_have_the_kernels_figures(self) -> None:
        found = self.top("--all")
        workers = [thread for name, thread in found.items() if "worker-" in name]
        self.assertTrue(workers)
        for worker in workers:
            self.assertLessEqual(sum(worker[state] or 0 for state in WHOLE), 102)
            self.assertIsNone(worker["scl"])
        self.assertGreater(sum(worker["usr"] + worker["sys"] for worker in workers), 10)

    def test_run_times_of_threads_add_up_to_the_busy_time_of_workers(self) -> None:
        """rouse accounts for the same time twice. Both sums must match the kernel's figure."""
        source = find.open_source(self.folder / find.file_name(self.program.pid))
        self.addCleanup(source.close)

        def look() -> tuple[int, int, int, int]:
            read = find.read(source)  # then the kernel, at nearly the same moment
            tids = read.writers["tid"][read.writers["is_worker"] != 0].tolist()
            seen = [procfs.read_thread(self.program.pid, tid) for tid in tids]
            found = build.tables(read)
            workers = [row for row in found["workers"].to_rows() if row["is_worker"]]
            threads = [row for row in found["threads"].to_rows() if row["origin"] == "user"]
            ended = [row for row in found["groups"].to_rows() if row["is_user"]]
            ran = sum(row["usr"] for row in threads) + sum(row["usr"] for row in ended)
            busy = sum(row["wall_ns"] - row["idle_ns"] for row in workers)
            awake = sum((k.cpu_ns or 0) + (k.run_queue_ns or 0) for k in seen if k)
            return ran, busy, awake, sum(row["wall_ns"] for row in workers)

        before = look()
        self.top()  # more than a second
        ran, busy, awake, wall = (new - old for new, old in zip(look(), before, strict=True))
        self.assertAlmostEqual(ran / wall, busy / wall, delta=0.01)
        # An idle worker searches for work for a while, so the kernel counts more running time.
        self.assertLess(busy, awake + 0.01 * wall)

    def test_threads_that_wait_for_work_are_hidden(self) -> None:
        found = self.top()
        self.assertLessEqual({"holder", "wanter", "sleeper", "runner"}, set(found))
        self.assertEqual({"waiter", "listener"} & set(found), set())

    def test_the_program_ends_normally(self) -> None:
        top = self.start()
        self.program.letters.close()
        _, err = top.communicate(timeout=60)
        self.assertEqual(top.returncode, 4)
        self.assertRegex(err, rf"^rouse: process {self.program.pid} \(known_states\) has ended\n$")

    def test_the_program_is_killed(self) -> None:
        top = self.start(str(self.program.pid))
        self.program.send_signal(signal.SIGKILL)
        self.program.wait()
        _, err = top.communicate(timeout=60)
        self.assertEqual(top.returncode, 4)
        self.assertRegex(
            err,
            rf"^rouse: process {self.program.pid} \(known_states\) was killed, or left by"
            r" _exit\(\)\n$",
        )
        # The file that the program left behind is not live any more, and can be read.
        done = rouse(
            "top", str(self.program.pid), "--batch", "1", "1", ROUSE_OBS_DIR=str(self.folder)
        )
        self.assertEqual(done.returncode, 3)
        self.assertIn("was killed", done.stderr)

    def test_the_program_becomes_another(self) -> None:
        top = self.start()
        self.program.send("x")
        _, err = top.communicate(timeout=60)
        self.assertEqual(top.returncode, 4)
        self.assertIn("(known_states) runs another program now (exec)\n", err)

    def test_the_program_forks(self) -> None:
        top = self.start(str(self.program.pid))
        assert top.stderr
        self.program.send("f")
        child = int(self.program.lines.readline().split()[1])
        self.addCleanup(self.kill, child)
        output = line_of(top)
        self.assertIn(f"process {self.program.pid} has forked {child} (known_states)", output)
        self.assertIn("child", self.top("--filter", "child"))
        os.kill(child, signal.SIGKILL)
        # The kernel may have no figures of such a young child yet. `rouse top` then adds a line.
        said = [line_of(top)]
        while f"process {child}: " in said[-1]:
            said.append(line_of(top))
        self.assertIn(f"process {child} (known_states) was killed", said[-1])
        top.kill()
        top.communicate()


class KernelThreads(Beside):
    threads = "kernel"

    def test_states_add_up_with_those_of_the_kernel(self) -> None:
        found = self.top("--all")
        for name in ("holder", "wanter", "sleeper", "runner", "waiter", "listener"):
            total = sum(found[name][state] for state in WHOLE)
            self.assertAlmostEqual(total, 100, delta=3, msg=f"{name}: {found[name]}")
        self.assertGreater(found["runner"]["usr"] + found["runner"]["lat"], 90)
        self.assertGreater(found["wanter"]["mutex"], 40)
        self.assertEqual(found["waiter"]["cond"], 100)
        self.assertIsNotNone(found["sleeper"]["icx"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
