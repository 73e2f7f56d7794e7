#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""rouse/rouse.hpp on libc++, with libc++'s own threads as the oracle of the same source."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from installed import BUILD, SOURCE, run, skip_without

CLANG = ("clang++", "-stdlib=libc++")
FLAGS = ("-O2", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-pthread")
UNIT = SOURCE / "tests/unit/cxx"
LIMIT_S = 120

folder: Path


def setUpModule() -> None:
    global folder
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)


def is_installed() -> bool:
    words = [*CLANG, "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(words, input=b"#include <thread>\n", capture_output=True).returncode == 0


def cases(source: str, standard: int, *flags: str) -> list[str]:
    """Build and run a test. Returns the names of its cases, which have all passed."""
    program = folder / "program"
    words = (*CLANG, *FLAGS, f"-std=c++{standard}", *flags, f"-I{SOURCE / 'include'}")
    run(*words, "-o", program, UNIT / source, BUILD / "librouse.a")
    return run(program, timeout=LIMIT_S).split()


class Libcxx(unittest.TestCase):
    def test_rouse_does_what_libcxx_itself_does(self) -> None:
        of_std = cases("same_as_std_test.cpp", 20, "-DOF_STD")
        self.assertIn("futures_carry_values_and_errors", of_std)
        for standard in (17, 20):
            with self.subTest(standard=standard):
                of_rouse = cases("same_as_std_test.cpp", standard)
                self.assertLessEqual(set(of_std), set(of_rouse))
                # An older libc++ has no std::jthread.
                self.assertIn("jthreads_stop_and_join", of_rouse)

    def test_the_calls_that_std_lacks_work_on_libcxx(self) -> None:
        self.assertTrue(cases("rouse_hpp_test.cpp", 17))


if __name__ == "__main__":
    skip_without("clang++")
    if not is_installed():
        print("not run: libc++ is not installed (Debian: libc++-14-dev libc++abi-14-dev)")
        sys.exit(77)
    unittest.main(verbosity=2)
