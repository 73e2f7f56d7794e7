#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits that end abnormally, with and without the interposer (abnormal_waits.c)."""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import here

from interposed import Recorded, Source, play

BROKEN = Source("abnormal_waits")
HERD = BROKEN.known["HERD"]
IN_A_HERD = BROKEN.label("/* in a herd */")


class Broken(unittest.TestCase):
    def test_threads_that_end_in_a_wait_leave_its_queue(self) -> None:
        """Four threads end in different ways. After each, one thread is woken, and then a herd."""
        found = 0
        recorded = Recorded(BROKEN, "ends")
        for row, stacks in recorded.rows("wakes"):
            if IN_A_HERD in stacks.get(row["wait_site"], ()):
                found += row["useful"]
        self.assertEqual(found, 4 * (1 + HERD))

    def test_a_cancelled_thread_makes_the_file_of_its_process(self) -> None:
        """The cancelled thread waits for a lock first, and another thread after it."""
        recorded = Recorded(BROKEN, "cancels")
        found = [row["useful"] for row, _ in recorded.rows("wakes") if row["kind"] == "mutex"]
        self.assertEqual(sum(found), 2)

    def test_a_fork_in_the_middle_of_a_wait_leaves_both_alive(self) -> None:
        """Each child returns into its parent's wait, and then waits itself."""
        for order in (None, "fifo"):
            variables = {"ROUSE_RUN_ACCEPT": order} if order else {}
            recorded = Recorded(BROKEN, "forks", **variables)
            children = BROKEN.label("/* of its own */")
            found = [
                row["timeout"]
                for row, stacks in recorded.rows("wakes")
                if children in stacks.get(row["wait_site"], ())
            ]
            self.assertEqual(found, [1] * BROKEN.known["WAITS"], order)

    def test_a_handler_may_come_while_the_file_is_made(self) -> None:
        """The handler may wait at any moment. Its wait is in the file."""
        recorded = Recorded(BROKEN, "settles")
        handlers = BROKEN.label("/* in a handler */")
        found = [
            row["timeout"]
            for row, stacks in recorded.rows("wakes")
            if handlers in stacks.get(row["wait_site"], ())
        ]
        self.assertEqual(found, [1] * BROKEN.known["MOMENTS"])

    def test_a_thread_that_jumps_out_of_a_wait_is_recorded_after_it(self) -> None:
        """A handler on its own stack is no jump: its wait belongs to the interrupted thread."""
        places = ("check(read", "/* to its end */", "/* after a jump */", "/* in a handler */")
        found = dict.fromkeys(places, 0)
        recorded = Recorded(BROKEN, "jumps")
        for row, stacks in recorded.rows("wakes"):
            for place in places:
                if BROKEN.label(place) in stacks.get(row["wait_site"], ()):
                    found[place] += row["cancelled"] + row["timeout"]
        self.assertEqual(list(found.values()), [1, 1, BROKEN.known["NAPS"], 0])

    def test_the_child_of_a_vfork_makes_no_file(self) -> None:
        """The file would be made in the parent's memory, under the parent's number."""
        with tempfile.TemporaryDirectory() as place:
            play(Path(place), BROKEN, "borrows")
            said = here("report", "--all", "--json", place)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        ends = [process["end"] for process in json.loads(said.stdout)["processes"]]
        self.assertEqual(ends, ["farewell"] * 2)

    def test_without_the_library_all_of_them_end_the_same(self) -> None:
        for scene in ("ends", "cancels", "forks", "settles", "jumps", "borrows"):
            done = subprocess.run([BROKEN.program, scene], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), scene)


if __name__ == "__main__":
    unittest.main(verbosity=2)
