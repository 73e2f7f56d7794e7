#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known waits of calls that receive or send several messages (msg_batches.c)."""

from __future__ import annotations

import os
import subprocess
import unittest
from collections import Counter
from typing import Any

from interposed import LIMIT, Source, recorded, unless_emulated

BATCH = Source("msg_batches")
KNOWN = BATCH.known
SCENES = ("take", "give", "time", "try", "cancel")
VERDICTS = ("useful", "lost_race", "false_", "timeout", "cancelled")


class Batches(unittest.TestCase):
    def waits(self, scene: str) -> dict[str, dict[str, int]]:
        """The number of waits by kind of call and verdict."""
        found: dict[str, Counter[str]] = {}
        for row in recorded(self, BATCH, scene)["wakes"]:
            found.setdefault(row["kind"], Counter()).update({v: row[v] for v in VERDICTS})
        return {kind: dict(+counts) for kind, counts in found.items()}

    @unless_emulated("the emulator's recvmmsg waits for all messages")
    def test_a_call_that_receives_one_or_all_messages_is_one_wait(self) -> None:
        taken = KNOWN["SORTS"] * KNOWN["TAKEN"]
        self.assertEqual(self.waits("take"), {"read": {"useful": taken}})

    def test_a_call_that_sends_more_than_fits_is_one_wait(self) -> None:
        self.assertEqual(self.waits("give"), {"write": {"useful": KNOWN["GIVEN"]}})

    def test_a_socket_s_time_ends_it(self) -> None:
        taken = {"useful": KNOWN["IN_PART"], "timeout": KNOWN["IN_TIME"]}
        self.assertEqual(self.waits("time"), {"read": taken, "write": {"timeout": 1}})

    def test_a_call_that_need_not_wait_is_no_wait(self) -> None:
        found: dict[str, Any] = dict(recorded(self, BATCH, "try"))
        self.assertEqual(found["wakes"], [])
        calls = {row["kind"]: row["completed"] for row in found["calls"]}
        self.assertEqual(calls["read"], KNOWN["AT_ONCE"])

    def test_a_thread_that_is_cancelled_waited_until_then(self) -> None:
        once = {"cancelled": 1}
        self.assertEqual(self.waits("cancel"), {"read": once, "write": once})

    @unless_emulated("the emulator's recvmmsg waits for all messages")
    def test_without_the_library_all_of_them_end_the_same(self) -> None:
        for scene in SCENES:
            done = subprocess.run(
                [BATCH.program, scene], env=os.environ, capture_output=True, timeout=LIMIT
            )
            self.assertEqual((done.returncode, done.stderr), (0, b""), scene)


if __name__ == "__main__":
    unittest.main(verbosity=2)
