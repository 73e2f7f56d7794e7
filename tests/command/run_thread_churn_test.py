#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Threads start, end and wait in every way. None hangs, and each acquisition is counted."""

from __future__ import annotations

import os
import random
import subprocess
import unittest

from interposed import Recorded, Source

CHURN = Source("thread_churn")
KNOWN, label = CHURN.known, CHURN.label
SEED = int(os.environ.get("ROUSE_SEED", random.randrange(1 << 30)))
WAYS = {
    "waits": {},
    "stacks": {"ROUSE_OBS_DEPTH": "4"},
    "holds": {"ROUSE_OBS": "locks"},
    "holds with stacks": {"ROUSE_OBS": "locks", "ROUSE_OBS_DEPTH": "4"},
    "adaptive": {"ROUSE_RUN_SPIN_NS": "5000"},
}


class Churn(unittest.TestCase):
    def test_it_ends_as_it_does_unrecorded(self) -> None:
        print(f"seed {SEED}", flush=True)
        done = subprocess.run([CHURN.program, str(SEED)], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))
        every = KNOWN["GANGS"] * KNOWN["MEMBERS"] * KNOWN["STEPS"]
        place = label("/* counted */")
        for number, (name, variables) in enumerate(WAYS.items()):
            with self.subTest(name, seed=SEED + number):
                found = Recorded(CHURN, str(SEED + number), **variables)
                rows = [
                    row
                    for row, stacks in found.rows("locks")
                    if place in stacks.get(row["site"], ())[:1]
                ]
                if "ROUSE_OBS" in variables:  # otherwise only contended locks have rows
                    self.assertEqual(sum(row["acquired"] for row in rows), every)
                    self.assertEqual(sum(row["holds"] for row in rows), every)
                lost = [row for row, _ in found.rows("processes") if row["lost_locks"]]
                self.assertEqual(lost, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
