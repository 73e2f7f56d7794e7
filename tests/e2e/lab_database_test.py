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

from database_test import LIBRARY, PLACE, PYTHON, SOURCE, reason

sys.path.insert(0, str(SOURCE / "tests" / "command"))

from common import laboratory


class Laboratory(unittest.TestCase):
    def test_rouse_lab_shows_a_database_before_and_after_a_repair(self) -> None:
        with laboratory(), tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)
            done = subprocess.run(
                [PYTHON, "-m", "rouse", "lab", "E6", "--seconds", "1", "-f", "json", "-o", place],
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
        for label in ("MariaDB, one cache of open tables", "MariaDB, 8 caches as needed"):
            (report,) = rows[label]["reports"]
            self.assertGreater(report["per_s"], 1)
            self.assertGreater(report["lock_wait_us"], 0)
            self.assertRegex(report["remark"], r"^rouse run: \S.* waits of \S+ .?s in all$")
            self.assertIn(f"<td>{label}</td>", page)
        for label, row in rows.items():
            if "error" in row:  # this machine lacks it
                self.assertTrue(label.startswith("PostgreSQL"), row)


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
