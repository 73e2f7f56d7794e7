#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The options of `rouse run`: where the report goes, --keep, repairs and --distortion."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

from common import SOURCE, here

from interposed import LIBRARY, unless_emulated
from run_case import KNOWN, MS, PROGRAM, Case

from rouse.run import distortion
from rouse.store import leftovers
from rouse.tables import inputs


class Reports(Case):
    @unless_emulated("libc's path in the emulated program is not that on this machine")
    def test_a_kept_recording_is_read_again(self) -> None:
        kept = self.folder / "kept"
        done = self.run_it("--keep", kept, "--", PROGRAM, "mutex")
        self.assertIn("mutex_cond.c:", done.stderr)
        self.assertEqual(kept.stat().st_mode & 0o777, 0o700)
        found = json.loads(here("report", "--json", kept).stdout)
        self.assertEqual(found["sections"]["totals"][0]["lock_waits"], KNOWN["WAITERS"])
        self.assertIn("inferred", " ".join(found["notes"]))
        tables = self.folder / "tables"
        here("report", "--format", "parquet", "-o", tables, kept)
        again_notes = json.loads(here("report", "--json", tables).stdout)["notes"]
        self.assertIn(inputs.NO_SAMPLES, again_notes)
        self.assertEqual([n for n in again_notes if n != inputs.NO_SAMPLES], found["notes"])
        again = self.run_it("--keep", kept, "--", PROGRAM, "mutex")
        self.assertEqual(again.returncode, 3)
        self.assertIn("already exists", again.stderr)

    def test_a_kept_recording_knows_how_busy_the_processors_were(self) -> None:
        kept = self.folder / "kept"
        began = time.monotonic_ns()
        self.run_it("--keep", kept, "--", PROGRAM, "mutex")
        most = (time.monotonic_ns() - began) * (os.cpu_count() or 1)
        with inputs.open_input(str(kept)) as opened:
            self.assertTrue(0 < (opened.busy_ns or 0) <= most, (opened.busy_ns, most))
        note = kept / leftovers.BUSY
        for damaged in (b"", b"-5\n", b"x", b"9" * 1000, "\u0663".encode()):
            note.write_bytes(damaged)
            self.assertIsNone(leftovers.busy_of(kept), damaged)
        note.unlink()
        self.assertIsNone(leftovers.busy_of(kept))
        os.mkfifo(note)  # opening it would wait for a writer
        self.assertIsNone(leftovers.busy_of(kept))

    def test_a_report_that_cannot_be_written_leaves_the_status(self) -> None:
        gone = self.folder / "gone"
        gone.mkdir()
        removes = f"rmdir {gone}; exec {PROGRAM} _exit"
        done = self.run_it("-o", gone / "report", "--", "sh", "-c", removes)
        self.assertEqual(done.returncode, 9)
        self.assertIn("No such file", done.stderr)
        for words in ((), ("--json",)):
            done = self.run_it("-o", "/dev/full", *words, "--", PROGRAM, "_exit")
            self.assertEqual(done.returncode, 9)
            self.assertIn("/dev/full: No space left on device", done.stderr)

    def test_standard_error_that_is_closed_or_full_leaves_the_status(self) -> None:
        for to in ("&-", "/dev/full"):
            for words in ("_exit", "nothing 9"):
                line = f"{sys.executable} -m rouse run -- {PROGRAM} {words} 2>{to}"
                done = subprocess.run(
                    ["bash", "-c", line],
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
                )
                self.assertEqual((done.returncode, done.stdout), (9, b""), line)

    def test_the_report_can_go_to_standard_output(self) -> None:
        done = self.run_it("-o", "-", "--", PROGRAM, "mutex")
        self.assertIn("mutex_cond.c:", done.stdout)
        self.assertEqual(done.stderr, "")

    def test_nothing_is_left_behind(self) -> None:
        before = set(Path("/dev/shm").glob("rouse-run-*"))
        self.run_it("--", PROGRAM, "nothing")
        left = set(Path("/dev/shm").glob("rouse-run-*")) - before
        self.assertFalse([path for path in left if self.is_nobodys(path)])

    def is_nobodys(self, folder: Path) -> bool:
        """Whether no run uses the folder. Other runs of this user may have begun meanwhile."""
        try:
            fd = os.open(folder, leftovers.FOLDER)
        except FileNotFoundError:
            return False
        try:
            return leftovers.is_dead(fd)
        except BlockingIOError:  # locked by its run
            return False
        finally:
            os.close(fd)


class Repairs(Case):
    @unless_emulated("its program is one of this machine")
    def test_timer_slack_is_set_for_all_threads_and_reported(self) -> None:
        slack = "import os; print(open('/proc/self/timerslack_ns').read().strip())"
        for asked, expected, shown in (
            ("precise", "1", "1 ns"),
            ("coalesce:2000", "2000000", "2.00 ms"),
        ):
            done = self.run_it("--timers", asked, "--", sys.executable, "-c", slack)
            self.assertEqual(done.stdout.strip(), expected)
            done = self.run_it("--timers", asked, "--", PROGRAM, "mutex")
            self.assertIn(f"timers of all threads were given a slack of {shown}", done.stderr)
        self.assertNotIn("repair:", self.run_it("--", PROGRAM, "mutex").stderr)

    def test_adaptive_locks_are_reported(self) -> None:
        done = self.run_it("--locks", "adaptive", "--", PROGRAM, "mutex")
        self.assertIn("repair: plain mutexes were spun for up to 5.00 µs", done.stderr)

    def test_unavailable_options_are_reported(self) -> None:
        for words in (
            ("--timers", "soon"),
            ("--timers", "coalesce:"),
            ("--timers", "coalesce:0"),
            ("--timers", "coalesce:1000001"),
            ("--locks", "none"),
            ("--depth", "9"),
            ("--memory", "0"),
            ("--memory", "257"),
        ):
            done = self.run_it(*words, "--", PROGRAM, "nothing")
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(words[0], done.stderr)


class Distortion(Case):
    def test_the_program_runs_in_pairs_and_both_sides_are_reported(self) -> None:
        runs = self.folder / "runs"
        script = f'echo "$LD_PRELOAD" >> {runs}; exec {PROGRAM} mutex'
        done = self.run_it("--distortion", "3", "--", "sh", "-c", script)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, r"CPU time, 3 pairs: .* without recording, .* with it: \d")
        self.assertRegex(done.stderr, r"elapsed, 3 pairs: .*\[0\.|elapsed, 3 pairs: .*\[1\.")
        with_it = [bool(line) for line in runs.read_text(encoding="utf-8").splitlines()]
        self.assertEqual(with_it, [False, True, False, True, True, False, False, True])

    def test_as_json(self) -> None:
        file = self.folder / "cost.json"
        done = self.run_it("--distortion", "1", "--json", "-o", file, "--", PROGRAM, "mutex")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual(found["pairs"], 1)
        cost = found["elapsed_ns"]
        self.assertAlmostEqual(cost["ratio"], cost["with"] / cost["without"])
        self.assertGreater(cost["without"], KNOWN["HOLD_MS"] * MS)
        self.assertIsInstance(cost["with"], int)
        self.assertIn("CPU time, 1 pair: ", distortion.lines(1, found)[0])

    def test_a_result_that_cannot_be_written_is_an_error(self) -> None:
        done = self.run_it("--distortion", "1", "-o", "/dev/full", "--", PROGRAM, "nothing")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stderr, f"rouse: /dev/full: {os.strerror(errno.ENOSPC)}\n")

    def test_a_run_that_fails_is_not_compared(self) -> None:
        done = self.run_it("--distortion", "1", "--", PROGRAM, "nothing", "3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("a run ended with 3: nothing is compared", done.stderr)
        done = self.run_it("--distortion", "2", "--", "/no/program")
        self.assertEqual(done.returncode, 127)
        for words in (("0",), ("x",), ("2", "--keep", self.folder / "kept")):
            done = self.run_it("--distortion", *words, "--", PROGRAM, "nothing")
            self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
