#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Locks that nobody releases (kept_locks.c): the program prints the threads that have them."""

from __future__ import annotations

import json
import re
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source

KEPT = Source("kept_locks")
ACQUIRED = KEPT.label("/* kept */")
HAS_AND_WANTS = r"thread (\d+) has (\S+), acquired at (.+?), and waits for (\S+) at"
LONG_S, SHORT_S = "1.5", "0.3"


class Deadlocks(unittest.TestCase):
    def findings(self, case: str, seconds: str = LONG_S) -> tuple[list[dict[str, Any]], list[str]]:
        """Returns the findings and the thread IDs that the program printed."""
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "report.json"
            words = ("run", "--json", "-o", str(file), "--", str(KEPT.program), case, seconds)
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text(encoding="utf-8"))
        return report["verdict"]["findings"], done.stdout.split()

    def test_each_thread_of_a_ring_is_named_with_what_it_has_and_waits_for(self) -> None:
        (found,), ids = self.findings("ring")
        self.assertEqual(
            (found["kind"], found["gain"], found["gain_most"]), ("deadlock", None, None)
        )
        self.assertEqual(found["waiter"], KEPT.label("/* in a ring */"))
        said = re.findall(HAS_AND_WANTS, found["text"])
        self.assertEqual([acquired for _, _, acquired, _ in said], [ACQUIRED] * 3)
        has = {thread: lock for thread, lock, _, _ in said}
        wants = {thread: lock for thread, _, _, lock in said}
        self.assertEqual(len(set(has.values())), 3)
        for thread, after in zip(ids, [*ids[1:], ids[0]], strict=True):
            self.assertEqual(wants[thread], has[after])
        self.assertIn("in the same order everywhere", found["text"])

    def test_thread_that_waits_for_its_own_lock_is_named(self) -> None:
        (found,), (thread,) = self.findings("own")
        self.assertEqual(found["kind"], "deadlock")
        words = f"thread {thread} has locks, acquired at {ACQUIRED}, and waits for it at"
        self.assertIn(f"{words} {KEPT.label('/* its own */')}", found["text"])

    def test_lock_of_a_thread_that_has_ended_is_never_released(self) -> None:
        (found,), (thread,) = self.findings("ended")
        self.assertEqual(found["kind"], "never-released")
        self.assertEqual(found["waiter"], KEPT.label("/* kept by another */"))
        self.assertIn(f"locks, acquired at {ACQUIRED}, was not released", found["text"])
        self.assertIn(f"thread {thread} has it, which is no thread of the process", found["text"])

    def test_place_where_the_thread_with_the_lock_waits_is_named(self) -> None:
        (found,), (thread,) = self.findings("busy")
        self.assertEqual(found["kind"], "never-released")
        place = KEPT.label("/* with the lock */")
        self.assertIn(
            f"thread {thread} has it, and waits to read or write at {place}", found["text"]
        )

    def test_short_wait_under_way_is_no_deadlock(self) -> None:
        for case in ("ring", "ended"):
            found, _ = self.findings(case, SHORT_S)
            kinds = {finding["kind"] for finding in found}
            self.assertFalse(kinds & {"deadlock", "never-released"}, case)


if __name__ == "__main__":
    unittest.main()
