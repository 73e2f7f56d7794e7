#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""selectherd: each old mechanism causes its known useless wake-ups, and without it there are none.

Stepped runs post an event only when every thread sleeps, so their counts are exact. No speed is
checked.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

BUILD = Path(os.environ.get("ROUSE_BUILD", "build/release"))
PROGRAM = BUILD / "bench" / "rouse-bench"
SWITCHES = {
    "--wake": ("broadcast", "precise"),
    "--sched-lock": ("process", "thread"),
    "--select-lock": ("global", "fine"),
    "--timer": ("tick", "exact"),
}
VERDICTS = ("useful", "lost_race", "false", "early", "timeout")
OLD = tuple(word for name, (old, _) in SWITCHES.items() for word in (name, old))
THREADS, EVENTS = 6, 200


def herd(*arguments: str, threads: str = "kernel") -> dict[str, Any]:
    done = subprocess.run(
        [str(PROGRAM), "selectherd", "--threads", threads, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def stepped(*arguments: str) -> dict[str, Any]:
    size = ("-T", str(THREADS), "-n", str(EVENTS), "--sets", "4")
    return herd("--load", "stepped", "--timeout-us", "0", *size, *arguments)


def verdicts(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in VERDICTS)


class Stepped(unittest.TestCase):
    def check(self, *arguments: str, false: int = 0, lost: int = 0) -> None:
        report = stepped(*arguments)
        self.assertEqual(verdicts(report), (EVENTS, lost, false, 0, 0), arguments)
        self.assertEqual((report["events"], report["total_ops"]), (EVENTS, EVENTS))

    def test_every_combination_on_threads_and_forked_processes(self) -> None:
        for values in itertools.product(*SWITCHES.values()):
            words = [w for pair in zip(SWITCHES, values, strict=True) for w in pair]
            false = EVENTS * (THREADS - 1) if "broadcast" in values else 0
            for how in ([], ["--processes"]):
                with self.subTest(values=values, how=how):
                    self.check(*words, *how, false=false)

    def test_precise_and_exact_wake_one_thread_per_event_and_none_spuriously(self) -> None:
        for threads in ("4", "64"):
            report = stepped("-T", threads)
            self.assertEqual(verdicts(report), (EVENTS, 0, 0, 0, 0))
            self.assertGreaterEqual(report["voluntary_switches"], EVENTS)

    def test_threads_with_one_set_race_for_each_event(self) -> None:
        self.check("--share", "3", lost=2 * EVENTS)

    def test_a_set_of_1024(self) -> None:
        self.check("--sets", "1024")
        self.check("--sets", "1024", "--wake", "broadcast", false=EVENTS * (THREADS - 1))


class Locks(unittest.TestCase):
    def test_a_run_queue_is_entered_and_left_once_per_wake_up(self) -> None:
        for lock in ("process", "thread"):
            report = stepped("--sched-lock", lock, "--wake", "broadcast")
            wake_ups = sum(verdicts(report))
            # All threads are woken once more at the end of the sample.
            self.assertEqual(report["sched_lock_taken"], 2 * (wake_ups + THREADS))

    def test_a_wider_lock_is_not_acquired_more_often_than_fine_ones(self) -> None:
        taken = [stepped("--select-lock", lock)["select_lock_taken"] for lock in ("global", "fine")]
        self.assertLess(*taken)


class Timers(unittest.TestCase):
    def test_exact_is_never_early(self) -> None:
        report = herd("--sets", "0", "-T", "20", "--timeout-us", "3000", "--seconds", "0.2")
        self.assertEqual(verdicts(report)[:4], (0, 0, 0, 0))
        self.assertGreater(report["timeout"], 0)

    def test_a_tick_wakes_together_and_too_early(self) -> None:
        options = ("--sets", "0", "-T", "20", "--timeout-us", "15000", "--seconds", "0.3")
        clumping = 0.0
        for _ in range(5):
            report = herd("--timer", "tick", *options)
            self.assertEqual(verdicts(report)[:3], (0, 0, 0))
            self.assertGreater(report["timeout"], 0)
            self.assertEqual(report["timeout"], report["total_ops"])
            clumping = max(clumping, report["clumping"])
            if clumping > 12:
                break
        # The 20 threads wake together. With the exact timer, about ten do at most. On a busy
        # machine the wake-ups of one tick are spread, so not every run shows the clumping.
        self.assertGreater(clumping, 12)
        report = herd("--timer", "tick", *options, "--timeout-us", "10000")
        self.assertGreater(report["early"], 0)


class Beside(unittest.TestCase):
    def test_poll_and_rouse_poll_hand_on_every_token(self) -> None:
        for threads, via in (("kernel", "poll"), ("kernel", "rouse"), ("user", "rouse")):
            for how in ([], ["--processes"]) if via == "poll" else ([],):
                with self.subTest(threads=threads, via=via, how=how):
                    options = ("--via", via, "-T", "8", "-n", "500", "--timeout-us", "0")
                    off = ["--obs", "off"] if via == "rouse" else []
                    report = herd(*options, *how, *off, threads=threads)
                    # These are calls that returned at least one event. Others are not counted.
                    self.assertEqual(report["events"], 500)
                    self.assertEqual(report["useful"], report["total_ops"])
                    self.assertIn(report["useful"], range(1, 501))

    def test_rouse_poll_causes_no_spurious_wake_ups(self) -> None:
        options = ("-T", "16", "-n", "5000", "--timeout-us", "0", "--obs", "counted")
        report = herd(*options, threads="user")
        self.assertEqual(report["events"], 5000)
        # The record distinguishes calls that slept from those that found something at once.
        self.assertIn(report["useful"], range(1, report["total_ops"] + 1))
        # A thread may take an event while the poller is handing it on. Its next call may then wake
        # without an event. This is rare, whereas a herd would appear at every event.
        self.assertLessEqual(report["lost_race"], 5)

    def test_all_old_on_forked_processes_hands_on_every_token(self) -> None:
        report = herd(*OLD, "--processes", "-T", "8", "-n", "500")
        self.assertEqual(report["events"], 500)


class Limits(unittest.TestCase):
    def test_the_death_of_a_forked_process_ends_the_run(self) -> None:
        for load in (["--load", "stepped"], []):
            command = [str(PROGRAM), "selectherd", "--threads", "kernel", "--processes", *load]
            with subprocess.Popen(
                [*command, "-T", "4", "-n", "1000000000", "--timeout-us", "0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as bench:
                children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
                end = time.monotonic() + 60
                while len(pids := children.read_text().split()) < 4:
                    self.assertLess(time.monotonic(), end, "four processes, in time")
                os.kill(int(pids[1]), signal.SIGKILL)
                out, err = bench.communicate(timeout=60)
            self.assertEqual((bench.returncode, out), (1, ""), load)
            self.assertIn("a forked process failed", err)
            self.assertEqual([pid for pid in pids if Path(f"/proc/{pid}").exists()], [])

    def test_too_many_descriptors_are_reported(self) -> None:
        command = [str(PROGRAM), "selectherd", "--threads", "kernel", "--via", "poll"]
        done = subprocess.run(
            ["prlimit", "--nofile=64:64", *command, "-T", "32", "--sets", "1024"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("making the descriptors", done.stderr)


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"not run: no {PROGRAM}")
        sys.exit(77)
    unittest.main(verbosity=2)
