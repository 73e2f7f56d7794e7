#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""demos/programs.py on each of its programs: its figures are consistent, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
PYTHON = SOURCE / "build" / "venv" / "bin" / "python"
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
LIBRARY = BUILD / "preload" / "librouse-preload.so"
KERNEL = BUILD / "kernel" / "rouse-kernel"
PLACES = (Path(tempfile.gettempdir()), Path("/dev/shm"))
NOT_HERE, INTERRUPTED = 77, 130
WORKERS = 2  # nginx's worker processes
END_S = 60
MARK = "ROUSE_TEST_MARK"
VERDICTS = ("useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded")
Row = dict[str, Any]


def reason() -> str:
    if not PYTHON.exists():
        return "the packages of the command are not in build/venv"
    if not LIBRARY.exists():
        return "there is no librouse-preload.so in a build with sanitizers"
    return ""


def left_behind(pid: int) -> list[Path]:
    return [path for place in PLACES for path in place.glob(f"rouse-demo-{pid}-*")]


def marked(mark: str) -> list[str]:
    """The processes that have this mark in their environment and have not ended."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            environment = (process / "environ").read_bytes()
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(words.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "ROUSE_PRELOAD": str(LIBRARY),
            "ROUSE_KERNEL": str(KERNEL),
            MARK: self.mark,
        }

    def command(self, name: str, *words: str | Path) -> list[str]:
        program = SOURCE / "demos" / "programs.py"
        return [str(word) for word in (PYTHON, program, name, *words)]

    def ran(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, and check that nothing is left."""
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        ) as demo:
            out, err = demo.communicate(timeout=400)
        self.nothing_is_left(demo.pid)
        return subprocess.CompletedProcess(words, demo.returncode, out, err)

    def nothing_is_left(self, pid: int) -> None:
        self.assertEqual(left_behind(pid), [])
        until = time.monotonic() + END_S
        while found := marked(self.mark):  # a process needs time to end after a signal
            self.assertLess(time.monotonic(), until, found)
            time.sleep(0.05)

    def demonstrated(self, name: str) -> Row:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "figures.json"
            words = self.command(name, "--seconds", "1", "--pairs", "1", "--json", file)
            done = self.ran(*words)
            if done.returncode == NOT_HERE:
                self.skipTest(done.stderr.strip())
            self.assertEqual(done.returncode, 0, done.stderr)
            shown: Row = json.loads(file.read_text(encoding="utf-8"))
        for line in shown["sentences"]:
            self.assertIn(line, done.stdout)
        for runs in shown["runs"].values():
            (one,) = runs
            self.assertGreater(one["requests"], 0)
            self.assertGreaterEqual(one["cpu_us"], 0)
        self.assertGreaterEqual(shown["requests"], shown["runs"]["with"][0]["requests"])
        return shown

    def recorded(self, name: str, processes: int = 1) -> Row:
        """Run the demonstration, and check the figures that every recording has."""
        shown = self.demonstrated(name)
        found = shown["profile"]
        self.assertGreaterEqual(found["processes"], processes)
        totals = found["totals"]
        self.assertGreater(totals["wakes"], 0)
        for row in (totals, *found["kinds"].values()):
            every = row.get("wakes", row.get("count"))
            self.assertEqual(sum(row[name] for name in VERDICTS), every)
        self.assertEqual(sum(row["count"] for row in found["kinds"].values()), totals["wakes"])
        self.assertEqual(sum(row["waits"] for row in found["locks"]), totals["lock_waits"])
        waited = sum(row["waited_ns"] for row in found["locks"])
        self.assertEqual(waited, totals["lock_wait_ns"])
        return shown

    def test_python(self) -> None:
        shown = self.recorded("python")
        told, kinds = shown["told"], shown["profile"]["kinds"]
        self.assertEqual(shown["profile"]["processes"], 1)
        self.assertEqual(kinds["sleep"]["count"], told["naps"])
        self.assertGreaterEqual(kinds["semaphore"]["count"], told["handovers"])

    def test_threads_report_their_use(self) -> None:
        for words, status in (("--help", 0), ("", 2), ("much", 2)):
            program = [str(PYTHON), str(SOURCE / "demos" / "threads.py"), *words.split()]
            done = subprocess.run(program, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, status)
            self.assertTrue((done.stdout + done.stderr).startswith("usage: threads.py"))

    def test_redis(self) -> None:
        for name in ("redis", "redis-single"):
            shown = self.recorded(name)
            self.assertGreater(shown["profile"]["kinds"]["epoll"]["count"], 0)

    def test_memcached(self) -> None:
        shown = self.recorded("memcached")
        self.assertGreater(shown["profile"]["kinds"]["epoll"]["count"], 0)

    def test_nginx(self) -> None:
        shown = self.recorded("nginx", WORKERS)
        (listener,) = shown["profile"]["listeners"]
        self.assertGreaterEqual(listener["processes"], WORKERS)
        self.assertGreater(listener["accepted"], 0)
        self.assertLessEqual(listener["most"], listener["accepted"])
        self.assertGreaterEqual(listener["jain_processes"], 1 / listener["processes"])

    def test_java(self) -> None:
        shown = self.recorded("java")
        self.assertEqual(shown["told"]["operations"], shown["told"]["in_lock"])
        self.assertGreater(shown["profile"]["kinds"]["condition"]["count"], 0)

    def test_go(self) -> None:
        shown = self.demonstrated("go")
        found = shown["profile"]
        self.assertIn("is linked statically", found["why_not_recorded"])
        if "sleeps" not in found:
            print(f"not run: the kernel's half of go: {shown['note']}")
            return
        self.assertGreater(sum(row["count"] for row in found["sleeps"]), 0)
        self.assertIn("goroutines", {row["name"] for row in found["threads"]})

    def test_missing_programs_are_reported_with_their_package(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            self.environment["PATH"] = place
            for name, package in (("redis", "redis-server"), ("go", "golang-go")):
                done = self.ran(*self.command(name))
                self.assertEqual((done.returncode, done.stdout), (NOT_HERE, ""))
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn(f"apt-get install {package}", done.stderr)

    def interrupted(self, name: str, said: str, seconds: int) -> None:
        """Send SIGINT to the demonstration alone, once it has printed this text."""
        with subprocess.Popen(
            self.command(name, "--seconds", str(seconds)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        ) as demo:
            assert demo.stderr
            while said not in (line := demo.stderr.readline()):
                self.assertTrue(line, "it ended before it was interrupted")
            demo.send_signal(signal.SIGINT)
            out, _ = demo.communicate(timeout=200)
        self.assertEqual((demo.returncode, out), (INTERRUPTED, ""))
        self.nothing_is_left(demo.pid)

    def test_nothing_is_left_after_an_interruption(self) -> None:
        self.interrupted("python", "as it is", 60)
        if shutil.which("redis-server") and shutil.which("redis-benchmark"):
            self.interrupted("redis", "under rouse run", 1)


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
