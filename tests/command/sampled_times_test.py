#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reports of a program with short turns: as in the mode exact, and as by its own clock."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, here, next_line, start

PAIRS = 12
Row = dict[str, Any]


class Sampled(unittest.TestCase):
    program: subprocess.Popen[str]

    def run_in(self, mode: str) -> tuple[dict[str, list[Row]], list[int], str]:
        """The report's sections, how long each pair spun by its own clock, and the text."""
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        folder = Path(place.name)
        folder.chmod(0o700)
        own = {"ROUSE_OBS_DIR": str(folder)}
        self.program = program = start(
            self, FIXTURES / "short_turns", ROUSE_OBS=mode, ROUSE_WORKERS="1", **own
        )
        spun = next_line(program).split()
        self.assertEqual(spun[0], "spun_ns")
        self.assertEqual(next_line(program), "ready\n")
        done = here("report", "--json", "--all", str(program.pid), **own)
        self.assertEqual(done.returncode, 0, done.stderr)
        text = here("report", "--full", str(program.pid), **own)
        self.assertEqual(text.returncode, 0, text.stderr)
        return json.loads(done.stdout)["sections"], [int(ns) for ns in spun[1:]], text.stdout

    def of_worker(self, sections: dict[str, list[Row]]) -> tuple[int, int]:
        """How long the kernel ran the only worker, which is idle now, and queued it."""
        (tid,) = (row["tid"] for row in sections["workers"] if row["is_worker"])
        words = Path(f"/proc/{self.program.pid}/task/{tid}/schedstat").read_text("ascii").split()
        return int(words[0]), int(words[1])

    @staticmethod
    def waits(sections: dict[str, list[Row]]) -> dict[str, float]:
        """The share that each site has in all waits for semaphores."""
        rows = [row for row in sections["wakes"] if row["kind"] == "semaphore"]
        found: dict[str, float] = {}
        for row in rows:
            name = re.match(r"\w+", row["wait_label"])
            assert name, row
            found[name[0]] = found.get(name[0], 0.0) + row["wait_ns"] + row["late_ns"]
        whole = sum(found.values())
        return {name: ns / whole for name, ns in found.items()}

    def test_the_ten_largest_are_those_of_exact_within_5_percent(self) -> None:
        exact, _, exact_text = self.run_in("exact")
        sampled, _, text = self.run_in("counted")
        one, other = self.waits(exact), self.waits(sampled)
        self.assertEqual(one.keys(), other.keys())
        largest = sorted(one, key=lambda name: -one[name])[:10]
        off = sorted(abs(other[name] / one[name] - 1) for name in largest)
        # The standard error of each is 1.6 %.
        self.assertLess(off[7], 0.05, off)
        self.assertLess(off[9], 0.1, off)
        self.assertNotIn("estimates in part", exact_text)
        said = re.search(
            r"timed ([\d,]+) of ([\d,]+) waits, .* within ([\d.]+) %", " ".join(text.split())
        )
        assert said, text
        self.assertLess(int(said[1].replace(",", "")) * 2, int(said[2].replace(",", "")))
        self.assertLess(float(said[3]), 10)

    def test_the_states_are_the_life_and_running_is_that_of_its_own_clock(self) -> None:
        sections, spun, _ = self.run_in("counted")
        (group,) = (row for row in sections["groups"] if row["ended_threads"] == 2 * PAIRS)
        self.assertLess(group["missing_share"], 0.001)
        ran_ns, queued_ns = self.of_worker(sections)
        figures = f"usr {group['usr']}, spun {sum(spun)}, ran {ran_ns}, queued {queued_ns}"
        # A worker runs turns and switches. Its own clock also ran while it was preempted.
        self.assertLess(abs(group["usr"] / ran_ns - 1), 0.1, figures)
        self.assertGreater(group["usr"] + queued_ns, 0.95 * sum(spun), figures)


if __name__ == "__main__":
    unittest.main()
