#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The JSON of reports against the schema that `rouse report --schema` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path
from typing import Any

from common import BUILD, FIXTURES, here

from interposed import LIBRARY
from known_tables import orders, tables

from rouse.render import document
from rouse.sched.probe import BY_BPF, BY_RECORDS, HELPERS
from rouse.tables import parquet

try:
    import jsonschema  # type: ignore[import-untyped]
except ImportError:
    print("not run: the package jsonschema is not installed")
    sys.exit(77)

Json = dict[str, Any]


@cache
def validator() -> Any:
    done = here("report", "--schema")
    schema = json.loads(done.stdout)
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def errors(found: Json) -> list[str]:
    return [f"{list(e.absolute_path)}: {e.message[:200]}" for e in validator().iter_errors(found)]


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def checked(self, text: str) -> Json:
        found: Json = json.loads(text)
        self.assertEqual(errors(found), [])
        self.assertEqual(found["version"], document.VERSION)
        return found

    def report(self, *words: str, **changed: Any) -> Json:
        parquet.write(orders(**changed), self.folder / "tables")
        return self.checked(here("report", "--json", *words, self.folder / "tables").stdout)

    def run_it(self, *words: str | Path, helper: str = BY_RECORDS) -> Json:
        own = {"ROUSE_PRELOAD": str(LIBRARY), HELPERS[helper]: str(BUILD / "kernel" / helper)}
        done = here("run", "--json", *words, **own)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.checked(done.stderr[done.stderr.index("{") :])


class Valid(Case):
    def test_tables_with_every_section(self) -> None:
        found = self.report("--all")
        empty = {key for key, rows in found["sections"].items() if not rows}
        self.assertEqual(empty, {"listeners", "origins", "spins"} & empty)

    def test_some_sections_and_rows(self) -> None:
        found = self.report("--section", "waits", "--limit", "1")
        self.assertEqual(list(found["sections"]), ["waits"])
        self.assertIsNone(found["verdict"])
        self.assertEqual(found["left_out"]["waits"]["rows"], 1)

    def test_tables_of_nothing(self) -> None:
        parquet.write(tables(), self.folder / "none")
        self.checked(here("report", "--json", self.folder / "none").stdout)

    def test_a_program_whose_locks_are_contended(self) -> None:
        found = self.run_it("--", FIXTURES / "mutex_cond", "mutex")
        self.assertGreater(len(found["sections"]["sides"]), 0)

    def test_several_processes(self) -> None:
        script = "import os, time\nos.fork()\ntime.sleep(0.01)"
        found = self.run_it("--", sys.executable, "-c", script)
        self.assertEqual(len(found["processes"]), 2)

    def test_a_program_of_which_nothing_was_recorded(self) -> None:
        found = self.run_it("--", "true")
        self.assertEqual((found["processes"], len(found["notes"])), ([], 1))

    def check_kernel(self, helper: str, section: str) -> None:
        words = ("--kernel", "--", sys.executable, "-c", "import time; time.sleep(0.01)")
        found = self.run_it(*words, helper=helper)
        if section not in found["sections"]:
            self.skipTest(f"not run: {helper} cannot watch the kernel here")

    def test_what_the_kernel_has_seen_by_its_records(self) -> None:
        self.check_kernel(BY_RECORDS, "kernel_threads")

    def test_what_the_kernel_has_seen_by_bpf(self) -> None:
        self.check_kernel(BY_BPF, "sleep_sites")

    def test_a_program_of_librouse(self) -> None:
        program = FIXTURES / "known_waits"
        own = {"ROUSE_OBS_DIR": str(self.folder), "ROUSE_OBS": "locks", "ROUSE_OBS_KEEP": "1"}
        subprocess.run([program, "ledger"], env={**os.environ, **own}, check=True, timeout=60)
        (file,) = self.folder.glob("*.rouse")
        found = self.checked(here("report", "--json", file).stdout)
        self.assertGreater(len(found["sections"]["workers"]), 0)


class Invalid(Case):
    def test_a_missing_or_unknown_key_is_an_error(self) -> None:
        found = self.report()
        for place in (
            found,
            found["verdict"],
            found["processes"][0],
            found["sections"]["waits"][0],
        ):
            for key in list(place):
                value = place.pop(key)
                self.assertEqual(len(errors(found)), 1, key)
                place[key] = value
            place["surprise"] = 1
            self.assertEqual(len(errors(found)), 1)
            del place["surprise"]
        self.assertEqual(errors(found), [])

    def test_a_value_of_another_type_is_an_error(self) -> None:
        found = self.report()
        row = found["sections"]["waits"][0]
        for key, value in (("wait_ns", "3 ms"), ("count", 1.5), ("wait_label", 3), ("is_idle", 0)):
            before, row[key] = row[key], value
            self.assertEqual(len(errors(found)), 1, key)
            row[key] = before
        found["version"] = document.VERSION + 1
        self.assertEqual(len(errors(found)), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
