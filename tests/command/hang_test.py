#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The report on a program that hangs: waits that never end."""

from __future__ import annotations

import json
import re
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from common import COMMAND, FIXTURES, SOURCE, here, site_label, start, start_ready

from file_growth import await_snapshots

from rouse.store import find, layout

HANG = FIXTURES / "hang"
TEXT = (SOURCE / "tests" / "command" / "fixtures" / "hang.c").read_text(encoding="utf-8")
LINES = TEXT.splitlines()
WAITERS, READERS, POOL = (
    int(number) for number in re.findall(r"= (\d+)", re.findall(r"enum {.*}", TEXT)[0])
)
LIMIT_S = 60
Found = dict[str, Any]


def label(code: str, nth: int = 0) -> str:
    """The label of the site at the nth line that contains this code."""
    numbers = [number for number, line in enumerate(LINES, 1) if code in line]
    return site_label("hang.c", LINES, numbers[nth])


HELD, WANTED = label("mutex_lock(&stuck)"), label("mutex_lock(&stuck)", 1)
WRITTEN, READ = label("write_lock(&frozen)"), label("read_lock(&frozen)")


class Hang(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.folder.chmod(0o700)
        self.own = {"ROUSE_OBS_DIR": str(self.folder)}
        self.program = start_ready(self, HANG, **self.own)
        self.pid = str(self.program.pid)
        self.until_all_wait()

    def until_all_wait(self) -> None:
        source = find.open_source(self.folder / find.file_name(self.program.pid))
        self.addCleanup(source.close)
        until = time.monotonic() + LIMIT_S
        waiting = 0
        while waiting < WAITERS + READERS + POOL + 1:  # one more: the holder waits as well
            self.assertLess(time.monotonic(), until, waiting)
            doing = find.read(source).threads["doing"]
            waiting = int((doing == layout.DOES_WAIT).sum())

    def text(self, *words: str | Path) -> str:
        done = here("report", *words, **self.own)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def report(self, target: str | Path, *words: str) -> Found:
        found: Found = json.loads(self.text("--json", *words, target))
        return found

    def check(self, sections: Found) -> None:
        sides = {row["lock_name"]: row for row in sections["sides"]}
        for name, count, waits_at, held_from in (
            ("stuck", WAITERS, WANTED, HELD),
            ("frozen", READERS, READ, WRITTEN),
        ):
            side = sides[name]
            self.assertEqual((side["waiting"], side["contested"]), (count, 0))
            self.assertEqual((side["site_label"], side["holder_label"]), (waits_at, held_from))
            self.assertGreater(side["wait_ns"], 0)
            at = {r["site_label"]: r for r in sections["locks"] if r["lock_name"] == name}
            self.assertEqual(at[waits_at]["waiting"], count)
            self.assertEqual(at[held_from]["kept_waiting"], count)
            self.assertEqual(at[waits_at]["wait_total_ns"], side["wait_ns"])
            (place,) = [r for r in sections["waits"] if r["wait_label"] == waits_at]
            self.assertEqual((place["waiting"], place["count"]), (count, 0))
            self.assertEqual(place["other_label"], held_from)
        (totals,) = sections["totals"]
        self.assertEqual((totals["lock_waits"], totals["lock_waiting"]), (0, WAITERS + READERS))
        self.assertEqual(totals["lock_wait_ns"], sum(side["wait_ns"] for side in sides.values()))

    def test_waits_that_do_not_end_are_in_the_tables(self) -> None:
        self.check(self.report(self.pid)["sections"])

    def test_their_duration_grows_with_each_report(self) -> None:
        first, second = (
            sum(row["wait_ns"] for row in self.report(self.pid, "-s", "sides")["sections"]["sides"])
            for _ in range(2)
        )
        self.assertGreater(second, first)

    def test_the_same_from_a_recording(self) -> None:
        file = self.folder / "recording"
        done = here("record", "-o", file, "--seconds", "0", self.pid, **self.own)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(self.report(file)["sections"])

    def test_the_same_after_sigkill(self) -> None:
        self.program.kill()
        self.program.wait()
        sections = self.report(self.pid, "--all")["sections"]
        self.check(sections)
        text = " ".join(self.text(self.pid).split())
        end = r"it ended without closing its recording, whose last event was at [-\d]+ [:\d]+ UTC"
        self.assertRegex(text, end)
        waits = [row for row in sections["threads"] if row["now"] in ("mutex", "rwlock")]
        self.assertEqual(len(waits), WAITERS + READERS)
        for row in waits:  # without a recorder, the length of the program's life is unknown
            self.assertIsNone(row["usr_share"])
            self.assertIsNone(row["lck_share"])

    def test_a_recorder_knows_how_long_its_program_lived(self) -> None:
        file = self.folder / "recording"
        words = ("record", "-o", file, "--interval", "0.1", self.pid)
        recorder = start(self, *COMMAND, *words, **self.own)
        await_snapshots(file, 2)
        self.program.kill()
        self.program.wait()
        recorder.wait(LIMIT_S)
        (process,) = self.report(self.pid, "-s", "totals")["processes"]
        found = self.report(file, "--all")
        self.check(found["sections"])
        self.assertGreater(found["processes"][0]["taken_unix_ns"], process["taken_unix_ns"])
        self.assertIn("it was last seen alive at", " ".join(self.text(file).split()))
        for row in found["sections"]["threads"]:
            if row["now"] in ("mutex", "rwlock"):
                self.assertGreater(row["lck_share"], 0)

    def test_every_format_has_the_waits_under_way(self) -> None:
        names = ("folded", "prometheus", "html")
        files = {name: self.folder.with_suffix(f".{name}") for name in names}
        for name, file in files.items():
            self.text("--format", name, "-o", file, self.pid)
        styled = self.text("--format", "kernel-style", self.pid)
        made = {}
        for name, file in files.items():
            made[name] = file.read_text(encoding="utf-8")
            file.unlink()
        folded = dict(line.rsplit(" ", 1) for line in made["folded"].splitlines())
        self.assertGreater(int(folded[f"{WANTED};[mutex stuck]"]), 0)
        metrics = made["prometheus"]
        (waiting,) = re.findall(
            rf'rouse_lock_waiting_threads{{.*lock="stuck".*site="{WANTED}".*}} (\d+)', metrics
        )
        self.assertEqual(int(waiting), WAITERS)
        self.assertRegex(metrics, rf'rouse_waiting_threads{{.*wait_site="{WANTED}".*}} {WAITERS}\n')
        self.assertRegex(styled, rf" {WAITERS} +0 .* mutex  {WANTED}, {HELD} stuck\n")
        self.assertIn(f"{WANTED} (mutex:stuck)", made["html"])

    def test_no_note_claims_that_nothing_waited(self) -> None:
        for words, title in (((), "Waits"), (("--full",), "waits")):
            text = " ".join(self.text(*words, self.pid).split())
            locks = f"{WAITERS + READERS} for locks,"
            self.assertRegex(text, rf"{title} under way: \d+, .* {locks}")
        for denial in ("no thread met", "no thread waited", "no thread has waited", "is no thread"):
            self.assertNotIn(denial, text)

    def test_a_pool_that_waits_for_work_is_idle(self) -> None:
        row: list[dict[str, Any]] = []
        until = time.monotonic() + LIMIT_S
        while not row:  # a wait for an object without a holder counts as idle after some time
            self.assertLess(time.monotonic(), until)
            found = self.report(self.pid, "--all", "-s", "waits")["sections"]["waits"]
            row = [r for r in found if r["wait_label"] == label("sem_wait(&never)", 1)]
            row = [r for r in row if r["is_idle"]]
        self.assertEqual((row[0]["waiting"], row[0]["count"], row[0]["role"]), (POOL, 0, "not yet"))
        shown = [r["wait_label"] for r in self.report(self.pid, "-s", "waits")["sections"]["waits"]]
        self.assertNotIn(row[0]["wait_label"], shown)


if __name__ == "__main__":
    unittest.main(verbosity=2)
