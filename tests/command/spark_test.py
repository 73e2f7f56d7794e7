#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reports by Spark and DuckDB have the same figures as the report by SQLite."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import main_unless, rouse

from known_tables import HOST, LOCKS, MS, WAKES, orders
from pyarrow import parquet as files
from synthetic import KINDS, Builder, ticks

from rouse.store import layout
from rouse.tables import parquet
from rouse.tables.table import Table

OTHER = "host:43:8"
LISTENERS = [
    {
        **{"listener": "0x7", "name": ":80", "writer": 1, "accepted": 5, "woken": 4, "in_vain": 1},
        **{"samples": 5, "backlog": 7, "backlog_most": 3, "first_ns": MS, "last_ns": 9 * MS},
    },
    {
        **{"listener": "0x7", "name": ":80", "writer": 2, "accepted": 3, "woken": 3, "ordered": 2},
        **{"samples": 3, "backlog": 1, "backlog_most": 1, "first_ns": 2 * MS, "last_ns": 5 * MS},
    },
    {"listener": "0x9", "writer": 2, "in_vain": 2, "delays": 2, "delay_ns": 800},
]
TIMEOUT = 400  # seconds; an idle machine needs a tenth of it


def of_process(name: str, made: dict[str, Table]) -> dict[str, Table]:
    return {key: table.replaced(process=[name] * table.rows) for key, table in made.items()}


class Spark(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def report(self, engine: str, *words: str) -> dict[str, Any]:
        words = ("report", str(self.folder), "--json", "--all", "--engine", engine, *words)
        done = rouse(*words, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def test_every_section_of_two_processes_tables(self) -> None:
        parquet.write(orders(listeners=LISTENERS), self.folder)
        held = {"wait_ns": 5, "holds": 3, "hold_ns": 8, "acquired": 7, "init_site": "0x1030"}
        wakes = [{**WAKES[0], "object_name": "", "early": 3}]
        other = orders(locks=[{**LOCKS[0], **held}, *LOCKS], wakes=wakes, listeners=LISTENERS[1:])
        parquet.write(of_process(OTHER, other), self.folder)
        # An older rouse did not write this column and this table.
        (threads,) = (self.folder / "threads").glob("host_43_8*")
        files.write_table(files.read_table(threads).drop_columns(["yields"]), threads)
        shutil.rmtree(self.folder / "herds")
        ours, theirs = self.report("duckdb"), self.report("pyspark")
        self.assertEqual(theirs, ours)
        self.assertEqual({row["process"] for row in ours["processes"]}, {HOST, OTHER})
        empty = [key for key, rows in ours["sections"].items() if not rows]
        self.assertEqual(empty, ["herds"])

    def test_a_folder_of_recordings(self) -> None:
        for pid, waits in ((70, 5), (71, 9)):
            row = {
                **{"kind": KINDS["mutex"], "wait_site": 0x10, "wake_site": 0x20, "object": 8},
                **{"count": [0, waits, 1, 0, 0, 0, 0], "wait_ticks": ticks(4)},
            }
            Builder(pid=pid).chunk(layout.WAKES, [row]).write(self.folder)
        (self.folder / "damaged").write_bytes(b"x")
        ours, ducks, theirs = (
            self.report(name, "-s", "totals", "-s", "wakes")
            for name in ("sqlite", "duckdb", "pyspark")
        )
        self.assertEqual((ducks, theirs), (ours, ours))
        self.assertEqual(len(ours["processes"]), 2)

    def test_tables_that_cannot_be_read(self) -> None:
        parquet.write(orders(), self.folder)
        (file,) = (self.folder / "locks").glob("*.parquet")
        file.write_bytes(file.read_bytes()[:100])
        done = rouse("report", self.folder, "--engine", "pyspark", timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"\Arouse: Spark cannot read the tables: .*\n\Z")


if __name__ == "__main__":
    there = {"pyspark": importlib.util.find_spec("pyspark"), "Java": shutil.which("java")}
    absent = " and ".join(name for name, found in there.items() if not found)
    main_unless(f"{absent} is missing; make check-all installs it" if absent else "")
