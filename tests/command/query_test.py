#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse query`: its answers compared with the program's own figures, its bounds, and the pages."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from common import PYTHON, SOURCE, here, main_unless, rouse

from interposed import LIBRARY, Source

from rouse.query import ran
from rouse.query.ask import VIEWS, Asker, quantize
from rouse.tables import engine, inputs
from rouse.tables.schemas import COLUMNS

MARKED = Source("marked_requests")
PAGE = SOURCE / "docs/man/rouse-tables.5.md"
QUESTION = re.compile(r"^### (.+?)\n(.*?)^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"


class Traced(unittest.TestCase):
    kept: Path

    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.kept = Path(holder.name) / "kept"
        words = ("run", "--trace", "-o", Path(holder.name) / "report", "--keep", cls.kept, "--")
        done = rouse(*words, MARKED.program, ROUSE_PRELOAD=str(LIBRARY))
        assert done.returncode == 0, done.stderr

    def ask(self, sql: str) -> list[dict[str, Any]]:
        with inputs.open_input(str(self.kept), inputs.Asked(with_events=True)) as opened:
            running = ran.make(opened.ran, opened.database) if opened.ran else None
            names, rows = Asker(opened.database, running).ask(sql)
            return [dict(zip(names, row, strict=True)) for row in rows]

    def refusal(self, sql: str) -> str:
        done = here("query", sql, self.kept)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"^rouse: .*\n$")
        return done.stderr


class Answers(Traced):
    def test_waits_of_a_trace_are_those_of_the_report(self) -> None:
        """Both are recorded apart. A sum for a lock ends when the thread has it."""
        single = (
            "SELECT kind, wait_label, COUNT(*) AS n, SUM(wait_ns) AS ns,"
            " SUM(to_run_ns) AS late_ns FROM trace_waits"
        )
        summed = 'SELECT kind, wait_label, SUM("count") AS n, SUM(wait_ns) AS ns FROM wait_sites'
        one, other = (
            {(row["kind"], row["wait_label"]): row for row in self.ask(f"{sql} GROUP BY 1, 2")}
            for sql in (single, summed)
        )
        self.assertEqual(set(one), set(other))
        for key, row in one.items():
            with self.subTest(key=key):
                self.assertEqual(row["n"], other[key]["n"])
                error = 2_000 * row["n"]
                self.assertGreater(other[key]["ns"], row["ns"] - error)
                until = row["ns"] + (row["late_ns"] if key[0] == "mutex" else 0)
                self.assertLess(other[key]["ns"], until + error)

    def test_each_wait_names_its_lock_and_its_thread(self) -> None:
        rows = self.ask(
            "SELECT DISTINCT thread, object_name, verdict FROM trace_waits WHERE kind = 'mutex'"
        )
        self.assertEqual({row["thread"] for row in rows}, {"server-1"})
        self.assertEqual({row["object_name"] for row in rows}, {"table"})

    def test_no_verdict_on_a_recording_of_which_a_part_is_missing(self) -> None:
        (whole,) = self.kept.glob("*.rouse")
        with tempfile.TemporaryDirectory() as folder:
            cut = Path(folder) / whole.name
            shutil.copyfile(whole, cut)
            os.truncate(cut, 100_000)
            done = here("report", cut)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("No verdict: a part of the recording is missing", done.stdout)
        self.assertNotIn("No verdict", here("report", whole).stdout)

    def test_stacks_begin_where_the_thread_waited(self) -> None:
        (row,) = self.ask("SELECT stack FROM trace_waits WHERE kind = 'mutex' LIMIT 1")
        self.assertRegex(row["stack"], r"^look_up marked_requests\.c:\d+ < server ")

    def test_quantize_is_that_of_dtrace(self) -> None:
        known = {0: 0, 1: 1, 2: 2, 3: 2, 4: 4, 1023: 512, 1024: 1024, None: None, 0.5: 0, -5: 0}
        self.assertEqual({number: quantize(number) for number in known}, known)
        self.assertEqual([quantize(each) for each in ("x", math.inf)], [None, None])

    def test_all_formats_have_the_same_rows(self) -> None:
        sql = "SELECT kind, COUNT(*) AS n FROM trace_waits GROUP BY kind ORDER BY kind"
        rows = self.ask(sql)
        done = here("query", "-f", "json", sql, self.kept)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(json.loads(done.stdout), rows)
        done = here("query", "-f", "csv", sql, self.kept)
        self.assertEqual(
            list(csv.DictReader(io.StringIO(done.stdout))),
            [{"kind": row["kind"], "n": str(row["n"])} for row in rows],
        )
        lines = here("query", sql, self.kept).stdout.splitlines()
        self.assertEqual(
            [line.split() for line in lines[1:]], [[r["kind"], str(r["n"])] for r in rows]
        )

    def test_text_says_that_there_is_more(self) -> None:
        done = here("query", "-n", "2", "SELECT * FROM sites", self.kept)
        self.assertEqual(len(done.stdout.splitlines()), 4)
        self.assertIn("there are more rows: --limit", done.stdout)


class Bounds(Traced):
    def test_what_changes_something_is_refused(self) -> None:
        for sql in (
            "DELETE FROM locks",
            "CREATE TABLE a (b)",
            "ATTACH '/tmp/x.db' AS x",
            "PRAGMA query_only = 0",
            "VACUUM INTO '/tmp/x.db'",
        ):
            with self.subTest(sql=sql):
                self.assertIn("the query changes something", self.refusal(sql))

    def test_wrong_query_is_one_line(self) -> None:
        self.assertIn("no such table: nix", self.refusal("SELECT * FROM nix"))
        self.assertIn("syntax error", self.refusal("SELEC 1"))
        self.assertIn("one statement at a time", self.refusal("SELECT 1; SELECT 2"))
        self.assertIn("selects nothing", self.refusal("/* no query */"))
        self.assertIn("too big", self.refusal("SELECT zeroblob(1000000000)"))

    def test_ctrl_c_ends_an_endless_query_at_once(self) -> None:
        words = [str(PYTHON), "-m", "rouse", "query", ENDLESS, str(self.kept)]
        program = subprocess.Popen(
            words, env={**os.environ, "PYTHONPATH": str(SOURCE)}, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(program.kill)
        stat = Path(f"/proc/{program.pid}/stat")
        while int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[11]) < 300:
            time.sleep(0.01)  # until it has used 3 s of a processor, and runs the query
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        self.assertEqual((program.returncode, said.strip()), (-signal.SIGINT, ""))

    def test_tables_are_listed_without_a_recording(self) -> None:
        done = here("query", "--tables")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in (*COLUMNS, *VIEWS):
            self.assertRegex(done.stdout, rf"(?m)^{name}\b")

    def test_no_query_is_an_error(self) -> None:
        done = here("query")
        self.assertEqual(done.returncode, 2)


class Pages(Traced):
    def test_page_has_each_table_and_column(self) -> None:
        page = PAGE.read_text(encoding="utf-8")
        for name, columns in Asker(engine.open_tables({}), None).columns().items():
            found = re.search(rf"(?ms)^### {name}\n(.*?)(?=^##)", page)
            with self.subTest(table=name):
                assert found
                missing = [key for key in columns if not re.search(rf"\*\*{key}\*\*", found[1])]
                self.assertEqual(missing, [])

    def test_worked_questions_have_answers(self) -> None:
        questions = QUESTION.findall(PAGE.read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(questions), 12)
        for title, _, sql in questions:
            with self.subTest(question=title):
                rows = self.ask(sql)
                self.assertTrue(rows, f"{title}: no rows")


if __name__ == "__main__":
    main_unless("" if MARKED.program.exists() else "its program was not built")
