#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for a contended lock, compared with the clock, switches and schedstat of hot_lock.c."""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from typing import NamedTuple

from common import here

from interposed import Source, environment, unless_emulated
from run_case import MS, Case

PROGRAM, FORKED = Source("hot_lock").program, Source("forked_waiters").program
CONDITION_MUTEX = Source("condition_mutex").program
SCENES = (  # threads, how long they hold the lock and pause, in us, and how often
    (8, 50, 20, 100),
    (32, 20, 200, 20),
    (4, 500, 500, 50),
    (16, 0, 300, 50),
)
DELIVERY_NS = 100_000  # most of a wake-up's way to the scheduler


class Sums(NamedTuple):
    """Over all calls that acquire the lock."""

    locked_ns: int
    queued_ns: int  # schedstat
    switches: int  # voluntary
    calls: int  # those that slept


class HotLock(Case):
    def scene(self, kind: str, *numbers: int) -> tuple[Sums, dict[str, int]]:
        """The sums that the program measured, and the same from the report."""
        store = self.folder / "_".join(map(str, (kind, *numbers)))
        store.mkdir(mode=0o700)
        done = subprocess.run(
            [PROGRAM, kind, *map(str, numbers)],
            env={**os.environ, **environment(store)},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = here("report", "--all", "--json", store)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        kinds = {"semaphore": {"semaphore"}, "read-write": {"read lock", "write lock"}}
        rows = [
            row
            for row in json.loads(said.stdout)["sections"]["wakes"]
            if row["kind"] in kinds.get(kind, {"mutex"})
        ]
        names = ("count", "useful", "lost_race", "wait_ns", "late_ns")
        return (
            Sums(*map(int, done.stdout.split())),
            {name: sum(row[name] for row in rows) for name in names},
        )

    def check(self, kind: str, is_exact: bool) -> None:
        for numbers in SCENES:
            with self.subTest(kind=kind, numbers=numbers):
                own, found = self.scene(kind, *numbers)
                whole = found["wait_ns"] + found["late_ns"]
                self.assertLessEqual(whole, own.locked_ns)
                # Beside other programs a thread is preempted in the call, but not in a wait.
                preempted = max(0, own.queued_ns - found["late_ns"])
                least = 0.8 * (own.locked_ns - preempted) - 20 * MS
                self.assertGreaterEqual(whole, least, f"{own}, {found}")
                # A woken thread may be preempted before it begins to wait: that is queued too.
                most = 1.1 * own.queued_ns + found["count"] * DELIVERY_NS + 5 * MS
                self.assertLessEqual(found["late_ns"], most)
                if is_exact:
                    self.assertGreaterEqual(found["late_ns"], 0.5 * own.queued_ns - 20 * MS)
                    self.assertEqual(found["count"], found["useful"] + found["lost_race"])
                    # A page fault may switch too; a wake-up before the thread sleeps does not.
                    self.assertGreaterEqual(found["count"], 0.8 * own.switches - 10)
                    self.assertLessEqual(found["count"], 1.2 * own.switches + 10)
                    self.assertLessEqual(found["useful"], 1.2 * own.calls + 10)

    @unless_emulated("an emulated thread also sleeps for locks of the emulator")
    def test_time_in_a_barged_mutex_is_not_time_to_run(self) -> None:
        for kind in ("mutex", "adaptive", "shared", "timed"):
            self.check(kind, is_exact=True)

    @unless_emulated("an emulated thread also sleeps for locks of the emulator")
    def test_time_in_a_barged_semaphore_is_not_time_to_run(self) -> None:
        self.check("semaphore", is_exact=True)

    def test_time_in_a_read_write_lock_is_not_time_to_run(self) -> None:
        """Its waits lie in libc: they count from the last release before the acquisition."""
        self.check("read-write", is_exact=False)

    def test_time_in_a_barged_stream_is_not_time_to_run(self) -> None:
        self.check("stream", is_exact=False)

    @unless_emulated("an emulated thread also sleeps for locks of the emulator")
    def test_time_for_the_mutex_of_a_condition_is_not_queued(self) -> None:
        file = self.folder / "report.json"
        done = self.run_it("--json", "-o", file, "--", CONDITION_MUTEX)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(file.read_text())
        verdict, (total,) = found["verdict"], found["sections"]["totals"]
        waits = total["wakes"] + total["lock_waits"]
        queued = verdict["time"]["queued"] * verdict["thread_ns"]
        self.assertLessEqual(queued, 1.1 * int(done.stdout) + waits * DELIVERY_NS + 5 * MS)
        # Four of five threads wait while one works, or for a processor beside other programs.
        waited = verdict["time"]["locks"] + verdict["time"]["queued"]
        self.assertGreaterEqual(waited, 0.5, verdict["time"])

    def test_no_sleeper_is_forgotten(self) -> None:
        """A thread that was woken leaves the wake-up of the next sleeper to its own unlock."""
        for kind in ("mutex", "adaptive", "shared", "timed", "semaphore"):
            with self.subTest(kind=kind):
                self.scene(kind, 6, 5, 5, 2000)

    def test_waiter_that_forks_in_a_signal_handler_forgets_no_sleeper(self) -> None:
        """Parent and child go on waiting, and only one of them has a record to write to."""
        for number in range(20):
            store = self.folder / f"forked{number}"
            store.mkdir(mode=0o700)
            done = subprocess.run(
                [FORKED], env={**os.environ, **environment(store)}, check=False, timeout=60
            )
            self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
