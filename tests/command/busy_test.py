#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Threads that have a worker but no processor: their states agree with the kernel's figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, here, rouse, start_ready

from rouse.sched import procfs
from rouse.store import find
from rouse.top import busy

BUSY = FIXTURES / "busy"
PROCESSOR = min(os.sched_getaffinity(0))
HOG = "print('ready', flush=True)\nwhile True: pass"
STATES = ("usr", "lat", "lck", "slp")
WHOLE = [f"{state}_share" for state in STATES]


class Shares(unittest.TestCase):
    """How the second of a busy worker is split into shares, from the kernel's figures in ns."""

    def check(self, cpu: float, queued: float, slept: bool, *wanted: float) -> None:
        own = busy.shares(1e9, cpu * 1e9, queued * 1e9, slept)
        for got, want in zip((own.on_cpu, own.queued, own.asleep), wanted, strict=True):
            self.assertAlmostEqual(got, want)

    def test_the_kernels_figures_are_used_unchanged(self) -> None:
        self.check(0.3, 0.5, True, 0.3, 0.5, 0.2)
        self.check(0, 0, True, 0, 0, 1)

    def test_an_idle_worker_runs_and_is_queued_too(self) -> None:
        self.check(1.5, 0.5, True, 1, 0, 0)
        self.check(0.8, 0.5, True, 0.8, 0.2, 0)

    def test_time_under_way_is_not_counted_yet(self) -> None:
        self.check(0.4, 0.4, False, 0.5, 0.5, 0)
        self.check(0.996, 0, False, 1, 0, 0)
        self.check(0, 0, False, 0, 1, 0)


class Beside(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name) / "recordings"
        self.own = {"ROUSE_OBS_DIR": str(self.folder)}

    def program(self, *threads: str, **environment: str) -> subprocess.Popen[str]:
        return start_ready(self, BUSY, *threads, **self.own, **environment)

    def on_one_processor(self, *threads: str, **environment: str) -> subprocess.Popen[str]:
        """The worker shares the processor with a busy program. The observer may use any
        processor."""
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {PROCESSOR})
        try:
            start_ready(self, sys.executable, "-c", HOG)
            return self.program(*threads, **environment)
        finally:
            os.sched_setaffinity(0, allowed)

    def top(self) -> dict[str, dict[str, Any]]:
        """The threads that `rouse top` shows after one second, by name and number."""
        words = ("top", "--batch", "1", "1", "--json", "--all")
        done = rouse(*words, ROUSE_OBS_DIR=str(self.folder))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)["threads"]
        return {thread["name"].rpartition("/")[2]: thread for thread in found}


def of(found: dict[str, dict[str, Any]], text: str) -> list[dict[str, Any]]:
    rows = [row for name, row in found.items() if text in name]
    assert rows, (text, list(found))
    return rows


class Top(Beside):
    """Shares of an interval. A thread in a system call sleeps, and does not run or wait to run."""

    def test_two_threads_do_not_run_at_once_on_one_processor(self) -> None:
        self.on_one_processor("burn", "burn", ROUSE_WORKERS="2")
        # The figures of threads and of workers are read one after the other. If the reader is
        # preempted in between, they differ by the time that the threads ran meanwhile. That is
        # rare, and a wrong figure differs each time.
        for _ in range(3):
            found = self.top()
            threads, workers = of(found, "burn"), of(found, "worker-")
            ran = sum(row["usr"] for row in threads)
            busy_share = sum(row["usr"] + row["sys"] for row in workers)
            if abs(ran - busy_share) <= 5:
                break
        # The share of one processor that the hog leaves. Each thread has a worker all the time.
        self.assertLess(ran, 105)
        self.assertGreater(sum(row["lat"] for row in threads), 90)
        self.assertAlmostEqual(ran, busy_share, delta=5)
        for row in threads:
            self.assertAlmostEqual(sum(row[state] for state in STATES), 100, delta=1, msg=row)

    def test_a_thread_in_a_system_call_sleeps(self) -> None:
        self.program("nap", ROUSE_WORKERS="1")
        (row,) = of(self.top(), "nap")
        self.assertLess(row["usr"], 10)
        self.assertGreater(row["slp"], 10)
        self.assertAlmostEqual(sum(row[state] for state in STATES), 100, delta=1, msg=row)

    def test_kernel_threads_in_system_calls_sleep(self) -> None:
        self.program("nap", "burn", ROUSE_THREADS="kernel")
        for _ in range(3):  # the kernel counts time in its queue when that is over
            found = self.top()
            (burn,) = of(found, "burn")
            if burn["usr"] + burn["lat"] > 95:
                break
        self.assertGreater(of(found, "nap")[0]["slp"], 10)
        self.assertGreater(burn["usr"] + burn["lat"], 95)


class Report(Beside):
    """Figures over the program's whole life. No check depends on how long that was."""

    def sections(self, target: Path | str) -> tuple[dict[str, list[dict[str, Any]]], str]:
        wanted = ("-s", "threads", "-s", "workers")
        done = here("report", "--json", "--all", *wanted, target, **self.own)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        return found["sections"], "\n".join(found["notes"])

    def await_life(self, program: subprocess.Popen[str], seconds: float) -> None:
        """Wait until the program is this many seconds old."""
        began = procfs.read_thread(program.pid, program.pid)
        assert began
        time.sleep(max(seconds - began.age_ns / 1e9, 0))

    def check_nap(self, target: Path | str) -> None:
        """The thread spends nearly all its time in a system call."""
        (row,) = of(self.threads(target)[0], "nap")
        self.assertLess(row["usr_share"], 0.1)
        self.assertGreater(row["in_call_share"], 0.1)
        self.check_sums([row])

    def threads(self, target: Path | str) -> tuple[dict[str, dict[str, Any]], str]:
        found, notes = self.sections(target)
        return {f"{row['label']}-{i}": row for i, row in enumerate(found["threads"])}, notes

    def check_sums(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.assertAlmostEqual(sum(row[key] for key in WHOLE), 1, delta=0.01, msg=row)

    def test_two_threads_do_not_run_at_once_on_one_processor(self) -> None:
        program = self.on_one_processor("burn", "burn", ROUSE_WORKERS="2")
        self.await_life(program, 1.5)
        found, notes = self.threads(str(program.pid))
        rows = of(found, "burn")
        self.assertLess(sum(row["usr_share"] for row in rows), 1.05)
        self.assertGreater(sum(row["lat_share"] for row in rows), 0.9)
        self.check_sums(rows)
        self.assertNotIn("not known", notes.replace("are not known (-)", ""))

    def test_a_thread_in_a_system_call_sleeps(self) -> None:
        program = self.program("nap", ROUSE_WORKERS="1")
        self.await_life(program, 1.5)
        self.check_nap(str(program.pid))

    def test_kernel_and_foreign_threads_have_the_kernels_figures(self) -> None:
        program = self.program("nap", "burn", ROUSE_THREADS="kernel")
        self.await_life(program, 1.5)
        sections, notes = self.sections(str(program.pid))
        rows = {row["origin"] + row["name"]: row for row in sections["threads"]}
        main = rows["foreign"]  # reads its standard input
        for row in (main, rows["kernelnap"]):
            self.assertLess(row["usr_share"], 0.1)
            self.assertGreater(row["in_call_share"], 0.1)
            self.assertIn(row["now"], ("SLP", "USR"))
        self.assertEqual(main["now"], "SLP")
        self.assertGreater(rows["kernelburn"]["usr_share"] + rows["kernelburn"]["lat_share"], 0.9)
        self.check_sums(list(rows.values()))
        busy = {row["tid"]: row["busy_share"] for row in sections["workers"]}
        self.assertLess(busy[main["tid"]], 0.5)
        self.assertNotIn("could not be split into running and sleeping", notes)

    def test_a_recording_has_the_kernels_figures(self) -> None:
        for threads in ("user", "kernel"):
            program = self.program("nap", ROUSE_THREADS=threads)
            self.await_life(program, 0.5)
            file = self.folder.with_name(threads)
            words = ("--seconds", "1", "--interval", "0.2", str(program.pid))
            done = here("record", "-o", file, *words, **self.own)
            self.assertEqual(done.returncode, 0, done.stderr)
            program.kill()
            self.check_nap(file)

    def test_missing_kernel_figures_are_reported(self) -> None:
        program = self.program("nap", "burn", ROUSE_WORKERS="1")
        self.await_life(program, 0.3)
        program.kill()
        program.wait()
        sections, notes = self.sections(self.folder / find.file_name(program.pid))
        self.assertIn("of user threads' USR is the time that they had a worker", notes)
        self.assertIn("could not be split into running and sleeping", notes)
        main = next(row for row in sections["threads"] if row["origin"] == "foreign")
        self.assertEqual((main["usr_share"], main["now"]), (None, "-"))
        self.assertGreater(main["missing_share"], 0.5)
        self.assertEqual(
            {row["busy_share"] for row in sections["workers"] if not row["is_worker"]}, {None}
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
