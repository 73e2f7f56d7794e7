#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse report` as text and as JSON, on valid and damaged synthetic tables and stores."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from common import here, rouse

from known_tables import MS, THREADS, WAKES, Row, orders, site, tables
from pyarrow import parquet as files
from rich.cells import cell_len
from synthetic import KINDS, Builder, micro, of_process, ticks, tsc

from rouse import text
from rouse.store import layout
from rouse.tables import parquet

NASTY = "x\x1b[31m\n[bold]\u202e\x00<b>"


def running(builder: Builder) -> Builder:
    """A store of one thread that waited for a lock three times."""
    builder.chunk(layout.WRITERS, [{"is_worker": 1, "is_live": 1, "begin_tsc": tsc(0)}])
    builder.chunk(
        layout.THREADS,
        [
            {
                **{"id": 1, "doing": layout.DOES_RUN, "run_tsc": tsc(900), "begin_tsc": tsc(0)},
                **{"ticks": micro(usr=870, mutex=30), "name": b"server", "waits": 3},
            }
        ],
    )
    waits = {"wait_ticks": ticks(30), "wait_most": ticks(10), "kind": KINDS["mutex"]}
    lock = {"site": 0x1000, "holder_site": 0x2000, "lock": 0xABC0, "contested": 3, "acquired": 3}
    builder.chunk(layout.LOCKS, [{**waits, **lock}])
    wake = {"wait_site": 0x1000, "wake_site": 0x2000, "object": 0xABC0, "count": [0, 3, *[0] * 5]}
    return builder.chunk(layout.WAKES, [{**waits, **wake}])


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def tables(self, **changed: Sequence[Row]) -> Path:
        parquet.write(orders(**changed), self.folder / "tables")
        return self.folder / "tables"

    def printed(self, *words: str | Path, **environment: str) -> str:
        done = here("report", *words, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def refused(self, *words: str | Path, **environment: str) -> str:
        done = here("report", *words, **environment)
        self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr


class Terminal(Case):
    def test_freebsds_lock_table(self) -> None:
        lines = self.printed(self.tables(), "-s", "locks").splitlines()
        head = next(i for i, line in enumerate(lines) if line.lstrip().startswith("max "))
        self.assertEqual(
            " ".join(lines[head].split()),
            "max wait_max total wait_total count avg wait_avg cnt_hold cnt_lock name",
        )
        self.assertEqual(
            " ".join(lines[head + 1].split()),
            "- 10000 - 30000 - - - 1 3 orders.c:17 (mutex:orders)",
        )
        self.assertEqual(
            " ".join(lines[head + 2].split()), "- 0 - 0 - - - 2 0 put_order+0x1c (mutex:orders)"
        )

    def test_no_line_is_wider_than_the_terminal(self) -> None:
        long = site(0x1010, "a_function_with_a_name_that_is_longer_than_the_line+0x17")
        place = self.tables(sites=long)
        for columns in (40, 60, 80, 132):
            for words in (("--all",), ("--all", "--full")):
                for line in self.printed(place, *words, COLUMNS=str(columns)).splitlines():
                    self.assertLessEqual(cell_len(line), columns, line)

    def test_every_figure_is_there_in_forty_columns(self) -> None:
        out = self.printed(self.tables(), "-s", "locks", COLUMNS="40")
        for figure in ("wait_total 30000", "wait_max 10000", "cnt_hold 1", "cnt_lock 3"):
            self.assertIn(figure, out)

    def test_a_pipe_has_no_colours_and_is_not_cut(self) -> None:
        label = "f" * 300
        for words in ((), ("--full",)):
            out = self.printed(self.tables(sites=site(0x1010, label)), *words)
            self.assertNotIn("\x1b", out)
            self.assertIn(label, out)

    def test_names_cannot_control_the_terminal(self) -> None:
        threads = [{**THREADS[0], "name": NASTY}]
        wakes = [{**WAKES[0], "object_name": NASTY}]
        place = self.tables(threads=threads, wakes=wakes, sites=site(0x1010, NASTY))
        for columns in ("40", "200"):
            for words in ((), ("--full",)):
                out = self.printed(place, *words, COLUMNS=columns)
                self.assertTrue(all(c.isprintable() or c == "\n" for c in out))
        for words in ((), ("--full",)):
            self.assertIn("x\\x1b[31m\\x0a[bold]\\u202e\\x00<b>", self.printed(place, *words))

    def test_idle_waits_are_shown_when_asked(self) -> None:
        place = self.tables()
        self.assertNotIn("queue_push", self.printed(place, "-s", "wakes"))
        self.assertIn("2 rows of idle waits are not shown", self.printed(place, "-s", "wakes"))
        self.assertIn("queue_push", self.printed(place, "-s", "wakes", "--all"))

    def test_a_note_on_one_row_is_singular(self) -> None:
        wakes = [row for row in WAKES if row["kind"] == "accept"]
        out = self.printed(self.tables(wakes=wakes), "-s", "wakes")
        self.assertIn("1 row of idle waits is not shown: --all shows it.", out)

    def test_empty_sections_say_why(self) -> None:
        parquet.write(tables(processes=orders()["processes"].to_rows()), self.folder / "none")
        out = self.printed(self.folder / "none", "--full")
        self.assertIn("no wait was recorded: no thread has waited in a call that rouse sees", out)
        self.assertIn("Locks: no thread met a lock of POSIX or librouse that was held.", out)


class Json(Case):
    def test_all_figures_in_ns(self) -> None:
        found = json.loads(self.printed(self.tables(), "--json"))
        self.assertEqual(found["sections"]["locks"][0]["wait_total_ns"], 30 * MS)
        self.assertIsNone(found["sections"]["locks"][0]["count"])
        self.assertEqual(found["sections"]["totals"][0]["wakes"], 111)
        self.assertEqual(found["left_out"]["wakes"], {"rows": 0, "idle": 2})
        self.assertEqual(found["processes"][0]["pid"], 42)

    def test_a_changed_record_changes_its_figure(self) -> None:
        self.tables()
        changed = [{**WAKES[0], "useful": 3}, *WAKES[1:]]
        found = json.loads(self.printed(self.tables(wakes=changed), "--json"))
        self.assertEqual(found["sections"]["totals"][0]["wakes"], 112)


class Inputs(Case):
    def test_a_running_process_by_number_and_without_one(self) -> None:
        path = running(of_process(os.getpid(), 1000)).write(self.folder)
        own = {"ROUSE_OBS_DIR": str(self.folder)}
        for words in ((), (str(os.getpid()),), (str(path),)):
            found = json.loads(self.printed("--json", *words, **own))
            (lock, _) = found["sections"]["locks"]
            self.assertEqual((lock["cnt_lock"], lock["wait_total_ns"]), (3, 30 * MS))
            self.assertFalse(found["processes"][0]["ended"])

    def test_a_folder_has_all_its_processes(self) -> None:
        for pid in (3_999_001, 3_999_002):
            running(Builder(1000, pid=pid)).write(self.folder)
        (self.folder / "notes.txt").write_text("no recording")
        found = json.loads(self.printed("--json", self.folder))
        self.assertEqual([p["pid"] for p in found["processes"]], [3_999_001, 3_999_002])
        self.assertEqual(len(found["sections"]["locks"]), 4)
        self.assertTrue(any("notes.txt: is no recording" in note for note in found["notes"]))
        self.assertIn("process", self.printed(self.folder, "-s", "locks"))

    def test_unread_files_are_reported_for_formats_without_notes(self) -> None:
        running(of_process(os.getpid(), 1000)).write(self.folder)
        (self.folder / "notes.txt").write_text("no recording")
        with tempfile.TemporaryDirectory() as place:
            for words in (
                ("--format", "parquet", "-o", place),
                ("--format", "folded", "-o", "-"),
                (
                    "--format",
                    "kernel-style",
                ),
            ):
                done = here("report", self.folder, *words)
                self.assertEqual(done.returncode, 0)
                self.assertRegex(done.stderr, r"\Arouse: .*notes.txt: is no recording[^\n]*\n\Z")
            done = here("report", self.folder, "--format", "html", "-o", f"{place}/page")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_tables_are_not_written_beneath_a_file(self) -> None:
        file = self.folder / "file"
        file.touch()
        self.assertIn(
            "Not a directory", self.refused(self.tables(), "--format", "parquet", "-o", file)
        )

    def test_unreadable_inputs_are_reported_in_a_line(self) -> None:
        empty = self.folder / "empty"
        empty.touch()
        foreign = self.folder / "foreign"
        foreign.write_bytes(b"\x7fELF" + bytes(100))
        nothing = self.folder / "nothing"
        nothing.mkdir()
        odd = self.folder / "odd"
        odd.mkdir()
        for name in ("first", "second"):
            (odd / name).write_text("no recording")
        newer = Builder(1000, version=layout.VERSION + 1).write(self.folder, 5)
        own = {"ROUSE_OBS_DIR": str(nothing)}
        for words, output in (
            ([empty], "is empty"),
            ([foreign], "is no recording of rouse"),
            ([self.folder / "absent"], "is not there"),
            ([newer], f"is of version {layout.VERSION + 1}"),
            ([nothing], "has no recording: there is no file in it"),
            ([odd], "has no recording: the first of 2 problems: "),
            ([], "no process of user"),
            (["3999003"], "process 3999003"),
        ):
            self.assertIn(output, self.refused(*words, **own))

    def test_tables_of_an_older_rouse(self) -> None:
        place = self.tables()
        (file,) = (place / "processes").glob("*.parquet")
        old = files.read_table(file).drop_columns(["lost_stacks", "site_depth"])
        files.write_table(old, file)
        self.assertIn("orders.c:17", self.printed(place, "-s", "locks"))

    def test_tables_that_are_damaged(self) -> None:
        place = self.tables()
        (file,) = (place / "wakes").glob("*.parquet")
        whole = file.read_bytes()
        for broken in (b"", b"PAR1", whole[:200], whole[:100] + bytes(300) + whole[400:]):
            file.write_bytes(broken)
            self.assertRegex(self.refused(place), "wakes: |the tables cannot be read: ")

    def test_missing_parts_of_spark_are_reported_in_a_line(self) -> None:
        asked = ("report", self.tables(), "--engine", "pyspark")
        for there, java_home, reason in (
            (
                None,
                "",
                r"there is no Python package pyspark .*; install it: pip install 'rouse\[spark\]'",
            ),
            (ModuleType("pyspark"), "", r"there is no java in PATH; .*default-jre-headless"),
            (ModuleType("pyspark"), "/none", r"JAVA_HOME has no /none/bin/java; .*headless"),
        ):
            with mock.patch.dict(sys.modules, {"pyspark": there}):
                done = here(*asked, PATH="", JAVA_HOME=java_home)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertRegex(done.stderr, rf"\Arouse: --engine pyspark: {reason}.*\n\Z")

    def test_spark_requires_a_folder(self) -> None:
        path = running(Builder()).write(self.folder)
        complaint = self.refused(path, "--engine", "pyspark")
        self.assertIn("is no folder, which --engine pyspark requires", complaint)

    def test_wrong_arguments(self) -> None:
        for words in (["--limit", "-1"], ["-s", "nothing"], ["a", "b"]):
            self.assertEqual(here("report", *words).returncode, 2)

    def test_the_command_itself(self) -> None:
        done = rouse("report", self.tables(), "-s", "herds")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("threads from", done.stdout)

    def test_a_file_that_cannot_be_written(self) -> None:
        output = self.refused(
            self.tables(), "--format", "folded", "-o", self.folder / "absent" / "file"
        )
        self.assertIn("No such file or directory", output)


class Texts(unittest.TestCase):
    def test_figures_are_formatted(self) -> None:
        cells: list[tuple[str, Any, str]] = [
            ("ns", 0, "0"),
            ("ns", 7, "7 ns"),
            ("ns", 999_999, "1.00 ms"),
            ("ns", 1_500, "1.50 µs"),
            ("ns", 61_000_000_000, "61.0 s"),
            ("ns", -2_000, "-2.00 µs"),
            ("us", 30_000_000, "30000"),
            ("us", 450, "0.5"),
            ("us", 2_000, "2"),
            ("share", 0.034, "3.4"),
            ("share", 0.94, "94"),
            ("share", -0.0001, "0.0"),
            ("count", 1234567, "1,234,567"),
            ("count", None, "-"),
            ("share", float("nan"), "-"),
            ("text", "", "-"),
        ]
        for kind, value, expected in cells:
            self.assertEqual(text.cell(kind, value), expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
