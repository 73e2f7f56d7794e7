#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CPython's own tests of threads, queues and sockets pass under `rouse run` as without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
VENV = SOURCE / "build" / "venv" / "bin" / "python"
LIBRARY = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check")) / "preload"
MODULES = ("test.test_queue", "test.test_threading", "test.test_socket")
MODULE_S = 600  # limit for one module, which takes two minutes at most
# A test that failed only under `rouse run` is repeated, since some have time limits.
TRIES = 3
RUNNER = """
import io, json, sys, unittest
def flat(suite):
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else (test,)
every = flat(unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:]))
# A virtual machine without its own VSOCK waits for ever in these.
chosen = [test for test in every if "VSOCK" not in test.id()]
result = unittest.TextTestRunner(io.StringIO()).run(unittest.TestSuite(chosen))
names = lambda pairs: sorted({test.id() for test, _ in pairs})
with open(sys.argv[1], "w") as file:
    json.dump({"run": result.testsRun, "skipped": names(result.skipped),
               "failed": names(result.failures + result.errors)}, file)
"""


def pythons() -> list[Path]:
    """The interpreters that include their tests, this one first."""
    versions = sorted((Path.home() / ".pyenv" / "versions").glob("3.1*/bin/python3"))
    found = []
    for python in (Path(sys.executable).resolve(), Path("/usr/bin/python3"), *versions):
        words: list[str | Path] = [
            python,
            "-c",
            "import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))",
        ]
        if (
            python.exists()
            and not subprocess.run([*words, MODULES[0]], capture_output=True).returncode
        ):
            found.append(python)
    return found


def reason() -> str:
    if not pythons():
        return (
            f"no Python has its tests (Debian: libpython{sysconfig.get_python_version()}-testsuite)"
        )
    if not VENV.exists():
        return "the packages of the command are not in build/venv"
    if not (LIBRARY / "librouse-preload.so").exists():
        return "there is no librouse-preload.so in a build with sanitizers"
    return ""


class CPython(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.runner = self.folder / "runner.py"
        self.runner.write_text(RUNNER, encoding="utf-8")

    def outcome(self, before: list[str], *names: str) -> Any:
        file = self.folder / "outcome.json"
        file.unlink(missing_ok=True)
        done = subprocess.run(
            [*before, str(pythons()[0]), str(self.runner), str(file), *names],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=MODULE_S,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "ROUSE_PRELOAD": str(LIBRARY / "librouse-preload.so"),
            },
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(file.read_text(encoding="utf-8"))

    def test_the_same_tests_pass(self) -> None:
        report = self.folder / "report.json"
        ours = [str(VENV), "-m", "rouse", "run", "--json", "-o", str(report), "--"]
        alone = ["env", "-u", "PYTHONPATH"]
        ours += alone
        for module in MODULES:
            without, with_us = self.outcome(alone, module), self.outcome(ours, module)
            worse = set(with_us["failed"]) - set(without["failed"])
            for name in sorted(worse):
                tries = (self.outcome(ours, name)["failed"] for _ in range(TRIES))
                self.assertTrue(
                    any(not failed for failed in tries), f"{name} fails under rouse run"
                )
            for what in ("run", "skipped"):
                self.assertEqual(with_us[what], without[what], f"{module}: {what}")
            totals = json.loads(report.read_text(encoding="utf-8"))["sections"]["totals"]
            self.assertGreater(sum(row["wakes"] for row in totals), 0)


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
