#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Threads that are woken at a condition, and then wait for its mutex (held_after_signal.c).

The program measures by its own clock for how long the mutex was held after the signals.
"""

from __future__ import annotations

import json
import unittest
from typing import Any

from interposed import Source
from run_case import MS, Case

WAITS = Source("held_after_signal")
ROUNDS, HOLD_NS = WAITS.known["ROUNDS"], WAITS.known["HOLD_MS"] * MS
SHARING = WAITS.known["SHARING"]
NEAR_NS = 200_000  # per wait: the way to the processor, on a busy machine
WAITER = WAITS.label("/* by a consumer */")


class Waits(Case):
    def run_scene(self, scene: str) -> tuple[dict[str, Any], int]:
        """The sections of the report, and the time by the program's clock."""
        file = self.folder / "report.json"
        done = self.run_it("--json", "-o", file, "--", WAITS.program, scene)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(file.read_text())["sections"], int(done.stdout)

    def lat_ns(self, found: dict[str, Any]) -> int:
        return sum(row["lat"] for row in found["groups"])

    def of_mutex(self, found: dict[str, Any], section: str) -> list[dict[str, Any]]:
        return [
            row
            for row in found[section]
            if row["kind"] == "mutex" and WAITER in (row.get("wait_label"), row.get("site_label"))
        ]

    def test_the_mutex_that_the_signalling_thread_holds_is_waited_for(self) -> None:
        found, held_ns = self.run_scene("held")
        # On a busy machine a thread may come to the mutex later than that, or another one first.
        wakes, sides = (self.of_mutex(found, section) for section in ("wakes", "sides"))
        count = sum(row["useful"] for row in wakes)
        self.assertGreater(count, ROUNDS / 2)
        self.assertEqual(sum(row["contested"] for row in sides), count)
        wake, side = (max(rows, key=lambda row: row["wait_ns"]) for rows in (wakes, sides))
        self.assertEqual(wake["wake_label"], WAITS.label("/* after the hold */"))
        self.assertEqual(side["holder_label"], WAITS.label("/* by the producer */"))
        held_ns = held_ns * count // ROUNDS
        waited_ns = sum(row["wait_ns"] for row in wakes)
        self.assertAlmostEqual(waited_ns, held_ns, delta=held_ns / 10)
        contested_ns = sum(row["wait_ns"] for row in sides)
        self.assertAlmostEqual(contested_ns, held_ns, delta=NEAR_NS * ROUNDS)
        mutex_ns = sum(row["mutex"] for row in found["groups"])
        self.assertAlmostEqual(mutex_ns, held_ns, delta=held_ns / 10)
        self.assertLess(self.lat_ns(found), held_ns / 2)

    def test_a_mutex_that_is_free_by_then_is_not_waited_for(self) -> None:
        found, held_ns = self.run_scene("free")
        waited_ns = sum(row["wait_ns"] for row in self.of_mutex(found, "wakes"))
        self.assertLessEqual(waited_ns, held_ns + NEAR_NS)

    def test_threads_of_a_broadcast_wait_for_each_other_s_mutex(self) -> None:
        found, _ = self.run_scene("in_turn")
        before = SHARING * (SHARING - 1) // 2  # threads that are before another one, in all
        expected = before * ROUNDS * HOLD_NS
        waited_ns = sum(row["wait_ns"] for row in self.of_mutex(found, "wakes"))
        self.assertAlmostEqual(waited_ns, expected, delta=expected / 5)
        self.assertLess(self.lat_ns(found), expected / 2)
        holders = {row["holder_label"] for row in self.of_mutex(found, "sides")}
        self.assertIn(WAITER, holders)


if __name__ == "__main__":
    unittest.main(verbosity=2)
