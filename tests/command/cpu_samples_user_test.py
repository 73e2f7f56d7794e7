#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` samples where threads run, for a user who may not observe all processors.

Nothing here needs root. If root starts the test, it continues as the user nobody.
"""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path

from common import main_unless, rouse

from interposed import LIBRARY, Source
from nobody import become_nobody

PARTS = Source("running_parts")


class OfUser(unittest.TestCase):
    def test_threads_are_sampled_one_by_one(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "report"
            words = ("run", "--json", "-o", file, "--", PARTS.program)
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text(encoding="ascii"))
        rows = report["sections"]["run_sites"]
        why = [note for note in report["notes"] if note.startswith("some threads were not sampled")]
        if why:
            self.assertIn("rouse doctor", why[0])
            self.skipTest(f"not run: {why[0]}")
        self.assertEqual(rows[0]["label"], "compute running_parts.c")
        self.assertGreater(rows[0]["share"], 0.5)


if __name__ == "__main__":
    reason = "" if PARTS.program.exists() else "its program was not built"
    if not reason and os.getuid() == 0:
        reason = become_nobody(LIBRARY, PARTS.program)
    main_unless(reason)
