#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the record of a process may take at most is what it takes."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

from common import rouse

from plain import LIBRARY


class Memory(unittest.TestCase):
    def test_a_record_takes_no_more_than_it_may(self) -> None:
        """200 threads that wait at once, of which 20 KiB each have no room in 1 MiB."""
        script = (
            "import threading\n"
            "n, met, bell = 200, threading.Barrier(201), threading.Event()\n"
            "def wait(): met.wait(); bell.wait()\n"
            "threads = [threading.Thread(target=wait) for _ in range(n)]\n"
            "for t in threads: t.start()\n"
            "met.wait(); bell.set()\n"
            "for t in threads: t.join()\n"
        )
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        kept = Path(place.name) / "kept"
        words = ("--memory", "1", "--keep", kept, "--", sys.executable, "-c", script)
        done = rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY), timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"\d wake-ups did not fit into the recording")
        (file,) = kept.glob("*.rouse")
        self.assertLessEqual(file.stat().st_blocks * 512, 1 << 20)


if __name__ == "__main__":
    unittest.main()
