#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse lab E6` on real databases. It takes minutes, so that only the full matrix runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from database_test import LIBRARY, PLACE, PYTHON, SOURCE, reason

sys.path.insert(0, str(SOURCE / "tests" / "command"))

from common import laboratory

OWN_CLOCK = (
    2.0  # times: how far the speed may be from sysbench's own, which has begin and end in it
)


class Laboratory(unittest.TestCase):
    def rows(self, *words: str) -> tuple[dict[str, Any], str]:
        """Run E6. Returns its rows by their labels, and its page."""
        with laboratory(), tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)
            lab = [str(PYTHON), "-m", "rouse", "lab", "E6", "--seconds", "1", "-f", "json"]
            done = subprocess.run(
                [*lab, "-o", place, "--anyway", *words],
                capture_output=True,
                text=True,
                timeout=300,
                env={
                    **os.environ,
                    "PYTHONPATH": str(SOURCE),
                    "ROUSE_PRELOAD": str(LIBRARY / "librouse-preload.so"),
                    "TMPDIR": place,
                },
            )
            self.assertEqual(list(Path(place).glob(f"{PLACE}*")), [])
            page = (Path(place) / "E6.html").read_text(encoding="utf-8")
        (found,) = json.loads(done.stdout)
        rows = {row["label"]: row for row in found["rows"]}
        for label, row in rows.items():
            if "error" in row:  # this machine lacks it
                self.assertTrue(label.startswith("PostgreSQL"), row)
        return rows, page

    def check(self, label: str, rows: dict[str, Any], page: str) -> None:
        (report,) = rows[label]["reports"]
        self.assertGreater(report["per_s"], report["client_per_s"] / OWN_CLOCK)
        self.assertLess(report["per_s"], report["client_per_s"] * OWN_CLOCK)
        self.assertGreater(report["lock_wait_us"], 0)
        self.assertRegex(report["remark"], r"^rouse run: \S.* waits of \S+ .?s in all$")
        self.assertIn(f"<td>{label}</td>", page)

    def test_rouse_lab_shows_a_database_before_and_after_a_repair(self) -> None:
        rows, page = self.rows()
        for label in ("MariaDB, one cache of open tables", "MariaDB, 8 caches as needed"):
            self.check(label, rows, page)

    def test_a_database_on_a_part_of_the_processors(self) -> None:
        parts = ("0.5", "1") if os.geteuid() == 0 else ("1",)
        rows, page = self.rows("--processors", ",".join(parts))
        busy = {}
        for part in parts:
            of_them = f"{part} processor{'s' * (part != '1')}"
            label = f"MariaDB, one cache of open tables: {of_them}"
            self.check(label, rows, page)
            self.assertTrue(rows[label]["command"].startswith(f"on {of_them}: mariadb"))
            busy[part] = rows[label]["reports"][0]["cpus"]
        for part, cpus in busy.items():
            self.assertLess(cpus, float(part) * 1.1)  # clock ticks are counted

    def test_one_instance_beside_several_on_copies_of_its_data(self) -> None:
        rows, page = self.rows("--instances", "3")
        for count in ("1 instance", "3 instances"):
            self.check(f"MariaDB, one cache of open tables: {count}", rows, page)
        several = rows["MariaDB, one cache of open tables: 3 instances"]
        self.assertTrue(several["command"].startswith("3 times, at once: mariadb"), several)
        self.assertEqual(several["reports"][0]["clients"], 6)
        web = rows["rouse-serve, 20 µs under one lock: 3 instances"]
        self.assertIn("rouse-serve --instances 3", web["command"])
        self.assertEqual(web["reports"][0]["processes"], 3)


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
