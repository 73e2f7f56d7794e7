# SPDX-License-Identifier: MIT
"""The io_uring requests of a program, as strace and tracepoints see them."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(os.environ.get("ROUSE_BUILD", "build/check")) / "tests" / "e2e" / "rings"
PATIENCE_S = 60
LINES, ROUNDS = 16, 100
MESSAGES = 2 * LINES * ROUNDS  # messages sent by both sides together
TRACING = Path("/sys/kernel/tracing")
CALLS = "sendto,recvfrom,accept4,pread64,pwrite64,fsync,io_uring_setup,io_uring_enter"


def may_trace() -> bool:
    if not shutil.which("strace"):
        return False
    trial = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True)
    return trial.returncode == 0


MAY_TRACE = may_trace()
needs_strace = unittest.skipUnless(MAY_TRACE, "strace is not installed, or may not trace here")


def start(way: str, *before: str) -> subprocess.Popen[str]:
    """Start the program, which waits for its byte. Its first line names its backend."""
    return subprocess.Popen(
        [*before, PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROUSE_IO": way, "ROUSE_WORKERS": "1"},
    )


def first_line(program: subprocess.Popen[str]) -> str:
    """The output before the program waits for its byte. A program without output is killed."""
    assert program.stdout
    with contextlib.closing(selectors.DefaultSelector()) as selector:
        selector.register(program.stdout, selectors.EVENT_READ)
        if not selector.select(PATIENCE_S):
            program.kill()
            raise TimeoutError("the program says nothing")
    return program.stdout.readline()


def has_rings() -> bool:
    program = start("uring")
    out, _ = program.communicate("x", timeout=PATIENCE_S)
    return out.startswith("io_uring")


@contextlib.contextmanager
def submissions(pid: int) -> Iterator[Path]:
    """Trace the submissions of the process and its future threads. OSError if not permitted."""
    instance = TRACING / "instances" / f"rouse-{os.getpid()}"
    instance.mkdir()
    try:
        tasks = " ".join(path.name for path in Path(f"/proc/{pid}/task").iterdir())
        (instance / "buffer_size_kb").write_text("8192")  # a smaller buffer loses the oldest events
        (instance / "set_event_pid").write_text(tasks)
        (instance / "options" / "event-fork").write_text("1")
        (instance / "events" / "io_uring" / "io_uring_submit_req" / "enable").write_text("1")
        yield instance / "trace"
    finally:
        instance.rmdir()


class Uring(unittest.TestCase):
    def counts(self, way: str) -> collections.Counter[str]:
        """The program's system calls by name, from its byte to its end."""
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            program = start(way, "strace", "-f", "-e", f"trace={CALLS}", "-o", str(log))
            name = "io_uring" if way == "uring" else "epoll"
            self.assertEqual(first_line(program), f"{name}: asked for\n")
            skip = len(log.read_text())
            out, errors = program.communicate("x", timeout=PATIENCE_S)
            self.assertEqual((out, program.returncode), ("done\n", 0), errors)
            found = re.findall(r"^\d+ +(\w+)\(", log.read_text()[skip:], re.MULTILINE)
        return collections.Counter(found)

    @needs_strace
    def test_rings_do_the_work(self) -> None:
        counts = self.counts("uring")
        self.assertGreater(counts["io_uring_enter"], 0)
        for call in ("pread64", "pwrite64", "fsync"):
            self.assertEqual(counts[call], 0, call)
        # The first read of each stream is a plain call, and so is a send without other requests.
        self.assertLess(counts["recvfrom"], MESSAGES / 10)
        self.assertLess(counts["sendto"], MESSAGES * 9 / 10)
        self.assertLess(counts["accept4"], LINES / 2)

    @needs_strace
    def test_epoll_makes_no_ring_calls(self) -> None:
        counts = self.counts("epoll")
        self.assertEqual(counts["io_uring_setup"] + counts["io_uring_enter"], 0)
        self.assertEqual(counts["sendto"], MESSAGES)

    def test_the_default(self) -> None:
        out, errors = start("auto").communicate("x", timeout=PATIENCE_S)
        self.assertEqual(out, "io_uring: the faster one, and the kernel has it\ndone\n")
        self.assertEqual(errors, "")

    @needs_strace
    def test_a_refusal_is_reported(self) -> None:
        refusal = ("strace", "-f", "-o", "/dev/null", "-e", "inject=io_uring_setup:error=EPERM")
        for way in ("auto", "uring"):
            out, errors = start(way, *refusal).communicate("x", timeout=PATIENCE_S)
            first, last = out.splitlines()
            self.assertRegex(first, "^epoll: .*io_uring")
            self.assertEqual(last, "done")
            shown = f"rouse: io_uring was asked for, epoll is used: {first[7:]}\n"
            self.assertEqual(errors, shown if way == "uring" else "")

    def test_no_memory_to_lock(self) -> None:
        """Some kernels refuse a ring to a user who may lock no memory. All I/O works either way."""
        nobody = ("setpriv", "--reuid=65534", "--clear-groups", "prlimit", "--memlock=0")
        if os.geteuid() != 0 or not shutil.which(nobody[0]):
            self.skipTest("only root can become another user, with setpriv")
        if subprocess.run([*nobody, "test", "-x", PROGRAM], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("another user cannot run this build")
        for way in ("auto", "uring"):
            out, errors = start(way, *nobody).communicate("x", timeout=PATIENCE_S)
            first, last = out.splitlines()
            self.assertEqual(last, "done")
            shown = way == "uring" and first.startswith("epoll: ")
            self.assertIn("epoll is used: " + first[7:] if shown else "", errors)
            self.assertEqual(bool(errors), shown)

    def test_the_operations(self) -> None:
        program = start("uring")
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assertEqual(first_line(program), "io_uring: asked for\n")  # its threads exist now
        with contextlib.ExitStack() as stack:
            try:
                trace = stack.enter_context(submissions(program.pid))
            except OSError as refusal:
                self.skipTest(f"tracepoints are not available: {refusal}")
            out, errors = program.communicate("x", timeout=PATIENCE_S)
            self.assertEqual((out, program.returncode), ("done\n", 0), errors)
            opcodes = collections.Counter(re.findall(r"opcode (\w+)", trace.read_text()))
        self.assertEqual(opcodes["RECV"], 2 * LINES)  # one request receives all data of a stream
        self.assertGreater(opcodes["SEND"], MESSAGES / 10)
        self.assertIn(opcodes["ACCEPT"], range(1, LINES))  # it is submitted again when it has ended
        for name in ("READ", "WRITE", "FSYNC"):
            self.assertEqual(opcodes[name], ROUNDS, name)


if __name__ == "__main__":
    if not has_rings():
        print("not run: there is no io_uring here")
        sys.exit(77)
    unittest.main(verbosity=2)
