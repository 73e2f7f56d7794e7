#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Threads by name, compared with what their own clocks say (thread_groups.c)."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import unittest
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import here

from interposed import LIMIT, Source, environment, unless_emulated

THREADS = Source("thread_groups")
KNOWN = THREADS.known
MS = 1_000_000
# A thread's own figures end before its last steps, and its record begins after its first.
EACH_NS, SHARE = 2 * MS, 0.02
STATES = ("lat", "mutex", "rwlock", "cond", "sem", "join", "io", "poll", "accept", "sleep")
Row = Mapping[str, Any]


@dataclass
class Own:
    """The sums of what the threads of a name said of themselves."""

    threads: int = 0
    cpu_ns: int = 0
    queue_ns: int = 0
    wall_ns: int = 0


class Played:
    """A scene: what its threads said, and its report."""

    def __init__(self, scene: str, *words: str, status: int = 0, **variables: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(
                [THREADS.program, scene],
                env=environment(Path(place), **variables),
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            if (done.returncode, done.stderr) != (status, ""):
                raise AssertionError(done)
            (file,) = [place] if words else Path(place).glob("*.rouse")
            said = here("report", "--all", "--json", *words, file)
            self.text = here("report", "--all", "--section", "groups", *words, file).stdout
        if (said.returncode, said.stderr) != (0, ""):
            raise AssertionError(said)
        self.report = json.loads(said.stdout)
        self.rows: dict[str, Row] = {row["name"]: row for row in self.report["sections"]["groups"]}
        self.own: dict[str, Own] = defaultdict(Own)
        for line in done.stdout.splitlines():
            name, *figures = line.split()
            own = self.own[name]
            own.threads += 1
            cpu_ns, queue_ns, wall_ns = map(int, figures)
            own.cpu_ns += cpu_ns
            own.queue_ns += queue_ns
            own.wall_ns += wall_ns
        self.process_ns = self.own.pop("process", Own()).cpu_ns


class Case(unittest.TestCase):
    def near(self, found: int, expected: int, threads: int, what: str) -> None:
        self.assertAlmostEqual(
            found, expected, delta=threads * EACH_NS + expected * SHARE, msg=what
        )

    def agree(self, played: Played, *names: str) -> None:
        """The rows of these names agree with what their threads said."""
        for name in names:
            row, own = played.rows[name], played.own[name]
            self.assertEqual(row["threads"], own.threads, name)
            self.near(row["usr"], own.cpu_ns, own.threads, f"{name}: CPU time")

    def add_up(self, played: Played) -> None:
        for name, row in played.rows.items():
            whole = row["usr"] + row["in_call"] + sum(row[state] for state in STATES)
            self.near(whole, row["wall_ns"], row["threads"], f"{name}: states and life")
            self.assertAlmostEqual(row["usr_share"] * row["wall_ns"], row["usr"], delta=1)
            self.assertIsNotNone(row["usr_share"], name)


class Ended(Case):
    played: Played

    @classmethod
    def setUpClass(cls) -> None:
        cls.played = Played("ends")

    @unless_emulated("the emulator uses CPU time of its own")
    def test_names_have_the_cpu_time_that_their_threads_read(self) -> None:
        self.agree(self.played, "burner", "sleeper", "late", "exits", "cancelled", "after")
        burnt = KNOWN["BURNERS"] * KNOWN["BURN_MS"] * MS
        self.assertGreater(self.played.rows["burner"]["usr"], burnt * (1 - SHARE))
        (process,) = self.played.report["processes"]
        for name, own in self.played.own.items():
            row = self.played.rows[name]
            self.assertGreaterEqual(row["wall_ns"], own.wall_ns, f"{name}: life")
            self.assertLess(row["wall_ns"], own.threads * process["duration_ns"])
            self.assertEqual(row["ended_threads"], own.threads)

    def test_states_add_up_to_the_life(self) -> None:
        self.add_up(self.played)
        self.assertEqual(
            [note for note in self.played.report["notes"] if "could not be" in note], []
        )

    def test_sleep_is_in_its_state(self) -> None:
        row = self.played.rows["sleeper"]
        slept = KNOWN["SLEEPERS"] * KNOWN["SLEEP_MS"] * MS
        self.assertGreaterEqual(row["sleep"], slept)
        self.assertEqual(row["waits"], KNOWN["SLEEPERS"])

    def test_time_before_the_first_lock_is_no_part_of_a_life(self) -> None:
        row = self.played.rows["late"]
        self.assertLess(row["usr"], KNOWN["LATE_MS"] * MS / 4)
        unseen = row["in_call"] + row["lat"]
        self.assertGreaterEqual(unseen, KNOWN["LATE_MS"] * MS * (1 - SHARE))

    def test_a_name_is_the_last_one(self) -> None:
        self.assertEqual(self.played.rows["after"]["threads"], 2)
        self.assertNotIn("before", self.played.rows)

    def test_threads_without_a_wait_are_in_the_cpu_time_of_the_process(self) -> None:
        self.assertNotIn("silent", self.played.rows)
        (process,) = self.played.report["processes"]
        self.near(process["cpu_ns"], self.played.process_ns, 1, "process")
        seen = sum(row["usr"] for row in self.played.rows.values())
        unseen = 2 * KNOWN["LATE_MS"] * MS  # also of the thread that computed before its first lock
        self.assertGreater(process["cpu_ns"] - seen, unseen)
        (text,) = [value for key, value in self.played.report["facts"] if key == "CPU time"]
        self.assertIn("are in no thread's USR", text)

    def test_the_text_names_them_with_their_number(self) -> None:
        self.assertIn("Threads by name", self.played.text)
        self.assertRegex(self.played.text, rf"(?m)^burner x{KNOWN['BURNERS']} ")
        self.assertRegex(self.played.text, "(?m)^exits ")


class Others(Case):
    def test_the_time_in_the_run_queue_is_that_of_the_kernel(self) -> None:
        played = Played("queue")
        self.agree(played, "burner")
        self.add_up(played)
        row, own = played.rows["burner"], played.own["burner"]
        self.assertGreater(own.queue_ns, 20 * MS, "they shared a processor")
        late = sum(row[state] for state in STATES)  # a thread may be late out of a wait, too
        self.assertGreater(late, own.queue_ns * (1 - SHARE) - own.threads * EACH_NS)
        later = row["wall_ns"] - own.wall_ns  # after the thread has read its own figures
        self.assertLess(row["lat"], own.queue_ns * (1 + SHARE) + own.threads * EACH_NS + later)

    def test_names_are_bounded_and_their_sums_are_not(self) -> None:
        played = Played("many")
        rows = {name: row for name, row in played.rows.items() if name != "thread_groups"}
        self.assertEqual(len(rows), KNOWN["GROUPS"] + 1)
        others = rows.pop("(others)")
        self.assertEqual(others["threads"], KNOWN["MANY"] - KNOWN["GROUPS"])
        self.assertEqual({row["threads"] for row in rows.values()}, {1})
        for figure in ("threads", "waits", "ended_threads"):
            total = sum(row[figure] for row in rows.values()) + others[figure]
            self.assertEqual(total, KNOWN["MANY"], figure)
        self.assertGreater(others["sleep"], 0)
        self.assertLess(others["missing_ns"], others["wall_ns"] * SHARE)

    @unless_emulated("the emulator uses CPU time of its own")
    def test_live_threads_have_the_figures_of_the_end(self) -> None:
        played = Played("live")
        self.agree(played, "burner", "waits", "computes")
        self.add_up(played)
        self.assertEqual(
            [played.rows[n]["ended_threads"] for n in ("burner", "waits", "computes")], [1, 0, 0]
        )
        threads = played.report["sections"]["threads"]
        self.assertNotIn(None, [row["usr_share"] for row in threads])

    @unless_emulated("the emulator uses CPU time of its own")
    def test_a_killed_process_says_that_it_left_no_figures_of_live_threads(self) -> None:
        played = Played("killed", status=-signal.SIGKILL)
        self.agree(played, "burner")
        self.assertIsNone(played.rows["computes"]["usr"])
        self.assertIsNone(played.rows["computes"]["usr_share"])
        self.assertIn("could not be split", " ".join(played.report["notes"]))
        (process,) = played.report["processes"]
        self.assertIsNone(process["cpu_ns"])

    def test_without_descriptors_only_the_run_queue_is_not_known(self) -> None:
        played = Played("poor")
        row = played.rows["poor"]
        self.assertGreater(row["usr"], KNOWN["BURN_MS"] * MS * (1 - SHARE))
        self.assertEqual(row["queueless"], 1)
        self.assertIn("run queue could not be read", " ".join(played.report["notes"]))

    def test_processes_are_added_up(self) -> None:
        played = Played("children", "--sum")
        row, own = played.rows["burner"], played.own["burner"]
        self.assertEqual(own.threads, KNOWN["BURNERS"] * KNOWN["CHILDREN"])
        self.agree(played, "burner")
        self.assertEqual(row["ended_threads"], own.threads)


if __name__ == "__main__":
    unittest.main(verbosity=2)
