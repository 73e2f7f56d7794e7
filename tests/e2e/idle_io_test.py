# SPDX-License-Identifier: MIT
"""A program whose threads all wait for I/O has no wake-up and makes no system call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = Path(os.environ.get("ROUSE_BUILD", "build/check")) / "tests" / "e2e" / "idle_io"
PATIENCE_S = 60
QUIET_S = 4


def runs(pid: int) -> dict[str, str]:
    """By kernel thread: its running time, time in the run queue, and number of times it ran."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {task.name: (task / "schedstat").read_text() for task in tasks}


def wait_until_quiet(pid: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        before = runs(pid)
        time.sleep(0.5)
        if runs(pid) == before:
            return
        assert time.monotonic() < end, "is never quiet"


def may_trace() -> bool:
    if not shutil.which("strace"):
        return False
    return (
        subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0
    )


class IdleIo(unittest.TestCase):
    def program(self, kind: str, workers: str) -> subprocess.Popen[bytes]:
        program = subprocess.Popen(
            [PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "ROUSE_THREADS": kind, "ROUSE_WORKERS": workers},
        )
        self.addCleanup(self.end, program)
        assert program.stdout
        self.assertEqual(program.stdout.readline(), b"ready\n")
        wait_until_quiet(program.pid)
        return program

    def end(self, program: subprocess.Popen[bytes]) -> None:
        program.communicate(timeout=PATIENCE_S)
        self.assertEqual(program.returncode, 0)

    def test_no_wake_up_and_no_system_call(self) -> None:
        programs = [self.program("user", count) for count in ("1", "2", "4")]
        programs.append(self.program("kernel", "1"))
        with tempfile.TemporaryDirectory() as folder:
            for program in programs:
                self.trace(program.pid, Path(folder) / str(program.pid))

    def trace(self, pid: int, log: Path) -> None:
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(pid), "-o", log], stderr=subprocess.DEVNULL
        )
        try:
            # At first strace shows each thread's current call.
            end = time.monotonic() + PATIENCE_S
            while not log.exists() or not self.traced(log) >= runs(pid).keys():
                self.assertLess(time.monotonic(), end, "the tracer does not attach")
                time.sleep(0.05)
            wait_until_quiet(pid)
            before, log_before = runs(pid), log.read_text()
            time.sleep(QUIET_S)
            self.assertEqual(log.read_text(), log_before)
            self.assertEqual(runs(pid), before)
        finally:
            tracer.terminate()
            tracer.wait()

    def traced(self, log: Path) -> set[str]:
        return {line.split()[0] for line in log.read_text().splitlines()}


if __name__ == "__main__":
    if PROGRAM.exists() and b"__sanitizer_" in PROGRAM.read_bytes():
        print("not run: a sanitizer has a thread of its own, which wakes up")
        sys.exit(77)
    if not may_trace():
        print("not run: strace is not installed, or may not trace here")
        sys.exit(77)
    unittest.main(verbosity=2)
