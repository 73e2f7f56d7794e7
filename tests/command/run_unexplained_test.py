#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time that no recorded wait explains: the verdict has it, why, and what shows more.

The program measures by its own clock for how long it sleeps in system calls that are not recorded.
"""

from __future__ import annotations

import json
import re
import sys
import unittest

from common import rouse

from interposed import LIBRARY

PROGRAM = """
import ctypes, platform, sys, threading, time
number = {"x86_64": 230, "aarch64": 115}[platform.machine()]  # clock_nanosleep
span = (ctypes.c_long * 2)(0, int(float(sys.argv[1]) * 1e9))
slept = []

def sleep():
    start = time.monotonic()
    if sys.argv[2] == "unseen":
        ctypes.CDLL(None).syscall(number, 1, 0, ctypes.byref(span), None)
    else:
        time.sleep(float(sys.argv[1]))
    slept.append(time.monotonic() - start)

threads = [threading.Thread(target=sleep) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sum(slept))
"""
SECONDS = 0.4
START_S = 0.05  # of a thread, before and after its sleep


class Unexplained(unittest.TestCase):
    def run_it(self, how: str, *words: str) -> tuple[str, float]:
        """The report, and the time that the program's threads slept."""
        program = (sys.executable, "-c", PROGRAM, str(SECONDS), how)
        done = rouse(*words, "--", *program, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr, float(done.stdout)

    def test_its_time_is_that_of_the_programs_clock(self) -> None:
        text, slept = self.run_it("unseen", "run", "--json")
        found = json.loads(text)["verdict"]
        unexplained = found["time"]["unexplained"] * found["thread_ns"] / 1e9
        self.assertGreater(unexplained, 0.95 * slept)
        self.assertLess(unexplained, slept + 3 * START_S)
        self.assertEqual(
            found["summary"],
            "Nothing that was recorded is contended, but most of the time is unexplained",
        )

    def test_the_first_screen_says_why_and_what_shows_more(self) -> None:
        text, _ = self.run_it("unseen", "run")
        self.assertRegex(text, r"\b\d\d % unexplained\n")
        said = " ".join(text.split())
        self.assertRegex(
            said, r"1\.\d\d s of \d\.\d+ s of threads' time are unexplained: threads slept"
        )
        self.assertIn("rouse run --kernel and sudo rouse watch PID show in which", said)

    def test_seen_sleeps_leave_nothing_unexplained(self) -> None:
        text, _ = self.run_it("seen", "run")
        share = re.search(r"([\d.]+) % unexplained\n", text)
        assert share, text
        self.assertLess(float(share[1]), 5)
        self.assertNotIn("are unexplained", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
