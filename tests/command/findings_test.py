#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The verdict of `rouse run` on the programs of tests/findings: each planted fault, and no other.

The gain of each repair is measured by the programs themselves, without rouse. The verdict's upper
bound must not be below it, and its estimate must be near it.
"""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from common import BUILD, COMMAND, SOURCE, main_unless

import planted
from interposed import LIBRARY
from planted import Finding, Gain, Planted

PROGRAMS = BUILD / "tests" / "findings"
SECONDS = 0.6
ROUNDS = 3
NEAR = 1.3  # ratio of an estimate to the measured gain, or the reverse


class Verdict(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(dir=BUILD)  # on a disk, since journal calls fsync
        self.addCleanup(place.cleanup)
        self.scratch = Path(place.name)

    def found(self, program: Planted) -> list[Finding]:
        """The findings about a run. Skips the rest of the test where there is no verdict."""
        report = planted.report(
            COMMAND,
            PROGRAMS / program.name,
            str(SECONDS),
            scratch=self.scratch,
            ROUSE_PRELOAD=str(LIBRARY),
            PYTHONPATH=str(SOURCE),
        )
        found = planted.findings(report)
        if found is None:
            self.skipTest("not run: the report has no verdict")
        return found

    def measured(self, program: Planted) -> Gain:
        return planted.gain(PROGRAMS / program.name, SECONDS, ROUNDS, self.scratch)

    def check_gain(self, program: Planted, first: Finding, measured: Gain) -> None:
        """A bound that even the least ratio exceeds is wrong on a noisy machine too."""
        most, estimate = first["gain_most"], first["gain"]
        figures = f"measured {measured}, at most {most:.2f}, estimate {estimate:.2f}"
        print(f"{program.name}: {figures}", flush=True)
        if measured.is_noisy:
            print("not run: the machine is too noisy to judge the estimate", flush=True)
            self.assertGreaterEqual(most, min(measured.ratios), figures)
            return
        self.assertGreaterEqual(most, measured.median, figures)
        self.assertLessEqual(estimate, NEAR * measured.median, figures)
        self.assertGreaterEqual(estimate, measured.median / NEAR, figures)


def test_of(program: Planted) -> None:
    """Add the tests of a program, so that each fails by itself."""

    def test_finding(self: Verdict) -> None:
        found = self.found(program)
        self.assertEqual(program.differences(found), [])

    def test_gain(self: Verdict) -> None:
        measured = self.measured(program)
        print(f"{program.name}: measured {measured}", flush=True)
        if not program.predicts:
            return
        found = self.found(program)
        self.assertTrue(found)
        self.check_gain(program, found[0], measured)

    what = "healthy" if program.healthy else "finding"
    setattr(Verdict, f"test_{what}_{program.name}", test_finding)
    if not program.healthy:
        setattr(Verdict, f"test_gain_{program.name}", test_gain)


for each in planted.programs():
    test_of(each)


class Programs(unittest.TestCase):
    def test_every_source_has_an_expected_finding(self) -> None:
        sources = {path.stem for path in planted.FOLDER.glob("*.c*")}
        self.assertEqual({program.name for program in planted.programs()}, sources)

    def test_functions_named_in_the_table_are_in_the_source(self) -> None:
        for program in planted.programs():
            (source,) = planted.FOLDER.glob(f"{program.name}.c*")
            text = source.read_text(encoding="utf-8")
            for label in filter(None, (program.waiter, program.holder, program.object)):
                self.assertIn(label.rpartition("::")[2], text, program.name)


if __name__ == "__main__":
    main_unless("")
