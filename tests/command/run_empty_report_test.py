#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""When `rouse run` has nothing to report, its message names the cause and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import SOURCE, here, rouse

from interposed import LIBRARY, Source

from rouse.run import remains

PLAIN = Source("mutex_cond").program
LOADED = str(LIBRARY)


class EmptyReport(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def test_a_file_size_limit_is_named(self) -> None:
        line = f"ulimit -f 100; exec {sys.executable} -m rouse run --memory 1 -- {PLAIN} _exit"
        done = subprocess.run(
            ["bash", "-c", line],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": LOADED},
        )
        self.assertEqual(done.returncode, 9)
        self.assertIn("needs 1 MiB, and files may have 100 KiB here: raise ulimit", done.stderr)

    def test_the_number_of_killed_processes_is_named(self) -> None:
        def said(cuts: int, count: int) -> str:
            every = [
                remains.Left(True, False, at < cuts, False, False, None, 0) for at in range(count)
            ]
            return remains.silence("it", every, self.folder).rpartition("; ")[2]

        self.assertTrue(said(1, 1).startswith("it was killed,"))
        self.assertTrue(said(1, 2).startswith("1 of them was killed,"))
        self.assertTrue(said(2, 3).startswith("2 of them were killed,"))

    def test_an_empty_program_name_is_refused(self) -> None:
        done = rouse("run", "--", "", ROUSE_PRELOAD=LOADED)
        output = "rouse: the name of the program is empty\n"
        self.assertEqual((done.returncode, done.stderr), (127, output))

    def test_an_empty_file_name_is_refused(self) -> None:
        for words in (
            *(("run", option, "", "true") for option in ("-o", "--keep")),
            ("report", ""),
            ("report", "-o", ""),
            ("compare", "", ""),
            ("record", "-o", ""),
        ):
            done = here(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertRegex(done.stderr, rf"^rouse: .*is empty; see rouse {words[0]} --help\n$")

    def test_an_invalid_time_is_refused(self) -> None:
        for words in (
            ("watch", str(os.getpid()), "--seconds"),
            ("record", "-o", str(self.folder / "file"), "--interval"),
            ("record", "-o", str(self.folder / "file"), "--seconds"),
        ):
            for seconds in ("nan", "-nan", "-inf", "-1"):
                done = here(*words, seconds)
                self.assertEqual((done.returncode, done.stdout), (2, ""), words)
                self.assertEqual(done.stderr.count("\n"), 1)

    def test_wrong_arguments_lead_to_the_help_of_the_subcommand(self) -> None:
        for words in (("--memory", "0", "true"), ("--no-such",), ()):
            done = rouse("run", *words)
            self.assertEqual(done.returncode, 2)
            self.assertIn("; see rouse run --help\n", done.stderr)

    def test_a_missing_value_leads_to_the_help_of_the_subcommand(self) -> None:
        done = here("report", "-f")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^rouse: Option '-f' .*; see rouse report --help\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
