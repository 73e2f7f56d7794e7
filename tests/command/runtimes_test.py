#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runtimes are known by a program's file and by its files of code."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from rouse.symbols import runtimes


class Runtimes(unittest.TestCase):
    def test_libgomp_is_known_by_the_files_of_code(self) -> None:
        found = runtimes.names_of(
            "/none", [("/usr/lib/libgomp.so.1", ""), ("/usr/lib/libm.so", "")]
        )
        self.assertEqual(found, ["libgomp"])

    def test_a_file_that_is_damaged_or_gone_has_none(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            broken = Path(place) / "broken"
            broken.write_bytes(b"\x7fELF" + bytes(60))
            for path in (str(broken), place, "/none", ""):
                self.assertEqual(runtimes.names_of(path, []), [])

    def test_variables_of_openmp_have_its_names(self) -> None:
        names = {
            ".gomp_critical_user_hot": "omp critical hot",
            "rouse_preload_omp_critical": "omp critical",
        }
        for variable, name in names.items():
            self.assertEqual(runtimes.known_name(variable), name)
        self.assertIsNone(runtimes.known_name("table"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
