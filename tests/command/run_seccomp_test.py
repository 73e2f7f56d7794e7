#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs that restrict their system calls, with and without the interposer (seccomp_filter.c)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import here, rouse

from interposed import LIBRARY, Recorded, Source, play

CONFINED = Source("seccomp_filter")
SCENES = ("strict", "filter", "call", "call prctl", "forks", "others")
NO_SECCOMP = CONFINED.known["NO_SECCOMP"]

if subprocess.run([CONFINED.program, "strict"], check=False).returncode == NO_SECCOMP:
    print("not run: this kernel has no seccomp")
    sys.exit(77)


class Confined(unittest.TestCase):
    def test_waits_before_the_filter_are_recorded_and_no_other_call_is_made(self) -> None:
        for scene in SCENES:
            with self.subTest(scene):
                recorded = Recorded(CONFINED, scene)
                found = [
                    row["timeout"]
                    for row, stacks in recorded.rows("wakes")
                    if CONFINED.label("/* recorded */") in stacks.get(row["wait_site"], ())
                ]
                self.assertEqual(found, [CONFINED.known["NAPS"]])
                self.assertEqual(
                    [row["end"] for row, _ in recorded.rows("processes")], ["confined"]
                )
                self.assertEqual({row["kind"] for row, _ in recorded.rows("wakes")}, {"sleep"})

    def test_a_program_that_only_queries_seccomp_is_recorded_to_its_end(self) -> None:
        recorded = Recorded(CONFINED, "asks")
        self.assertEqual([row["end"] for row, _ in recorded.rows("processes")], ["farewell"])
        (row,) = (row for row, _ in recorded.rows("wakes"))
        self.assertEqual(row["timeout"], CONFINED.known["NAPS"])

    def test_the_report_names_the_seccomp_call(self) -> None:
        words = ("run", "--", CONFINED.program, "filter")
        done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY), timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"it asked for seccomp at [-\d]+ [:\d]+ UTC: what came after")
        with tempfile.TemporaryDirectory() as place:
            play(Path(place), CONFINED, "filter")
            play(Path(place), CONFINED, "asks")
            said = here("report", "--sum", place)
        self.assertIn("it asked for seccomp at", said.stdout)

    def test_a_program_that_did_not_wait_before_is_reported_too(self) -> None:
        words = ("run", "--", CONFINED.program, "at once")
        done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY), timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("it asked for seccomp, and what came after is not recorded", done.stderr)

    def test_without_the_library_all_of_them_end_the_same(self) -> None:
        for scene in (*SCENES, "asks", "at once"):
            done = subprocess.run([CONFINED.program, scene], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), scene)


if __name__ == "__main__":
    unittest.main(verbosity=2)
