#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program under `rouse run` while it runs: it is found by its process number."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import COMMAND, next_line, rouse, start

from interposed import LIBRARY, Source

PROGRAM = Source("renamed_child").program
NEW, OLD = "worker 7", "worker-as-it-was-started"


def commands(report: dict[str, Any]) -> dict[int, str]:
    return {process["pid"]: process["command"] for process in report["processes"]}


class Live(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def check(self, *options: str) -> None:
        """Start the program, find its worker by number, and let both end."""
        final = self.folder / "final.json"
        words = ("run", "--json", "-o", str(final), *options, "--", str(PROGRAM), OLD)
        run = start(self, *COMMAND, *words, ROUSE_PRELOAD=str(LIBRARY), ROUSE_OBS_DIR="")
        worker = int(next_line(run))
        report = rouse("report", "--json", str(worker), ROUSE_OBS_DIR="")
        self.assertEqual((report.returncode, report.stderr), (0, ""))
        (command,) = commands(json.loads(report.stdout)).values()
        self.assertIn(NEW, command)
        top = rouse("top", "--batch", "0.1", "1", "--all", str(worker), ROUSE_OBS_DIR="")
        self.assertEqual((top.returncode, top.stderr), (0, ""))
        self.assertIn("renamed_child", top.stdout)
        run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0)
        ended = commands(json.loads(final.read_text(encoding="utf-8")))
        self.assertIn(NEW, ended.pop(worker))
        (parent,) = ended.values()
        self.assertIn(OLD, parent)

    def test_report_and_top_find_it_and_the_command_that_it_has_now(self) -> None:
        self.check()

    def test_also_where_its_recordings_are_kept(self) -> None:
        self.check("--keep", str(self.folder / "kept"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
