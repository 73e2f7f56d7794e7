#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` on programs with several processes, on programs that are killed, and on exec."""

from __future__ import annotations

import json
import os
import signal
import sys
import unittest

from common import FIXTURES

from interposed import unless_emulated
from run_case import KNOWN, PROGRAM, Case, label

from rouse.store import find, leftovers

LEDGER = FIXTURES / "known_waits"


BURNT_NS = 200_000_000
# It sleeps, runs and executes itself, and after that the program that it is given; it prints for
# how long it ran each time.
WAITS_AND_EXECS = f"""
import json, os, sys, time
time.sleep(.001)
began, before = time.process_time_ns(), json.loads(sys.argv[2]) if sys.argv[2:] else []
while time.process_time_ns() - began < {BURNT_NS}:
    pass
ran = [*before, time.process_time_ns() - sum(before)]
if not before:
    os.execv(sys.executable, [*sys.orig_argv, json.dumps(ran)])
print(json.dumps(ran), flush=True)
os.execv(sys.argv[1], [sys.argv[1], "mutex"])
"""


class Processes(Case):
    def test_a_child_of_a_fork_has_a_record_of_its_own(self) -> None:
        found = self.report(PROGRAM, "fork")
        self.assertEqual(len(found["processes"]), 2)
        self.assertNotIn(leftovers.MARK, " ".join(found["notes"]))
        waits = [row["lock_waits"] for row in found["sections"]["totals"]]
        self.assertEqual(waits, [KNOWN["WAITERS"]] * 2)

    @unless_emulated("its program starts one of this machine")
    def test_a_process_that_outlives_the_program_goes_on_recording(self) -> None:
        fifo, kept = self.folder / "fifo", self.folder / "kept"
        # The first sleep is a recorded wait: the process has a file from then on.
        code = "import os, time; time.sleep(.001); print(os.getpid(), flush=True); time.sleep(600)"
        child = f"{sys.executable} -c '{code}' >{fifo} 2>&1 </dev/null"
        script = f"mkfifo {fifo}; {child} & read pid <{fifo}; echo $pid"
        done = self.run_it("--keep", kept, "--", "sh", "-c", script)
        os.kill(int(done.stdout), signal.SIGKILL)
        self.assertIn(f"1 process runs on: the waits from now on are in {kept}", done.stderr)
        self.assertTrue((kept / find.file_name(int(done.stdout))).exists())

    def test_processes_of_one_program_are_summed(self) -> None:
        file = self.folder / "report.json"
        done = self.run_it("--sum", "--json", "-o", file, "--", PROGRAM, "fork")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(file.read_text(encoding="utf-8"))
        (process,) = found["processes"]
        self.assertEqual((process["process"], process["program"]), (str(PROGRAM.resolve()),) * 2)
        self.assertIn("and 1 other process", process["command"])
        sections = found["sections"]
        waits = 2 * KNOWN["WAITERS"]
        self.total(sections, useful=waits + 1, lock_waits=waits)  # one more: for the child
        sides = sections["sides"]  # one per call stack
        self.assertEqual(sum(row["contested"] for row in sides), 2 * KNOWN["WAITERS"])
        waits_at = {row["site_label"] for row in sides}
        self.assertEqual(waits_at, {label("pthread_mutex_lock(&hot);")})
        self.assertEqual(len(sections["threads"]), 2)

    @unless_emulated("the emulator's user namespace has no user nobody")
    @unittest.skipIf(os.getuid() != 0, "only root can become nobody")
    def test_a_child_that_gives_up_its_user_is_recorded(self) -> None:
        found = self.report(PROGRAM, "drop")
        waits = [row["lock_waits"] for row in found["sections"]["totals"]]
        self.assertEqual(waits, [KNOWN["WAITERS"]] * 2)

    @unless_emulated("its program starts one of this machine")
    def test_processes_without_waits_are_left_out(self) -> None:
        found = self.report("sh", "-c", f"{PROGRAM} nothing; {PROGRAM} mutex; exit 0")
        self.assertEqual(len(found["processes"]), 1)
        self.assertRegex(" ".join(found["notes"]), "[23] other processes recorded no wait")

    def test_a_wait_that_never_ended_is_reported(self) -> None:
        found = self.sections(PROGRAM, "stuck", status=-signal.SIGKILL)
        waiting = [row for row in found["threads"] if row["state"] == "cond"]
        self.assertEqual([row["wait_label"] for row in waiting], [label("/* for ever")])

    def test_a_program_run_by_exec_is_recorded(self) -> None:
        self.total(self.sections(PROGRAM, "exec"), lock_waits=KNOWN["WAITERS"])

    @unless_emulated("its program is one of this machine")
    def test_the_record_of_a_program_that_waited_before_exec_is_kept(self) -> None:
        file = self.folder / "report.json"
        words = ("--json", "-o", file, "--", sys.executable, "-c", WAITS_AND_EXECS, PROGRAM)
        done = self.run_it(*words)
        found = json.loads(file.read_text(encoding="utf-8"))
        python, again, last = found["processes"]
        self.assertEqual({each["pid"] for each in found["processes"]}, {python["pid"]})
        self.assertEqual([each["end"] for each in found["processes"]], ["farewell"] * 3)
        for process, ran in zip((python, again), json.loads(done.stdout), strict=True):
            # The exec follows the reading.
            self.assertLess(abs(process["cpu_ns"] - ran), 30e6, f"{process}, not {ran}")
        self.assertLess(last["cpu_ns"], BURNT_NS)
        waits = [row["lock_waits"] for row in found["sections"]["totals"]]
        self.assertEqual(sorted(waits), [0, 0, KNOWN["WAITERS"]])

    def test_a_record_before__exit_is_kept_with_the_wait_under_way(
        self,
    ) -> None:
        found = self.sections(PROGRAM, "_exit", status=9)
        self.total(found, lock_waits=KNOWN["WAITERS"])
        waiting = [row for row in found["threads"] if row["state"] == "cond"]
        self.assertEqual([row["wait_label"] for row in waiting], [label("/* for ever")])

    def test_a_program_killed_by_sigkill_is_reported_and_kills_the_command(self) -> None:
        found = self.sections(PROGRAM, "kill", status=-signal.SIGKILL)
        self.total(found, lock_waits=KNOWN["WAITERS"])

    def test_librouse_in_the_program_records_and_the_interposer_steps_aside(self) -> None:
        found = self.report(LEDGER)
        self.assertEqual(len(found["processes"]), 1)
        self.assertIn("hot", {row["lock_name"] for row in found["sections"]["sides"]})
        self.assertFalse([note for note in found["notes"] if "rouse run" in note])


if __name__ == "__main__":
    unittest.main(verbosity=2)
