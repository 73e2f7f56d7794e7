#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs with many short processes: each wait is counted, and each file of code is read once."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import unittest
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest import mock

from common import here, rouse

from interposed import LIBRARY, Source, record

from rouse.query import measures
from rouse.symbols import elf, lines
from rouse.tables import inputs, parquet

MANY = Source("many_processes")
KINDS = 4  # the nth child waits n % KINDS times
LABEL = MANY.label("/* waits */")


def waits(count: int) -> int:
    """The number of waits of all children together."""
    return sum(nth % KINDS for nth in range(count))


class Work:
    """How often a report on a folder takes each expensive step."""

    def __init__(self, folder: Path) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(elf, "_open", OrderedDict()))
            opened = stack.enter_context(mock.patch.object(elf, "Elf", wraps=elf.Elf))
            run = stack.enter_context(mock.patch.object(lines, "Rows", wraps=lines.Rows))
            found = stack.enter_context(inputs.open_input(str(folder)))
            self.processes = len(found.database.rows(measures.processes()))
            self.done = (opened.call_count, run.call_count)


class Many(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def recorded(self, count: int) -> Path:
        folder = self.place / str(count)
        record(folder, MANY, str(count))
        return folder

    def reported(self, *words: str) -> dict[str, list[dict[str, Any]]]:
        """The rows of each section. The order of equal rows is undefined."""
        done = here("report", "--all", "--json", *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        sections = json.loads(done.stdout)["sections"]
        return {key: sorted(rows, key=json.dumps) for key, rows in sections.items()}

    def test_each_wait_of_each_child_is_counted(self) -> None:
        count, out = 100, self.place / "out"
        options = ("--json", "-o", str(out))
        done = rouse(
            "run", *options, "--", str(MANY.program), str(count), ROUSE_PRELOAD=str(LIBRARY)
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        whole = json.loads(out.read_text())
        # A child that does not wait makes no file, so only the parent's file has no waits.
        self.assertEqual(len(whole["processes"]), count - count // KINDS)
        self.assertIn("1 other process recorded no wait", whole["notes"])
        rows = whole["sections"]["waits"]
        self.assertEqual(sum(row["count"] for row in rows), waits(count))
        self.assertEqual({row["wait_label"] for row in rows}, {LABEL})

    def test_a_file_of_code_is_read_once_however_many_processes_ran_it(self) -> None:
        few, more = Work(self.recorded(4)), Work(self.recorded(40))
        self.assertEqual((few.processes, more.processes), (1 + 3, 1 + 30))
        self.assertGreater(few.done[0], 0)
        self.assertEqual(few.done, more.done)

    def test_tables_in_several_files_are_complete(self) -> None:
        folder = self.recorded(12)
        whole = self.reported(str(folder))
        with mock.patch.object(parquet, "PART_ROWS", 1):
            self.assertEqual(self.reported("--engine", "duckdb", str(folder)), whole)
            rows = self.reported("--engine", "duckdb", "--sum", str(folder))["waits"]
        self.assertEqual(sum(row["count"] for row in rows), waits(12))

    def test_the_last_of_two_files_of_one_process_is_reported(self) -> None:
        folder = self.recorded(4)
        whole = self.reported(str(folder))
        for file in list(folder.glob("*.rouse")):
            shutil.copyfile(file, folder / f"z{file.name}")
        self.assertEqual(self.reported(str(folder)), whole)


if __name__ == "__main__":
    unittest.main(verbosity=2)
