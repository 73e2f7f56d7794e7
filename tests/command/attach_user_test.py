#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse watch` without the rights for BPF: /proc, and the stacks of a user's own processes.

Nothing here needs root. If root starts the test, it continues as the user nobody.
"""

from __future__ import annotations

import json
import os
import re
import time
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, here, main_unless, next_line, send, start_ready

from nobody import become_nobody

from rouse.cli.watch import images_of
from rouse.query.paths import Paths
from rouse.sched import running, stacks
from rouse.sched.switches import Switches

PROGRAM = FIXTURES / "attached"
SECONDS = 1
ANOTHERS = 1  # a process of root's
Row = dict[str, Any]


def watched(pid: int) -> dict[str, Any]:
    said = here("watch", str(pid), "--seconds", str(SECONDS), "--json")
    assert (said.returncode, said.stderr) == (0, ""), said.stderr
    whole: dict[str, Any] = json.loads(said.stdout)
    assert "BPF is not allowed; be root" in whole["seen by"], whole["seen by"]
    return whole


class Looked(unittest.TestCase):
    def test_waits_of_an_own_process_are_named(self) -> None:
        program = start_ready(self, PROGRAM, "endless")
        send(program, "go\n")
        whole = watched(program.pid)
        if any("no places" in note for note in whole["notes"]):
            self.skipTest(f"not run: {whole['notes']}")
        rows = {row["label"].split()[0]: row for row in whole["sections"]["sleep_sites"]}
        self.assertEqual((rows["take"]["kind"], rows["take"]["object"]), ("mutex", "global_lock"))
        # It sleeps all the time, and each look sees that.
        (reads,) = [row for row in rows.values() if row["kind"] == "read"]
        threads = whole["sections"]["kernel_threads"]
        passed_ns = max(row["cpu_ns"] + row["asleep_ns"] + row["queued_ns"] for row in threads)
        self.assertGreater(reads["asleep_ns"], 0.95 * passed_ns)
        self.assertGreater(passed_ns, SECONDS * 1e9)
        # The rows divide the time asleep that the threads have in all, by the kernel's own sums.
        asleep_ns = sum(row["asleep_ns"] for row in threads)
        divided_ns = sum(row["asleep_ns"] for row in whole["sections"]["sleep_sites"])
        self.assertAlmostEqual(divided_ns / asleep_ns, 1, delta=0.01)
        for row in rows.values():
            unknown = ("count", "asleep_each_ns", "asleep_most_ns", "queued_ns", "held_from")
            self.assertEqual([row[name] for name in unknown], [None] * len(unknown))

    def test_the_time_of_anothers_process_is_shown_and_a_remedy(self) -> None:
        whole = watched(ANOTHERS)
        (note,) = [note for note in whole["notes"] if "no places where threads sleep" in note]
        self.assertRegex(note, rf"[pP]ermi.*{re.escape(stacks.REMEDY)}")
        self.assertGreater(whole["verdict"]["thread_ns"], 0)
        self.assertGreater(whole["verdict"]["time"]["asleep"], 0)

    def test_functions_that_run_are_sampled(self) -> None:
        program = start_ready(self, PROGRAM, "burn")
        samples = running.Samples([program.pid])
        samples.look()
        if samples.why:
            self.skipTest(f"not run: {samples.why}")
        send(program, "go\n")
        used_ns = int(next_line(program).split()[1])
        samples.stop()
        found = Switches(ran=samples.counts, images=images_of([program.pid]))
        rows = {row["label"]: row for row in Paths(found).run_section(0).rows}
        # The clock of the samples is that of the program's use of processors.
        self.assertAlmostEqual(rows["burn_some"]["cpu_ns"] / used_ns, 1, delta=0.15)
        self.assertGreater(rows["burn_some"]["share"], 0.85)

    def test_memory_is_read_up_to_the_end_of_a_mapping(self) -> None:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        found = re.search(r"-([0-9a-f]+) rw.*\[stack\]", maps)
        assert found
        end = int(found[1], 16)
        self.assertEqual(len(stacks.read_memory(os.getpid(), end - 100, 4096)), 100)
        with self.assertRaises(OSError):
            stacks.read_memory(os.getpid(), 0, 4096)

    def test_looking_takes_a_bounded_share_of_a_processor(self) -> None:
        looks = stacks.Looks([os.getpid()])
        looks.look()
        self.assertGreaterEqual(looks.every, stacks.EVERY_SECONDS)
        looks.pids = [os.getpid()] * 2000
        before = time.process_time()
        looks.look()
        spent = time.process_time() - before
        self.assertGreaterEqual(looks.every, spent / stacks.SHARE_MOST * 0.9)


if __name__ == "__main__":
    reason = "" if PROGRAM.exists() else "its program was not built"
    if not reason and os.getuid() == 0:
        reason = become_nobody(PROGRAM)
    main_unless(reason)
