#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The first screen of a report: at most 25 lines, with the answer, whatever was recorded."""

from __future__ import annotations

import re
import sys
import tempfile
import unittest
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from common import BUILD, here, rouse

from interposed import LIBRARY
from known_tables import MS, PROCESSES, WAKES, Row, orders, site
from rich.cells import cell_len

from rouse.query import facts, screen, verdict
from rouse.query.finding import Finding
from rouse.query.sections import Section
from rouse.query.specs import PLANS
from rouse.render import report, terminal
from rouse.tables import parquet
from rouse.tables.schemas import LAST_SEEN

LINES, WIDE = 25, 80
VERDICT_LINES = 8
PROGRAMS = BUILD / "tests" / "findings"
LONG = "shop::Ledger<std::string, shop::Page>::" + "append_or_replace_" * 8 + "entry"


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def check(self, text: str, wide: int | None = WIDE) -> str:
        lines = text.splitlines()
        self.assertLessEqual(len(lines), LINES, text)
        for line in lines if wide else ():
            self.assertLessEqual(cell_len(line), wide or 0, line)
        return text

    def screen(self, *words: str | Path, **changed: Sequence[Row]) -> str:
        """The first screen of those tables, in 80 columns, 25 lines, and in a pipe."""
        parquet.write(orders(**changed), self.folder / "tables")
        for columns in (str(WIDE), "132", ""):
            done = here("report", *words, self.folder / "tables", COLUMNS=columns)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.check(done.stdout, int(columns) if columns else None)
        return done.stdout


class Tables(Case):
    def test_the_screen_has_the_program_the_time_and_the_longest_waits(self) -> None:
        lines = self.screen().splitlines()
        self.assertEqual(lines[0], "orders 42: 1.00 s, 1.70 s of CPU time")
        self.assertRegex(lines[1], r"^3\.\d\d s of threads' time: 52 % running, 1\.4 % queued,")
        text = "\n".join(lines)
        self.assertRegex(
            text, r"(?m)^30\.0 ms +3 +10\.0 ms +mutex orders +orders\.c:17 +held from +put_order"
        )
        self.assertIn("Also idle waits 1.40 s at 2 places", text)
        self.assertIn("--full", lines[-1])

    def test_idle_waits_have_rows_when_asked(self) -> None:
        text = self.screen("--all")
        self.assertRegex(text, r"(?m)^ *500 ms +100 +5\.00 ms +condition +worker\.c:5 +woken from")
        self.assertNotIn("Also", text)

    def test_processes_of_one_program_are_summed(self) -> None:
        hosts = [f"host:{pid}:7" for pid in (42, 43, 44)]
        changed: dict[str, list[Row]] = {"processes": [{**PROCESSES[0], "pid": 42}]}
        for name, table in orders().items():
            changed[name] = [{**row, "process": host} for host in hosts for row in table.to_rows()]
        text = self.screen(**changed)
        self.assertTrue(text.startswith("orders x3: 1.00 s, 5.10 s of CPU time\n"), text)
        self.assertEqual(len(re.findall(r"mutex orders", text)), 1, text)
        self.assertRegex(text, r"(?m)^90\.0 ms +9 ")

    def test_many_places_with_long_names(self) -> None:
        sites = [
            frame for n in range(60) for frame in site(0x9000 + n, f"{LONG}{n} ledger.cpp:{n}")
        ]
        wakes = [
            {**WAKES[1], "kind": "write", "wait_site": hex(0x9000 + n), "wait_ns": (90 - n) * MS}
            for n in range(60)
        ]
        text = self.screen(sites=sites, wakes=wakes, locks=[])
        self.assertRegex(text, r"\n\d+ more places, [12]\.\d+ s in all\n")
        rows = self.screen("--limit", "3", sites=sites, wakes=wakes, locks=[])
        self.assertEqual(rows.count("ledger.cpp"), 3)

    def test_a_place_that_hardly_waits_has_no_row(self) -> None:
        text = self.screen(wakes=[{**WAKES[1], "kind": "read", "wait_ns": MS}], locks=[])
        self.assertRegex(text, r"\n1 place, 1\.00 ms in all\n")

    def test_what_was_lost_is_said(self) -> None:
        text = self.screen(processes=[{**PROCESSES[0], "lost_wakes": 7}])
        self.assertIn("note: 7 wake-ups did not fit into the recording", text)

    def test_processes_that_ended_without_a_word_have_one_note(self) -> None:
        rows = [{"pid": n, "end": LAST_SEEN, "taken_unix_ns": n * 1000 * MS} for n in range(42, 46)]
        (note,) = facts.ends(rows)
        self.assertRegex(note, r"^4 processes \(42, 43, 44, \.\.\.\): they ended without closing")
        (note,) = facts.ends([{"pid": 7, "end": ""}, rows[2]])
        self.assertRegex(note, r"^process 44: it ended without closing its recording;")

    def test_full_has_every_table(self) -> None:
        parquet.write(orders(), self.folder / "tables")
        text = here("report", "--full", self.folder / "tables").stdout
        for plan in PLANS:
            self.assertRegex(text, rf"(?m)^ *{plan.title}\b")


class Verdict(Case):
    def lines(self, count: int, words: int, wide: int | None = WIDE) -> list[str]:
        """The screen of a verdict with that many findings of that many words."""
        findings = [
            Finding(
                "hot-lock", f"lock_{n}", LONG, "holder", 9 * MS, 2.0, 1.5, f"{n} " + "word " * words
            )
            for n in range(count)
        ]
        time = {"running": 0.5, "locks": 0.5}
        made = verdict.Verdict(time, 1000 * MS, findings, "" if findings else "Nothing")
        rows: list[dict[str, Any]] = [
            {
                **{"wait_ns": MS, "count": 1, "wait_each_ns": MS, "what": "mutex", "role": "held"},
                **{"wait_label": LONG, "other_label": LONG},
            }
        ] * 40
        section = Section("waits", "", "", screen.COLUMNS, rows)
        said: list[str] = []
        with mock.patch.object(report.Whole, "print", lambda _, t, **__: said.append(str(t))):
            console = report.Whole(width=wide or 10_000)
            of = terminal.Terminal(console, wide)
            one = screen.Screen("app", made, "", section, 0, "Also", ["a", "b", "c", "d"], "more")
            of.screen(replace(one), None)
        return said

    def test_the_first_finding_is_whole_and_others_get_a_line(self) -> None:
        for count in range(6):
            for words in (3, 30, 300):
                lines = self.lines(count, words)
                self.check("\n".join(lines))
                blank = lines.index("")
                self.assertLessEqual(blank - 1, VERDICT_LINES, lines)
                for n in range(count):
                    self.assertTrue(any(line.startswith(f"{n + 1}. ") for line in lines), lines)
        self.assertIn("4. hot-lock: lock_3, 9.00 ms waited at shop", "\n".join(self.lines(5, 30)))

    def test_a_pipe_has_every_finding_whole(self) -> None:
        text = "\n".join(self.lines(5, 300, wide=None))
        self.assertEqual(text.count("word"), 5 * 300)


class Programs(Case):
    def run_it(self, *words: str | Path) -> str:
        done = rouse("run", "--", *words, ROUSE_PRELOAD=str(LIBRARY), COLUMNS=str(WIDE))
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.check(done.stderr)

    def program(self, name: str) -> Path:
        if not (PROGRAMS / name).exists():
            self.skipTest(f"not run: {name} was not built")
        return PROGRAMS / name

    def test_a_program_that_hardly_waits(self) -> None:
        text = self.run_it(sys.executable, "-c", "import time; time.sleep(0.01)")
        self.assertIn("of threads' time", text)

    def test_a_lock_with_a_sleeping_holder(self) -> None:
        text = " ".join(self.run_it(self.program("sensors"), "0.3").split())
        self.assertRegex(text, r"1\. table_lock is held \d+ .*refresh_sensor sensors\.c:\d+ waits")
        self.assertRegex(text, r"refresh_sensor sensors\.c:\d+ waits for mutex table_lock")
        self.assertRegex(text, r"Also .*sleeps \d")

    def test_a_program_in_cpp_has_the_names_of_its_own_functions(self) -> None:
        text = " ".join(self.run_it(self.program("job_queue"), "0.3").split())
        self.assertRegex(text, r"Queue::take job_queue\.cpp:\d+ waits for condi")

    def test_several_processes_are_one_screen(self) -> None:
        text = self.run_it(self.program("prefork"), "0.3")
        self.assertRegex(text, r"(?m)^prefork x\d: ")

    def test_a_kept_recording_has_the_same_screen(self) -> None:
        kept = self.folder / "kept"
        words = ("--keep", str(kept), "--", self.program("sensors"), "0.2")
        done = rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY), COLUMNS=str(WIDE))
        again = here("report", kept, COLUMNS=str(WIDE)).stdout
        self.assertIn(f"rouse report --full {kept}", done.stderr)
        self.assertEqual(again.splitlines()[:-1], done.stderr.splitlines()[:-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
