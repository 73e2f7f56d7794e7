#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""errno belongs to a user thread, however its program was built (errno.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
PROGRAM = SOURCE / "tests" / "e2e" / "errno.c"
COMPILERS = tuple(filter(shutil.which, ("gcc", "clang")))
WAYS = (
    ("-O0",),
    ("-O1",),
    ("-O2",),
    ("-O3",),
    ("-O2", "-flto"),
    ("-O2", "-fPIC"),
    ("-O0", "-fPIC"),
    ("-O2", "-include", "errno.h"),
    ("-O2", "-x", "c++", "-std=c++17"),
)


class Errno(unittest.TestCase):
    def run_built(self, compiler: str, flags: tuple[str, ...]) -> list[int]:
        with tempfile.TemporaryDirectory() as place:
            program = Path(place) / "errno"
            warnings = ("-Wall", "-Wextra", "-Werror")
            link = ("-x", "none", BUILD / "librouse.a", "-pthread", "-ldl")
            include = f"-I{SOURCE / 'include'}"
            subprocess.run(
                [compiler, *warnings, *flags, include, PROGRAM, "-o", program, *link], check=True
            )
            done = subprocess.run(
                [program], check=True, capture_output=True, text=True, timeout=100
            )
        return [int(word) for word in done.stdout.split()]

    def test_a_thread_reads_its_own_errno_after_it_has_moved(self) -> None:
        for compiler in COMPILERS:
            for flags in WAYS:
                with self.subTest(compiler=compiler, flags=flags):
                    moves, other, lost = self.run_built(compiler, flags)
                    self.assertGreater(moves, 1000)
                    self.assertEqual(other, 0, "errno was that of another thread")
                    self.assertEqual(lost, 0, "a value did not survive a call that waits")


if __name__ == "__main__":
    unittest.main(verbosity=2)
