#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""shared_writes: basic operations write no global cache line, and the page has these counts."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "debug"))
PROGRAM = BUILD / "bench" / "rouse-bench"
sys.path.insert(0, str(SOURCE / "bench"))
from tables import writes  # noqa: E402

NO_OBJECT = {"yield", "create", "join"}


def refused() -> str:
    """The error message of a build that cannot count."""
    done = subprocess.run(
        [str(PROGRAM), "shared_writes", "--workers", "1", "-n", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr.strip() if done.returncode else ""


class Counts(unittest.TestCase):
    found: dict[str, dict[str, Any]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.found = writes.measure(BUILD)

    def test_the_page_has_these_counts(self) -> None:
        page = (SOURCE / "docs" / "shared-writes.md").read_text(encoding="utf-8")
        shown = {}
        for line in page.splitlines():
            if line.startswith("| "):
                title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
                # In a build with a sanitizer, the last column may differ.
                shown[title] = cells[:-1]
        for title, *cells in writes.table_of(self.found).rows:
            self.assertEqual(shown.get(title), cells[:-1], f"{title}: bench/writes.py --write")

    def test_only_waking_a_worker_writes_global_lines(self) -> None:
        for op, report in self.found.items():
            with self.subTest(op=op):
                writes_some = (report["other_locked"], report["other_stores"]) != (0, 0)
                self.assertEqual(writes_some, op == "wake_idle")

    def test_the_count_is_that_of_nearly_every_operation(self) -> None:
        for op, report in self.found.items():
            with self.subTest(op=op):
                self.assertGreater(report["share"], 0.5)

    def test_an_object_is_locked_at_most_once(self) -> None:
        for op, report in self.found.items():
            with self.subTest(op=op):
                self.assertLessEqual(report["object_locked"], 0 if op in NO_OBJECT else 1)

    def test_a_post_that_wakes_claims_once(self) -> None:
        for op in ("unpark", "wake_across", "wake_idle"):
            self.assertEqual(self.found[op]["block_locked"], 1)


class Mistakes(unittest.TestCase):
    def test_other_settings_are_refused(self) -> None:
        for options in (["--workers", "2"], ["--threads", "kernel", "--workers", "1"]):
            done = subprocess.run(
                [str(PROGRAM), "shared_writes", *options],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            self.assertEqual(done.returncode, 1)
            self.assertIn("--workers 1", done.stderr)


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"not run: no {PROGRAM}")
        sys.exit(77)
    if "ROUSE_TEST" in (reason := refused()):
        print(f"not run: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
