#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Abseil's own tests of its locks and barriers pass under `rouse run` as without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
VENV = SOURCE / "build" / "venv" / "bin" / "python"
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
LIBRARY = BUILD / "preload" / "librouse-preload.so"
ABSEIL = SOURCE / "build" / "abseil"  # tools/setup.sh check-all unpacks it
TESTS = ABSEIL / "absl" / "synchronization"
PACKAGES = ("absl_synchronization", "gmock_main", "gmock", "gtest")
# A test that failed only under `rouse run` is repeated, since some have time limits.
TRIES = 3
SECONDS = 400  # for one run of all tests
Outcome = dict[str, str]


def flags() -> list[str]:
    """Flags for the compiler and the linker. Empty if something is missing."""
    words = ["pkg-config", "--cflags", "--libs", *PACKAGES]
    if not shutil.which("pkg-config"):
        return []
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def reason() -> str:
    if not TESTS.is_dir():
        return (
            "abseil's tests are not in build/abseil: tools/setup.sh check-all could not fetch them"
        )
    if not shutil.which("g++") or not flags():
        return "g++, abseil or googletest is not installed (Debian: g++ libabsl-dev libgmock-dev)"
    if not VENV.exists():
        return "the packages of the command are not in build/venv"
    if not LIBRARY.exists():
        return "a build with sanitizers has no librouse-preload.so"
    return ""


def sources() -> list[Path]:
    """The test sources that use googletest."""
    every = sorted(TESTS.rglob("*_test.cc"))
    return [file for file in every if "int main" not in file.read_text(encoding="utf-8")]


def build(folder: Path) -> Path:
    """Build one program of all tests."""

    def compiled(file: Path) -> Path:
        made = folder / f"{file.stem}.o"
        words = ["g++", "-O1", "-w", *flags(), "-c", "-o", str(made), str(file)]
        subprocess.run(words, check=True, timeout=300)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources()))
    program = folder / "abseil_tests"
    subprocess.run(["g++", "-o", program, *objects, *flags()], check=True, timeout=300)
    return program


class Abseil(unittest.TestCase):
    folder: Path
    program: Path

    @classmethod
    def setUpClass(cls) -> None:
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.folder = Path(place.name)
        cls.program = build(cls.folder)

    def run_once(self, before: list[str], pattern: str) -> tuple[Outcome, str]:
        """The result of each test. If a test ended the program, only its name and result."""
        file = self.folder / "outcome.json"
        file.unlink(missing_ok=True)
        done = subprocess.run(
            [*before, self.program, f"--gtest_output=json:{file}", f"--gtest_filter={pattern}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
        )
        if not file.exists():
            begun = re.findall(r"^\[ RUN +\] (\S+)$", done.stdout, re.MULTILINE)
            self.assertTrue(begun, f"{done.returncode}: {done.stdout[-2000:]}{done.stderr}")
            print(f"{before[:1]} {done.returncode}: {begun[-1]}: {done.stderr[-500:]}")
            return {begun[-1]: "FAILED"}, begun[-1]
        found: Outcome = {}
        for suite in json.loads(file.read_text(encoding="utf-8"))["testsuites"]:
            for test in suite["testsuite"]:
                end = "FAILED" if test.get("failures") else test["result"]
                found[f"{test['classname']}.{test['name']}"] = end
        self.assertEqual(done.returncode, int("FAILED" in found.values()), done.stderr)
        return found, ""

    def outcome(self, before: list[str], pattern: str = "*") -> Outcome:
        """The result of each test. If one ends the program, the others run again without it."""
        ended: Outcome = {}
        while True:
            found, last = self.run_once(before, ":".join([f"{pattern}-", *ended]))
            ended.update(found)
            if not last or pattern == last:
                return ended

    def agrees(self, ours: list[str], name: str, end: str) -> bool:
        """Whether a repeated test ends alike. Some exceed their time limit on a busy machine."""
        for _ in range(TRIES):
            if self.outcome(ours, name)[name] == end or self.outcome([], name)[name] != end:
                return True
        return False

    def test_the_same_tests_pass_and_their_waits_are_recorded(self) -> None:
        file = self.folder / "report.json"
        ours = [str(VENV), "-m", "rouse", "run", "--json", "-o", str(file), "--"]
        without, with_us = self.outcome([]), self.outcome(ours)
        report: Any = json.loads(file.read_text(encoding="utf-8"))
        self.assertGreater(len(without), len(sources()))
        self.assertEqual(set(with_us), set(without))
        for name, end in with_us.items():
            if end == without[name] or without[name] == "FAILED":
                continue
            self.assertTrue(self.agrees(ours, name, without[name]), f"{name}: {end} with us")
        kinds = {row["kind"] for row in report["sections"]["wakes"] if row["useful"]}
        self.assertIn("futex", kinds)
        self.assertGreater(sum(row["useful"] for row in report["sections"]["totals"]), 0)


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
