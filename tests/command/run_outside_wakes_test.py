#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A thread that another process wakes has its waker in the report (outside_wakes.c).

The program measures by its own clock how long the woken process took to run.
"""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source

WAKES = Source("outside_wakes")
NEAR_NS = 50_000  # per wait, between the clock of the program and the recording
RUNS = 5  # at most, until one was not preempted while it read the clock


class OutsideWakes(unittest.TestCase):
    def run_it(self, scene: str, *options: str) -> tuple[list[dict[str, Any]], int, int]:
        """The rows of wake-ups, the time by the program's clock, and its preemptions."""
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "report"
            words = ["run", "--json", *options, "-o", str(report), "--", str(WAKES.program), scene]
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            found = json.loads(report.read_text())
        late_ns, preempted = map(int, done.stdout.split())
        return found["sections"]["wakes"], late_ns, preempted

    def check(self, scene: str, wait: str, wake: str, *options: str) -> None:
        for _ in range(RUNS):
            rows, late_ns, preempted = self.run_it(scene, *options)
            (row,) = [row for row in rows if row["wait_label"] == WAKES.label(f"/* {wait} */")]
            self.assertEqual(row["wake_label"], WAKES.label(f"/* {wake} */"))
            self.assertEqual(row["count"], WAKES.known["ROUNDS"])
            limit = NEAR_NS * row["count"]
            self.assertLess(row["late_ns"], late_ns + limit)
            if not preempted:
                self.assertAlmostEqual(row["late_ns"], late_ns, delta=limit)
                break

    def test_a_post_by_another_process(self) -> None:
        self.check("semaphore", "by semaphore", "the post")

    def test_a_post_by_another_process_without_stacks(self) -> None:
        self.check("semaphore", "by semaphore", "the post", "--depth", "1")

    def test_a_signal_from_another_process(self) -> None:
        self.check("signals", "by signal", "the signal")

    def test_an_unlock_by_another_process(self) -> None:
        self.check("mutex", "by mutex", "the unlock")

    def test_a_condition_that_another_process_signals(self) -> None:
        self.check("condition", "by condition", "the call")


if __name__ == "__main__":
    unittest.main(verbosity=2)
