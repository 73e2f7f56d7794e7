#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Commands whose Python packages are not there."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from common import SOURCE, rouse

# Python runs this before the command. From then on, the package cannot be imported.
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name=name)

sys.meta_path.insert(0, Hidden())
"""


class MissingPackage(unittest.TestCase):
    def test_a_missing_package_is_one_line_and_no_traceback(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
            for words in (
                ("report", "none"),
                ("run", "--", "echo", "it ran"),
                ("compare", "a", "b"),
            ):
                done = rouse(*words, PYTHONPATH=f"{folder}:{SOURCE}")
                self.assertEqual(
                    done.stderr,
                    "rouse: needs the Python package numpy; install it with pip\n",
                    words,
                )
                self.assertEqual(done.returncode, 3, words)
                self.assertEqual(done.stdout, "", "the program was started")


if __name__ == "__main__":
    unittest.main(verbosity=2)
