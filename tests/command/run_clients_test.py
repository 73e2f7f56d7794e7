#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for clients differ from waits for answers. The oracle: the program's own clock."""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import here

from interposed import LIMIT, Source, environment

PROGRAM = Source("client_waits")
MS = 1_000_000
# The program reads its clock before and after all waits of a thread. So its time has the waits and,
# on a busy machine, the time in which the thread is held up around them, which is no wait.
CLOCKS = 1.01  # how far the two clocks may be apart
BEFORE_NS = 10 * MS
# The threads of the program by name, and whom each waits for.
FOR_CLIENTS = {
    *("read", "recv", "poll", "select", "epoll", "events", "accept", "forked", "forked-set"),
}
FOR_OTHERS = {"answer", "mixed-poll", "mixed-set", "pipe"}


def is_measured(state: int, lat: int, own: int) -> bool:
    """Whether that time in a state, and LAT with it, fit what the program measured."""
    return state <= own * CLOCKS and state + lat > own / 2 - BEFORE_NS


class Clients(unittest.TestCase):
    own: dict[str, int]  # ns by thread, as the program says
    states: dict[str, dict[str, int]]
    report: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(
                [PROGRAM.program],
                env=environment(Path(place)),
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=True,
            )
            said = here("report", "--all", "--json", place)
        assert said.returncode == 0, said.stderr
        cls.own = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
        cls.report = json.loads(said.stdout)
        cls.states = defaultdict(lambda: defaultdict(int))
        for row in cls.report["sections"]["groups"]:
            for state in ("accept", "io", "poll", "lat"):
                cls.states[row["name"]][state] += row[state]

    def test_every_way_was_played(self) -> None:
        self.assertEqual(set(self.own), FOR_CLIENTS | FOR_OTHERS)
        self.assertGreaterEqual(min(self.own.values()), PROGRAM.known["WAIT_MS"] * MS / 2)

    def test_waits_for_clients_have_the_time_that_the_program_measured(self) -> None:
        for name in FOR_CLIENTS:
            with self.subTest(way=name):
                found = self.states[name]
                self.assertEqual(found["io"] + found["poll"], 0)
                own = self.own[name]
                self.assertTrue(is_measured(found["accept"], found["lat"], own), f"{found} {own}")

    def test_waits_for_others_are_no_waits_for_clients(self) -> None:
        for name in FOR_OTHERS:
            with self.subTest(way=name):
                found = self.states[name]
                self.assertEqual(found["accept"], 0)
                waited, own = found["io"] + found["poll"], self.own[name]
                self.assertTrue(is_measured(waited, found["lat"], own), f"{found} {own}")

    def test_the_verdict_and_the_wait_sites_say_so(self) -> None:
        time = self.report["verdict"]["time"]
        self.assertGreater(time["clients"], time["I/O"])
        waits = self.report["sections"]["waits"]
        idle = {(row["kind"], row["object_name"] or ""): row["is_idle"] for row in waits}
        self.assertTrue(idle["read", "clients"])
        self.assertTrue(idle["epoll", "clients"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
