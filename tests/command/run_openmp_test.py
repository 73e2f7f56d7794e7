#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known waits of a program of OpenMP (openmp_waits.c), compared with the program's own clock."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import FIXTURES, rouse

from interposed import LIBRARY, LIMIT, Source

OPENMP = Source("openmp_waits")
PRIVATE, SHARED = FIXTURES / "openmp_private", FIXTURES / "libopenmp_library.so"
KNOWN = OPENMP.known
WAITERS = KNOWN["TEAM"] - 1
CLOCKS = 0.01  # by which the program's clock and the recorder's may differ
Row = dict[str, Any]

if not OPENMP.program.exists():
    print("not run: the compiler has no OpenMP of gcc")
    raise SystemExit(77)


class Scene:
    """The report on a scene, and the ns that its threads can have waited by their own clock."""

    def __init__(self, *words: str | Path, **options: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "report.json"
            before = ("--holds",) if options.pop("holds", "") else ()
            done = rouse(
                *("run", "--json", "-o", file, *before, "--", *words),
                timeout=LIMIT,
                ROUSE_PRELOAD=str(LIBRARY),
                **options,
            )
            if (done.returncode, done.stderr) != (0, ""):
                raise AssertionError(done)
            self.report: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        self.least_ns, self.most_ns = map(float, done.stdout.split())

    def rows(self, section: str, **wanted: object) -> list[Row]:
        rows: list[Row] = self.report["sections"][section]
        return [row for row in rows if all(row[name] == wanted[name] for name in wanted)]


def line_of(code: str) -> str:
    (number,) = (n for n, line in enumerate(OPENMP.lines, 1) if code in line)
    return f"openmp_waits.c:{number}"


class OpenMp(unittest.TestCase):
    def check_clock(self, found: Scene, recorded_ns: int) -> None:
        """The recorded waits lie inside those of the program, and contain the time that it held."""
        self.assertGreater(found.least_ns, 0)
        self.assertGreater(recorded_ns, found.least_ns * (1 - CLOCKS))
        self.assertLess(recorded_ns, found.most_ns * (1 + CLOCKS))

    def check_barrier(self, found: Scene) -> None:
        (row,) = found.rows("wakes", kind="barrier")
        self.assertEqual(row["useful"], KNOWN["ROUNDS"] * WAITERS)
        self.assertEqual(row["object_name"], "omp barrier")
        place = line_of("/* of the team */")
        for side in ("wait_label", "wake_label"):
            self.assertTrue(row[side].endswith(place), (row[side], place))
        self.check_clock(found, row["wait_ns"] + row["late_ns"])

    def test_a_late_thread_makes_the_others_of_its_team_wait(self) -> None:
        self.check_barrier(Scene(OPENMP.program, "barrier"))

    def check_section(self, found: Scene, name: str, begins: str) -> None:
        holds, awaits = (
            line_of(f"{begins}{way} */") for way in ("held by one", "awaited by the others")
        )
        (row,) = found.rows("sides", lock_label=name)
        self.assertEqual((row["kind"], row["contested"]), ("mutex", WAITERS))
        self.assertTrue(row["site_label"].endswith(awaits))
        self.assertTrue(row["holder_label"].endswith(holds))
        self.check_clock(found, row["wait_ns"])
        wakers: Counter[str] = Counter()
        for row in found.rows("wakes", object_name=name):
            wakers[row["wake_label"].split()[-1]] += row["useful"]
        self.assertEqual(wakers, {holds: 1, awaits: WAITERS - 1})

    def test_a_named_section_is_a_lock_with_its_holder(self) -> None:
        self.check_section(Scene(OPENMP.program, "named"), "omp critical hot", "(hot) /* ")

    def test_the_unnamed_section_is_a_lock_with_its_holder(self) -> None:
        self.check_section(Scene(OPENMP.program, "unnamed"), "omp critical", "/* unnamed, ")

    def test_each_entry_is_counted_where_holds_are_recorded(self) -> None:
        for scene, name in (("named", "omp critical hot"), ("unnamed", "omp critical")):
            rows = Scene(OPENMP.program, scene, holds="on").rows("locks", lock_label=name)
            entered = sum(row["count"] for row in rows)
            self.assertEqual(entered, KNOWN["FREE"] + KNOWN["TEAM"], scene)

    def test_a_wait_in_a_task_does_not_end_that_for_the_barrier(self) -> None:
        (row,) = Scene(OPENMP.program, "task").rows("wakes", kind="barrier")
        self.assertEqual((row["useful"], row["cancelled"]), (1, 0))

    def test_a_library_may_have_a_libgomp_of_its_own(self) -> None:
        self.check_barrier(Scene(PRIVATE, SHARED, "barrier"))
        found = Scene(PRIVATE, SHARED, "named")
        self.check_section(found, "omp critical hot", "(hot) /* ")
        self.assertEqual(len([n for n in found.report["notes"] if "(libgomp)" in n]), 1)

    def test_the_report_names_the_runtime_whose_other_waits_are_not_seen(self) -> None:
        found = Scene(OPENMP.program, "named")
        (note,) = [note for note in found.report["notes"] if "(libgomp)" in note]
        self.assertIn("rouse run --kernel", note)
        self.assertIn("sudo rouse watch PID", note)

    def test_without_the_library_the_program_does_the_same(self) -> None:
        for scene in ("barrier", "named", "unnamed", "task"):
            done = subprocess.run(
                [OPENMP.program, scene], capture_output=True, text=True, env=dict(os.environ)
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), scene)


if __name__ == "__main__":
    unittest.main(verbosity=2)
