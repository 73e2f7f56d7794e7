#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hold times from samples, compared with the clock of hold_samples.c."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, LIMIT, Source, environment

SAMPLES = Source("hold_samples")
KNOWN = SAMPLES.known
MS = 1_000_000
ADMITTED = 256  # locks that are sampled from the beginning; preload/record/hold.c
MOST_OFTEN_NS = 15_000  # CPU time of a thread per sample, at least
# Weights grow while the rate sinks: their sum varied 2.2 times as much as that of equal weights.
UNEQUAL = 2.5
SIGMAS = 5  # by chance alone, a test fails once in some million runs


def run(scene: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the numbers that a scene prints, and the rows of its locks."""
    from rouse.store import find
    from rouse.tables import build

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        done = subprocess.run(
            [SAMPLES.program, scene],
            env={**os.environ, **environment(folder)},
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        (file,) = folder.glob("*.rouse")
        opened = find.open_source(file)
        try:
            rows = build.tables(find.read(opened))["locks"].to_rows()
        finally:
            opened.close()
    return list(map(int, done.stdout.split())), rows


def total(rows: list[dict[str, Any]], name: str, lock: str) -> int:
    found = [row[name] for row in rows if row["lock_name"] == lock]
    return sum(found)


class HoldSamples(unittest.TestCase):
    def check_estimate(self, scene: str, lock: str, rounds: int) -> None:
        (held_ns, squares, longest_ns), rows = run(scene)
        sampled = total(rows, "sampled", lock)
        shown = math.sqrt(total(rows, "hold_variance", lock))
        # The same from all holds, as the program measured them.
        deviation = math.sqrt(squares * rounds / sampled)
        # On a busy machine, a few holds in which the thread was preempted are most of the squares.
        # The estimate is then not normally distributed: it has none of them, or one many times.
        chosen = UNEQUAL * longest_ns * rounds / sampled
        error = SIGMAS * deviation + 2 * chosen
        estimate = total(rows, "hold_ns", lock)
        acquired = total(rows, "acquired", lock)
        with self.subTest(held=held_ns, estimate=estimate, error=error, shown=shown):
            self.assertLess(sampled, rounds / 4)  # most acquisitions are not timed
            self.assertGreater(sampled, 20)
            # The hooks themselves take some time between the program's clock and ours.
            self.assertAlmostEqual(estimate, held_ns, delta=error + 0.1 * held_ns + 50 * MS)
            self.assertGreater(shown, 0)
            self.assertLess(shown, error)
            self.assertAlmostEqual(acquired, rounds, delta=SIGMAS * rounds / math.sqrt(sampled))

    def test_rare_long_holds_are_not_missed_and_not_counted_too_often(self) -> None:
        self.check_estimate("skewed", "plain", KNOWN["ROUNDS"])

    def test_samples_take_little_of_the_cpu_time_of_a_thread_that_seldom_runs(self) -> None:
        (ran_ns,), rows = run("seldom")
        sampled, acquired = (sum(row[name] for row in rows) for name in ("sampled", "acquired"))
        rounds = KNOWN["ROUNDS"] // 4
        self.assertLess(sampled, 300 + ran_ns / MOST_OFTEN_NS)
        self.assertGreater(sampled, 200)
        error = UNEQUAL * rounds / math.sqrt(sampled)
        self.assertAlmostEqual(acquired, rounds, delta=SIGMAS * error)

    def test_a_recursive_lock_is_held_until_its_last_unlock(self) -> None:
        self.check_estimate("nested", "recursive", KNOWN["ROUNDS"] // 4)

    def test_few_locks_that_nobody_waits_for_have_rows(self) -> None:
        _, rows = run("never")
        free = {row["lock"] for row in rows if row["lock_name"] != "plain"}
        self.assertGreater(len(free), 0)
        self.assertLess(len(free), 2 * ADMITTED)  # the filter takes few locks for others
        self.assertGreater(total(rows, "sampled", "plain"), 0)

    def test_locks_that_nobody_waits_for_are_not_shown(self) -> None:
        done = rouse("run", "--json", "--", SAMPLES.program, "never", ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stderr)["sections"]["locks"]
        self.assertEqual({row["lock_label"] for row in found}, {"plain"})

    def test_time_that_a_holder_sleeps_or_waits_for_another_lock_is_known(self) -> None:
        (slept_ns, waited_ns), rows = run("inside")
        names = ("inside_sleep_ns", "inside_lck_ns", "inside_lat_ns")
        for lock, held_ns in (("plain", slept_ns), ("outer", waited_ns)):
            inside_ns = sum(total(rows, name, lock) for name in names)
            # A few acquisitions may count for two, or not at all.
            self.assertAlmostEqual(inside_ns, held_ns, delta=0.5 * held_ns)
            self.assertLessEqual(inside_ns, total(rows, "hold_ns", lock))
            self.assertGreater(inside_ns, 0.5 * total(rows, "hold_ns", lock))
        self.assertEqual(total(rows, "inside_lck_ns", "plain"), 0)
        self.assertEqual(total(rows, "inside_sleep_ns", "outer"), 0)

    def test_a_contended_lock_is_held_as_long_as_by_its_holders_clock(self) -> None:
        (held_ns, wall_ns), rows = run("busy")
        found, shown = (
            total(rows, "hold_ns", "plain"),
            math.sqrt(total(rows, "hold_variance", "plain")),
        )
        # A hold in which the thread was preempted is long, and may count for several.
        self.assertAlmostEqual(found / held_ns, 1, delta=0.1 + SIGMAS * shown / held_ns)
        self.assertLess(shown, 0.3 * held_ns)
        first = min(row["first_ns"] for row in rows if row["contested"])
        last = max(row["last_ns"] for row in rows)
        self.assertGreater(last - first, 0.5 * wall_ns)
        self.assertLess(last - first, 1.5 * wall_ns)


if __name__ == "__main__":
    unittest.main(verbosity=2)
