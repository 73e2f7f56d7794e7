#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each mutant of tests/mutants applies to the current sources, and its tests exist."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

import mutants  # noqa: E402


def has_case(test: str) -> bool:
    """Whether tests/command or tests/e2e has FILE.py:CLASS.CASE."""
    case = test.partition(":")[2]
    path = ROOT / mutants.script_of(test)
    if not case or not path.is_file():
        return False
    group, _, name = case.partition(".")
    _, begin, rest = path.read_text().partition(f"\nclass {group}(")
    return bool(begin) and f"    def {name}(" in rest.partition("\nclass ")[0]


class Mutants(unittest.TestCase):
    def test_each_applies_once(self) -> None:
        for mutant in mutants.load(mutants.LISTS):
            with self.subTest(mutant.name):
                text = (ROOT / mutant.file).read_text()
                self.assertNotEqual(mutants.apply(mutant, text), text)

    def test_each_has_tests_that_exist(self) -> None:
        known = {
            p.stem
            for kind in ("unit", "stress", "fault")
            for p in (ROOT / "tests" / kind).rglob("*.c*")
        }
        for mutant in mutants.load(mutants.LISTS):
            with self.subTest(mutant.name):
                for test in mutant.tests:
                    self.assertTrue(test in known or has_case(test), test)

    def test_each_has_a_model_that_exists(self) -> None:
        listed = subprocess.run(
            [sys.executable, str(mutants.MODELS), "--list"],
            capture_output=True,
            text=True,
            check=True,
        )
        known = set(listed.stdout.splitlines())
        for mutant in mutants.load(mutants.LISTS):
            if mutant.model:
                with self.subTest(mutant.name):
                    self.assertIn(mutant.model, known)

    def test_one_kind_of_witness_is_given(self) -> None:
        with self.assertRaisesRegex(ValueError, "give tests"):
            mutants.Mutant("x", "file.c", "old", "new")
        with self.assertRaisesRegex(ValueError, "give tests"):
            mutants.Mutant("x", "file.c", "old", "new", ("t",), "section:NO_F1")

    def test_a_text_that_is_gone_is_reported(self) -> None:
        mutant = mutants.Mutant("x", "file.c", "gone", "new", ("t",))
        with self.assertRaisesRegex(ValueError, "0 times"):
            mutants.apply(mutant, "here")


if __name__ == "__main__":
    unittest.main(verbosity=2)
