#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/studies.py: the expected ticks, a tiny run, and pages that agree with their figures."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from drawing import reason_not_to

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "release"))
sys.path.insert(0, str(SOURCE / "bench"))
from tables import select, ticks  # noqa: E402

STUDIES = SOURCE / "docs" / "studies"
MADE = ("e1-select.md", "e1-select.svg", "e3-ticks.md", "e3-ticks.svg")


def studies(*arguments: str) -> None:
    command = [sys.executable, str(SOURCE / "bench" / "studies.py"), "--anyway", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)


def section(name: str) -> str:
    command = [str(SOURCE / "bench" / "run.sh"), "--build", str(BUILD), "--quick", "--no-peers"]
    done = subprocess.run(
        [*command, "--only", name], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Ticks(unittest.TestCase):
    def test_the_source_s_figures_are_reproduced(self) -> None:
        for timeout, calls, wake_ups in ((9, 10_000, 10_000), (11, 5_000, 5_000)):
            expected = ticks.expected(timeout, 100, ticks.SOURCE_LONG)
            self.assertEqual((expected.calls, expected.wake_ups), (calls, wake_ups))
        expected = ticks.expected(10, 100, ticks.SOURCE_LONG)
        self.assertAlmostEqual(expected.calls, 100 * 100 / 1.8)
        self.assertAlmostEqual(expected.wake_ups, 10_000)

    def test_the_source_s_timeline_is_reproduced(self) -> None:
        gaps = (9.9, 9.9, 9.9, 9.9, 10.2, 9.9, 9.9)
        woken = ticks.timeline(10, gaps)
        self.assertEqual([tick for tick, over in woken if over], [2, 4, 5, 7])
        self.assertEqual([tick for tick, over in woken if not over], [1, 3, 6])

    def test_the_timeline_and_the_rule_agree(self) -> None:
        for timeout in (5, 9, 10, 11, 20, 25):
            for long in (0.0, 1.0):
                gaps = [10.1 if long else 9.9] * 600
                calls = sum(over for _, over in ticks.timeline(timeout, gaps))
                expected = ticks.expected(timeout, 1, long).calls * 6  # 600 ticks
                self.assertLessEqual(abs(calls - expected), 1, (timeout, long))


class Steps(unittest.TestCase):
    def test_each_step_changes_one_switch_and_each_switch_stands_alone(self) -> None:
        words = list(select.rows().values())[: 2 * len(select.SWITCHES) + 1]
        steps, alone = words[: len(select.SWITCHES) + 1], words[len(select.SWITCHES) + 1 :]
        for one, next_one in itertools.pairwise(steps):
            self.assertEqual(sum(a != b for a, b in zip(one, next_one, strict=True)), 1)
        changed = set()
        for one in alone:
            differing = [a for a, b in zip(one, steps[-1], strict=True) if a != b]
            self.assertEqual(len(differing), 1)
            changed.add(differing[0])
        self.assertEqual(changed, {old for old, _, _ in select.SWITCHES.values()})


class Pages(unittest.TestCase):
    @unittest.skipIf(reason_not_to(), reason_not_to())
    def test_a_quick_run_makes_pages_and_pictures(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            studies("--quick", "--build", str(BUILD), "--out", folder)
            for name in MADE:
                made = (Path(folder) / name).read_text(encoding="utf-8")
                self.assertGreater(len(made), 1000, name)
                if name.endswith(".svg"):
                    self.assertTrue(ElementTree.fromstring(made).tag.endswith("svg"), name)

    @unittest.skipIf(reason_not_to(), reason_not_to())
    def test_pages_and_pictures_are_those_of_the_kept_figures(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            studies("--from", str(STUDIES / "select.json"), "--out", folder)
            for name in MADE:
                made = (Path(folder) / name).read_text(encoding="utf-8")
                self.assertEqual(made, (STUDIES / name).read_text(encoding="utf-8"), name)

    def test_precise_and_exact_rows_have_no_useless_wake_ups(self) -> None:
        text = section("select")
        rows = text.split("## select(): wake-ups of 1,000 calls")[1].split("\n## ")[0]
        cells = {
            row[0].strip(): [cell.strip() for cell in row[1:]]
            for row in (line.strip("|").split("|") for line in rows.splitlines() if "|" in line)
        }
        self.assertEqual(cells[select.NEW_ROW][1:4], ["0", "0", "0"])
        self.assertNotEqual(cells[select.OLD][2], "0")

    def test_the_table_of_descriptor_tables(self) -> None:
        text = section("fdtable")
        for title in ("reader-writer lock, 1", "look again, 2", "rouse: chunks, 2"):
            self.assertIn(title, text)


if __name__ == "__main__":
    if not (BUILD / "bench" / "rouse-bench").exists():
        print(f"not run: no rouse-bench in {BUILD}")
        sys.exit(77)
    unittest.main(verbosity=2)
