#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse report` on real programs: known_waits.c, and rouse-serve under load."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import BUILD, FIXTURES, SOURCE, here, next_line, site_label, start, start_ready

MS = 1_000_000
CLOCKS = 1e-4  # largest allowed error of a converted time stamp, as a share of the interval
LEDGER = FIXTURES / "known_waits"
LINES = (
    (SOURCE / "tests" / "command" / "fixtures" / "known_waits.c")
    .read_text(encoding="utf-8")
    .splitlines()
)
KNOWN = {
    match[1]: int(match[2]) for line in LINES if (match := re.match(r"\s+([A-Z_]+) = (\d+),", line))
}
Sections = Mapping[str, list[dict[str, Any]]]


def label(code: str, nth: int = 0) -> str:
    """The label of the site at the nth line that contains this code."""
    found = [number for number, line in enumerate(LINES, 1) if code in line]
    return site_label("known_waits.c", LINES, found[nth])


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.folder.chmod(0o700)
        self.own = {"ROUSE_OBS_DIR": str(self.folder)}

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        return start(self, *command, **self.own, **environment)

    def sections(self, target: str | Path) -> Sections:
        done = here("report", "--json", "--all", target, **self.own)
        self.assertEqual(done.returncode, 0, done.stderr)
        found: Sections = json.loads(done.stdout)["sections"]
        return found


class Ledger(Case):
    """With one worker the counts are exact. With two, a thread may be woken before it sleeps."""

    program: subprocess.Popen[str]

    def run_ledger(self, workers: int, **environment: str) -> tuple[Sections, int]:
        """The report, and the waiting time that the waiters measured themselves."""
        self.program = self.start(LEDGER, ROUSE_WORKERS=str(workers), **environment)
        measured = next_line(self.program).split()
        self.assertEqual(measured[:1], ["waited_ns"])
        self.assertEqual(next_line(self.program), "ready\n")
        return self.sections(str(self.program.pid)), int(measured[1])

    def check_lock(self, found: Sections, measured_ns: int) -> None:
        waiters = KNOWN["WAITERS"]
        (side,) = [row for row in found["sides"] if row["lock_name"] == "hot"]
        waits_at, held_from = label("rouse_mutex_lock(&hot)"), label("rouse_mutex_lock(&hot)", 1)
        self.assertEqual((side["site_label"], side["holder_label"]), (waits_at, held_from))
        self.assertEqual((side["contested"], side["given_up"]), (waiters, 0))
        # This holds for the sum over all waiters: each arrived before the hold began.
        self.assertGreaterEqual(side["wait_ns"], waiters * KNOWN["HOLD_MS"] * MS * (1 - CLOCKS))
        self.assertLessEqual(side["wait_ns"], measured_ns * (1 + CLOCKS))
        table = {row["site_label"]: row for row in found["locks"] if row["lock_name"] == "hot"}
        self.assertEqual((table[waits_at]["cnt_lock"], table[waits_at]["cnt_hold"]), (waiters, 0))
        self.assertEqual((table[held_from]["cnt_lock"], table[held_from]["cnt_hold"]), (0, waiters))

    def check_rest(self, found: Sections) -> None:
        waits = KNOWN["HERD"] * KNOWN["ROUNDS"]
        wakes = {row["object_name"]: row for row in found["wakes"]}
        opened = wakes["opened"]
        self.assertEqual((opened["count"], opened["useful"]), (waits, waits))
        self.assertEqual(opened["wake_label"], label("rouse_cond_broadcast(&opened)"))
        self.assertEqual(opened["wait_label"], label("rouse_cond_wait(&opened, &gate)"))
        nobody = wakes["nobody"]
        self.assertEqual((nobody["count"], nobody["timeout"]), (KNOWN["TIMEOUTS"],) * 2)
        # Its deadlines are computed before the waits begin, and others may run in between.
        self.assertGreaterEqual(nobody["wait_ns"], KNOWN["TIMEOUTS"] * MS / 2)
        herds = {row["size_from"]: row["count"] for row in found["herds"]}
        self.assertEqual(herds, {KNOWN["HERD"]: KNOWN["ROUNDS"]})
        (totals,) = found["totals"]
        self.assertEqual(totals["broadcasts_unheard"], KNOWN["BROADCASTS"])
        timers = sum(row["count"] for row in found["lateness"])
        self.assertEqual(timers, KNOWN["TIMEOUTS"] + 1)  # and the holder's sleep

    def test_every_count_is_exact(self) -> None:
        found, measured_ns = self.run_ledger(workers=1)
        self.check_lock(found, measured_ns)
        self.check_rest(found)
        wakes = {row["object_name"]: row for row in found["wakes"]}
        ticket = wakes["ticket"]
        self.assertEqual((ticket["count"], ticket["useful"]), (KNOWN["POSTS"],) * 2)
        self.assertEqual(ticket["wake_label"], label("rouse_sem_post(&ticket)"))
        joins = {row["wake_label"] for row in found["wakes"] if row["kind"] == "join"}
        self.assertIn("thread end", joins)
        self.assertLessEqual(joins, {"thread end"})
        (totals,) = found["totals"]
        self.assertEqual((totals["lost_race"], totals["false_"], totals["early"]), (0, 0, 0))
        self.assertEqual(totals["signals_unheard"], KNOWN["SIGNALS"])

    def test_the_cost_of_recording_is_measured_on_the_same_machine(self) -> None:
        # A worker with short turns times only some of its waits. Then the cost is not known.
        self.run_ledger(workers=1, ROUSE_OBS="exact")
        done = here("report", "--json", str(self.program.pid), **self.own)
        (process,) = json.loads(done.stdout)["processes"]
        self.assertTrue(0.1 < process["stamp_ns"] < 100_000, process["stamp_ns"])
        text = here("report", "--full", str(self.program.pid), **self.own).stdout
        self.assertRegex(" ".join(text.split()), r"and one takes [\d.]+ ns")

    def test_the_lock_is_exact_with_two_workers(self) -> None:
        found, measured_ns = self.run_ledger(workers=2)
        self.check_lock(found, measured_ns)
        self.check_rest(found)

    def test_the_figures_are_complete_after_a_sigkill(self) -> None:
        before, measured_ns = self.run_ledger(workers=2)
        self.program.kill()
        self.program.wait()
        after = self.sections(str(self.program.pid))
        self.check_lock(after, measured_ns)
        self.assertEqual(after["wakes"], before["wakes"])

    def test_a_recording_has_the_same_figures(self) -> None:
        live, _ = self.run_ledger(workers=2)
        file = self.folder / "recording"
        pid = str(self.program.pid)
        done = here("record", "-o", file, "--seconds", "0", pid, **self.own)
        self.assertEqual(done.returncode, 0, done.stderr)
        recorded = self.sections(file)
        for name in ("locks", "sides", "wakes", "herds", "lateness", "totals"):
            drop = {"duration_ns", "switches"}
            rows = [
                [{k: v for k, v in row.items() if k not in drop} for row in found[name]]
                for found in (live, recorded)
            ]
            self.assertEqual(rows[0], rows[1], name)


class Names(Case):
    def test_cpp_functions_are_named_as_in_the_source(self) -> None:
        program = start_ready(self, FIXTURES / "cxx_names", **self.own)
        words = ("report", "--all", "--format", "folded", "-o", "-", str(program.pid))
        done = here(*words, **self.own)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        (nap,) = [line for line in done.stdout.splitlines() if "[sleep" in line]
        self.assertRegex(nap, r"^app::box<int>::nap cxx_names\.cpp:\d+;\[sleep\] \d+$")


class Serve(Case):
    """The example of docs/reading-waits.md."""

    def contend(self, **environment: str) -> Sections:
        """Load the server with eight clients whose requests share a lock, and make a report."""
        options = ("--respond", "x", "--workers", "2", "--port", "0", "--shared-lock", "2000")
        server = self.start(BUILD / "serve" / "rouse-serve", *options, **environment)
        port = int(re.findall(r":(\d+)/", next_line(server))[0])
        clients = [threading.Thread(target=self.ask, args=(port, 25)) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return self.sections(str(server.pid))

    def check_shared(self, found: Sections) -> None:
        (lock,) = [row for row in found["locks"] if row["lock_name"] == "shared"]
        self.assertRegex(lock["name"], r"^\w+ connection\.c:\d+ \(mutex:shared\)$")
        self.assertEqual(lock["cnt_hold"], lock["cnt_lock"])
        self.assertTrue(0 < lock["cnt_lock"] < 8 * 25)
        self.assertGreater(lock["wait_total_ns"], 0)

    def test_the_shared_lock_is_found(self) -> None:
        self.check_shared(self.contend())

    def test_one_wait_site_has_one_row_for_all_call_stacks(self) -> None:
        found = self.contend(ROUSE_OBS_DEPTH="4")
        self.check_shared(found)
        # The holder's site is an address and the waiter's is a call stack, so sides match by label.
        sides = [row for row in found["sides"] if row["lock_name"] == "shared"]
        self.assertTrue(sides)
        for row in sides:
            self.assertNotEqual(row["site"], row["holder_site"])
            self.assertEqual(row["site_label"], row["holder_label"])

    @staticmethod
    def ask(port: int, times: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(times):
            connection.request("GET", "/")
            connection.getresponse().read()
        connection.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
