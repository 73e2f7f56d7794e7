#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` records the known waits for mutexes and condition variables of mutex_cond.c."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import unittest

from interposed import LIBRARY, unless_emulated
from run_case import KNOWN, MS, PROGRAM, Case, label

# Additional instructions per lock and unlock of a free mutex. Some are for samples, which a slow
# machine has more of per lock.
MORE_INSTRUCTIONS = 60


class Mutexes(Case):
    def test_each_waiter_and_its_holder_are_counted(self) -> None:
        found = self.sections(PROGRAM, "mutex")
        waiters, hold_ns = KNOWN["WAITERS"], KNOWN["HOLD_MS"] * MS
        self.total(found, wakes=waiters, useful=waiters, lock_waits=waiters)
        (row,) = found["sides"]
        self.assertEqual(row["site_label"], label("pthread_mutex_lock(&hot);"))
        self.assertEqual(row["holder_label"], label("pthread_mutex_lock(&hot); /* by the holder"))
        self.assertEqual(row["contested"], waiters)
        self.assertGreaterEqual(row["wait_ns"], waiters * hold_ns)

    def test_wakers_are_inferred_from_unlocks(self) -> None:
        found = self.sections(PROGRAM, "mutex")
        counts = {row["wake_label"]: row["useful"] for row in found["wakes"]}
        self.assertEqual(
            counts,
            {
                label("pthread_mutex_unlock(&hot); /* by the holder"): 1,
                label("pthread_mutex_unlock(&hot); /* by a waiter"): KNOWN["WAITERS"] - 1,
            },
        )

    def test_lock_time_outs_are_counted_by_site(self) -> None:
        found = self.sections(PROGRAM, "timed")
        self.total(found, timeout=KNOWN["TIMED"] + KNOWN["CLOCKED"], useful=0)
        self.assertEqual(
            {row["site_label"]: row["given_up"] for row in found["sides"]},
            {
                label("pthread_mutex_timedlock(&hot"): KNOWN["TIMED"],
                label("pthread_mutex_clocklock(&hot"): KNOWN["CLOCKED"],
            },
        )

    def test_wait_for_a_mutex_that_the_thread_holds_itself_is_recorded(self) -> None:
        found = self.sections(PROGRAM, "own")
        self.total(found, timeout=1, useful=0)
        (row,) = found["sides"]
        self.assertEqual(row["site_label"], label("/* held by itself"))
        self.assertEqual(row["given_up"], 1)

    @unless_emulated("the emulator has no robust lists")
    def test_types_of_mutexes_return_the_same_as_without_recording(self) -> None:
        done = self.run_it("--", PROGRAM, "types")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no thread waited", done.stderr)

    @unless_emulated("callgrind runs programs of this machine only")
    def test_a_free_mutex_costs_few_instructions(self) -> None:
        if not shutil.which("valgrind"):
            self.skipTest("valgrind is not installed")
        keep = {"ROUSE_OBS_DIR": str(self.folder), "ROUSE_OBS_KEEP": "1"}
        self.folder.chmod(0o700)
        per_pair = []
        for preload in ("", str(LIBRARY)):
            environment = {**os.environ, **keep, "LD_PRELOAD": preload}
            counts = [instructions(number, environment) for number in (100_000, 200_000)]
            per_pair.append((counts[1] - counts[0]) / 100_000)
        self.assertLess(per_pair[1] - per_pair[0], MORE_INSTRUCTIONS)


def instructions(locks: int, environment: dict[str, str]) -> int:
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            PROGRAM,
            "many",
            str(locks),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found
    return int(found[1])


class Conditions(Case):
    def test_herds_and_unheard_signals_are_counted(self) -> None:
        found = self.sections(PROGRAM, "broadcasts")
        herd, rounds = KNOWN["HERD"], KNOWN["ROUNDS"]
        self.total(
            found,
            signals_unheard=KNOWN["SIGNALS"],
            broadcasts_unheard=KNOWN["BROADCASTS"],
        )
        self.assertEqual([(r["size_from"], r["count"]) for r in found["herds"]], [(herd, rounds)])
        rows = [row for row in found["wakes"] if row["kind"] == "condition"]
        self.assertEqual(
            [(row["wait_label"], row["wake_label"], row["useful"]) for row in rows],
            [(label("/* in a herd"), label("/* to a herd"), herd * rounds)],
        )

    def test_a_thread_that_waits_again_at_once_had_a_spurious_wake_up(self) -> None:
        found = self.sections(PROGRAM, "signals")
        rows = [row for row in found["wakes"] if row["kind"] == "condition"]
        self.assertEqual(
            [(r["wait_label"], r["wake_label"], r["useful"] + r["false_"]) for r in rows],
            [(label("/* for a post"), label("/* a post"), KNOWN["POSTS"])],
        )
        # A thread that is preempted after it was woken falsely seems to have worked.
        self.assertIn(KNOWN["SPURIOUS"] - rows[0]["false_"], (0, 1))
        self.assertGreater(rows[0]["waste_ns"], 0)

    def test_a_worker_that_keeps_the_mutex_while_it_works_was_woken_for_it(self) -> None:
        found = self.sections(PROGRAM, "jobs")
        rows = [row for row in found["wakes"] if row["wait_label"] == label("/* for a job")]
        self.assertEqual([(row["useful"], row["false_"]) for row in rows], [(KNOWN["JOBS"], 0)])

    def test_time_outs_are_counted_and_errors_are_not(self) -> None:
        found = self.sections(PROGRAM, "timeouts")
        self.total(found, wakes=KNOWN["TIMEOUTS"] + 1, timeout=KNOWN["TIMEOUTS"] + 1)

    def test_a_cancelled_waiter_has_left_the_queue(self) -> None:
        found = self.sections(PROGRAM, "cancelled")
        self.total(found, wakes=1, cancelled=1, signals_unheard=1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
