# SPDX-License-Identifier: MIT
"""Shared by the tests that run mutex_cond.c under `rouse run`: its runs and their reports."""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source

MUTEXES = Source("mutex_cond")
PROGRAM, KNOWN, label = MUTEXES.program, MUTEXES.known, MUTEXES.label
MS = 1_000_000
Row = dict[str, Any]
Report = Mapping[str, Any]


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def run_it(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY), timeout=120, **environment)

    def report(self, *words: str | Path, status: int = 0) -> Report:
        """Run the program, which must end with this status. Returns the report."""
        file = self.folder / "report.json"
        done = self.run_it("--json", "-o", file, "--", *words)
        self.assertEqual((done.returncode, done.stderr), (status, ""))
        found: Report = json.loads(file.read_text(encoding="utf-8"))
        return found

    def sections(self, *words: str | Path, status: int = 0) -> Mapping[str, list[Row]]:
        found: Mapping[str, list[Row]] = self.report(*words, status=status)["sections"]
        return found

    def total(self, found: Mapping[str, list[Row]], **expected: int) -> None:
        row = found["totals"][0]
        self.assertEqual({name: row[name] for name in expected}, expected)
