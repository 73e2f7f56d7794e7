#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known waits of a program that makes its own futex system calls (raw_futex.c)."""

from __future__ import annotations

import subprocess
import unittest
from collections import Counter
from collections.abc import Mapping
from typing import Any

from interposed import Source, played

FUTEX = Source("raw_futex")
KNOWN, label = FUTEX.known, FUTEX.label
SCENES = ("wake", "herd", "end", "requeue", "pi", "others")
VERDICTS = ("useful", "lost_race", "false_", "timeout", "cancelled")


class Futexes(unittest.TestCase):
    scenes: Mapping[str, Mapping[str, list[dict[str, Any]]]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.scenes = played(FUTEX, *SCENES)

    def check_scene(self, scene: str, wakers: dict[str, int], **expected: int) -> None:
        """Check all verdicts, and the number of useful wake-ups by wake site."""
        found = self.scenes[scene]
        self.assertEqual({row["kind"] for row in found["wakes"]} - {"futex"}, set())
        got = {name: sum(row[name] for row in found["wakes"]) for name in VERDICTS}
        self.assertEqual({name: count for name, count in got.items() if count}, expected)
        counts: Counter[str] = Counter()
        for row in found["wakes"]:
            counts[row["wake_label"]] += row["useful"]
        self.assertEqual(+counts, wakers)

    def unheard(self, scene: str) -> tuple[int, int]:
        row = self.scenes[scene]["totals"][0]
        return row["signals_unheard"], row["broadcasts_unheard"]

    def test_each_wait_has_its_waker_and_its_word(self) -> None:
        self.check_scene("wake", {label("/* to one */"): KNOWN["WAKES"]}, useful=KNOWN["WAKES"])
        (row,) = self.scenes["wake"]["wakes"]
        self.assertEqual((row["wait_label"], row["object_name"]), (label("/* by one */"), "word"))
        self.assertEqual(self.unheard("wake"), (KNOWN["UNHEARD"], KNOWN["UNHEARD"]))

    def test_a_herd_is_as_large_as_the_kernel_says(self) -> None:
        self.check_scene("herd", {label("/* to a herd */"): KNOWN["HERD"]}, useful=KNOWN["HERD"])
        herds = self.scenes["herd"]["herds"]
        self.assertEqual([(row["size_from"], row["count"]) for row in herds], [(4, 1)])

    def test_each_end_has_its_verdict_and_errors_are_no_waits(self) -> None:
        known = {"lost_race": KNOWN["CHANGED"], "timeout": KNOWN["LATE"], "cancelled": 1}
        self.check_scene("end", {}, **known)

    def test_a_requeued_thread_is_woken_at_its_new_word(self) -> None:
        moved = KNOWN["MOVED"]
        wakers = {label("/* wakes one */"): 1, label("/* wakes the moved */"): moved}
        self.check_scene("requeue", wakers, useful=moved + 1)
        self.assertEqual(self.unheard("requeue"), (0, 1))

    def test_a_lock_that_inherits_priority_is_handed_on(self) -> None:
        holder, waiter = label("/* of PI */", 1), label("/* of PI */")
        self.check_scene("pi", {holder: 1, waiter: KNOWN["PI"] - 1}, useful=KNOWN["PI"])

    def test_other_calls_are_no_waits(self) -> None:
        self.check_scene("others", {})

    def test_without_the_library_all_calls_return_the_same(self) -> None:
        for scene in SCENES:
            done = subprocess.run([FUTEX.program, scene], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), scene)


if __name__ == "__main__":
    unittest.main(verbosity=2)
