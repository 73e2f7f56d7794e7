#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program with more rights than its caller does not follow the caller's environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import FIXTURES, SOURCE

OTHER = 54321  # a user without a name
OWN = Path(f"/dev/shm/rouse-{OTHER}")
READERS = ("src", "preload")  # the library and the interposer


class Environment(unittest.TestCase):
    def test_no_source_reads_a_variable_without_secure_getenv(self) -> None:
        files = [path for folder in READERS for path in (SOURCE / folder).rglob("*.[ch]")]
        self.assertTrue(files)
        call = re.compile(r"(?<!secure_)\bgetenv\s*\(|\benviron\s*\[")
        found = [str(path) for path in files if call.search(path.read_text(encoding="utf-8"))]
        self.assertEqual(found, [])

    @unittest.skipIf(os.geteuid(), "not run: only root can make a program that is another user's")
    def test_a_variable_of_the_caller_stops_a_set_user_id_program(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        if os.statvfs(place.name).f_flag & os.ST_NOSUID:
            self.skipTest(f"not run: {place.name} has no set-user-ID programs (nosuid)")
        Path(place.name).chmod(0o755)
        program = Path(place.name) / "program"
        shutil.copy(FIXTURES / "known_states", program)
        os.chown(program, OTHER, OTHER)
        if not OWN.exists():
            self.addCleanup(shutil.rmtree, OWN, ignore_errors=True)
        for mode, status, says in ((0o755, -6, ""), (0o4755, 0, "ready\n")):
            program.chmod(mode)
            done = subprocess.run(
                [program],
                env={**os.environ, "ROUSE_WORKERS": "no number", "ASAN_OPTIONS": "detect_leaks=0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            with self.subTest(mode=oct(mode)):
                self.assertEqual((done.returncode, done.stdout), (status, says), done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
