#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The record of a process stays within its memory limit."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

from common import rouse

from interposed import LIBRARY, Source

from rouse.run import remains


class Memory(unittest.TestCase):
    def run_in_one_mib(self, *program: str | Path) -> tuple[Path, str]:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        kept = Path(place.name) / "kept"
        words = ("--memory", "1", "--keep", kept, "--", *program)
        done = rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY), timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return kept, done.stderr

    def test_a_record_stays_within_its_limit(self) -> None:
        """200 threads wait at once. At 20 KiB each they do not fit into 1 MiB."""
        script = (
            "import threading\n"
            "n, met, bell = 200, threading.Barrier(201), threading.Event()\n"
            "def wait(): met.wait(); bell.wait()\n"
            "threads = [threading.Thread(target=wait) for _ in range(n)]\n"
            "for t in threads: t.start()\n"
            "met.wait(); bell.set()\n"
            "for t in threads: t.join()\n"
        )
        kept, said = self.run_in_one_mib(sys.executable, "-c", script)
        self.assertRegex(said, r"\d wake-ups did not fit into the recording")
        (file,) = kept.glob("*.rouse")
        self.assertLessEqual(file.stat().st_blocks * 512, 1 << 20)
        left = remains.look(file)
        output = remains.silence("it", [left], kept)  # the message if no wait had fitted
        self.assertIn("in the 1 MiB that a record may take; give it more with --memory", output)

    def test_a_smaller_limit_takes_less_address_space(self) -> None:
        script = (
            "import re, resource, threading\n"
            "status = open('/proc/self/status').read()\n"
            "print(re.search('VmSize:.* (.*) kB', status)[1])\n"
            "taken = threading.Lock()\n"
            "taken.acquire(); taken.acquire(timeout=0.001)\n"
        )

        def taken_kb(mib: int) -> int:
            words = ("run", "--memory", str(mib), "--", sys.executable, "-c", script)
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY), timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("of threads' time", done.stderr)
            return int(done.stdout)

        self.assertGreater(taken_kb(200) - taken_kb(1), 150 << 10)

    def test_a_thread_without_room_in_the_record_accepts(self) -> None:
        """The threads start one by one, so the last ones have a ledger but no slot."""
        _, said = self.run_in_one_mib(Source("abnormal_waits").program, "fills")
        self.assertRegex(said, r"did not fit into the recording")


if __name__ == "__main__":
    unittest.main(verbosity=2)
