#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run --delay`: the holders of a mutex keep it for longer. Oracle: the program's count."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, rouse

from interposed import LIBRARY, LIMIT, environment

from rouse.run import delay

PROGRAM = FIXTURES / "changed_lock"
MUTEX_BYTES = 40
MS = 1_000_000
DELAY_MS = 2
THREADS = 3


class Delay(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def run_it(self, *options: str, locks: int = 1, program: Path = PROGRAM) -> tuple[int, Any]:
        """Return how often the program used its locks, and the report."""
        words = (str(THREADS), str(locks), "0", "0", "cpu", "cpu", "0.5")
        report = self.folder / "report"
        run: tuple[str | Path, ...] = ("run", "--holds", "--json", "-o", report, *options, "--")
        done = rouse(*run, program, *words, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        match = re.search(r"ops (\d+) seconds ([\d.]+)", done.stdout)
        assert match
        self.seconds = float(match[2])
        return int(match[1]), json.loads(report.read_text(encoding="ascii"))

    def lock(self, report: Any, name: str) -> Any:
        rows = [row for row in report["sections"]["locks"] if row["lock_name"] == name]
        self.assertEqual(len(rows), 1, report["sections"]["locks"])
        return rows[0]

    def test_every_hold_lasts_longer(self) -> None:
        ops, report = self.run_it("--delay", f"shared_lock={1000 * DELAY_MS}")
        # One holder at a time: the rest of the count fits into the time of the run.
        self.assertLessEqual(ops * DELAY_MS / 1000, self.seconds)
        lock = self.lock(report, "shared_lock")
        self.assertGreaterEqual(lock["avg_ns"], DELAY_MS * MS)
        self.assertEqual(lock["count"], ops)
        self.assertIn("each holder of shared_lock computed for 2000 µs more", str(report["notes"]))

    def test_another_element_of_an_array_is_not_delayed(self) -> None:
        name = f"shared_lock+{MUTEX_BYTES:#x}"
        _, report = self.run_it("--delay", f"{name}={1000 * DELAY_MS}", locks=2)
        self.assertGreaterEqual(self.lock(report, name)["avg_ns"], DELAY_MS * MS)
        self.assertLess(self.lock(report, "shared_lock")["max_ns"], 20 * DELAY_MS * MS)

    def plain(self, program: Path, value: str) -> None:
        """Run a program with this value of the variable, and see that nothing is delayed."""
        done = subprocess.run(
            [program, str(THREADS), "1", "0", "0", "cpu", "cpu", "0.3"],
            env=environment(self.folder, **{delay.VARIABLE: value}),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
        match = re.search(r"ops (\d+) seconds ([\d.]+)", done.stdout)
        assert match
        self.assertGreater(int(match[1]) * DELAY_MS / 1000, float(match[2]))

    def test_another_program_and_a_wrong_value_delay_nothing(self) -> None:
        value = delay.value(str(PROGRAM), "shared_lock", 1000 * DELAY_MS)
        copy = self.folder / "copy"
        copy.write_bytes(PROGRAM.read_bytes())
        copy.chmod(0o755)
        self.plain(copy, value)
        *place, _ = value.split(":")
        for wrong in ("", "x", ":".join(place), f"{value}x", ":".join([*place, "9" * 12])):
            self.plain(PROGRAM, wrong)

    def test_bad_input_is_one_line_and_the_program_is_not_started(self) -> None:
        script = self.folder / "script"
        script.write_text("#!/nowhere/at/all\n", encoding="utf-8")
        script.chmod(0o755)
        for words, said in (
            (("--delay", "no_lock=5", "--", PROGRAM), "has no variable no_lock"),
            (("--delay", "hold_us=5", "--", PROGRAM), "is no mutex: hold_us has 8 bytes"),
            (("--delay", "shared_lock+0x300=5", "--", PROGRAM), "is no mutex"),
            (("--delay", "shared_lock", "--", PROGRAM), "is no change of a lock"),
            (("--delay", "shared_lock=0", "--", PROGRAM), "is no number of µs"),
            (("--delay", "shared_lock=nan", "--", PROGRAM), "is no number of µs"),
            (("--delay", "shared_lock=1e7", "--", PROGRAM), "is no number of µs"),
            (("--delay", "shared_lock=5", "--", "/nowhere"), "is not there"),
        ):
            done = rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertIn(said, done.stderr, words)
            self.assertIn(done.returncode, (2, 3, 127), words)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
