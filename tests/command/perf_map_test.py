#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Names of code that a just-in-time compiler made."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import SOURCE, here, rouse

from interposed import LIBRARY

from rouse.symbols import perf_map
from rouse.symbols.images import Image, Names
from rouse.symbols.perf_map import PerfMap
from rouse.symbols.sites import Resolver

JAVA = (
    *("java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"),
    "-XX:+PreserveFramePointer",
)


class Maps(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def test_addresses_within_a_function_have_its_name(self) -> None:
        found = PerfMap(["1000 20 void Shop.sell(int)", "2000 8 other", "1000 10 newer"])
        known = {0xFFF: "", 0x1000: "newer", 0x100F: "newer", 0x1010: "", 0x2007: "other"}
        self.assertEqual({at: found.name(at) for at in known}, known)

    def test_damaged_lines_are_left_out(self) -> None:
        lines = ["", "x", "10", "zz 1 a", "10 zz a", "30 4 right", "-5 3 a", "9" * 99 + " 1 far"]
        self.assertEqual(PerfMap(lines).name(0x31), "right")

    def test_only_regular_files_of_a_bounded_size_are_read(self) -> None:
        os.mkfifo(self.folder / "perf-1.map")
        (self.folder / "perf-2.map").symlink_to("/dev/zero")
        with (self.folder / "perf-3.map").open("wb") as file:
            file.truncate(perf_map.BYTES_MOST + 1)
        for pid in (1, 2, 3, 4):
            self.assertEqual(perf_map.of(pid, self.folder).starts, [])

    def test_code_without_a_file_has_the_name_of_the_map(self) -> None:
        names = Names(Image(7, "1000-3000 rwxp 0 00:00 0"), Resolver())
        names.made = PerfMap(["1000 20 sell"])
        self.assertEqual(names.frame(0x1011).function, "sell")
        self.assertEqual(names.frame(0x2000).label, "0x2000")


@unittest.skipUnless(shutil.which("java"), "not run: there is no java")
class Java(unittest.TestCase):
    def test_methods_of_java_have_names(self) -> None:
        if os.getuid():
            self.skipTest("not run: only root may observe all processors")
        asked = subprocess.run([*JAVA, "-version"], capture_output=True)
        if asked.returncode:
            self.skipTest("not run: this java writes no map for perf")
        with tempfile.TemporaryDirectory() as place:
            kept = Path(place) / "kept"
            program = SOURCE / "tests/findings/orders.java"
            words = ("run", "-o", Path(place) / "text", "--keep", kept, "--", *JAVA, program)
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual(done.returncode, 0, done.stderr)
            sql = (
                "SELECT function, SUM(samples) FROM run_samples GROUP BY 1 ORDER BY 2 DESC LIMIT 3"
            )
            found = here("query", "-f", "csv", sql, kept).stdout
            for recording in kept.glob("*.rouse"):
                (perf_map.FOLDER / f"perf-{recording.stem}.map").unlink(missing_ok=True)
        self.assertIn("Orders.", found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
