#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command with the lowest versions of the packages that pyproject.toml allows.

Its output is that of the versions in build/venv, byte for byte.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

from installed import BUILD, SOURCE, UNREACHED, run, skip_without

PROGRAM = BUILD / "tests/findings/bank"
LIBRARY = BUILD / "preload/librouse-preload.so"
FORMATS = ("text", "html", "json", "pprof", "folded", "perfetto", "prometheus", "kernel-style")
LIMIT_S = 500

folder: Path
lowest: Path


def lowest_versions() -> list[str]:
    """The packages of the command, each with the first version of its range."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text("utf-8"))["project"]
    # A range that names no patch begins with whichever of its patches the index has.
    return [need.replace(">=", "==") + ".*" for need in project["dependencies"]]


def setUpModule() -> None:
    global folder, lowest
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    run("python3.11", "-m", "venv", folder / "venv")
    done = subprocess.run(
        [folder / "venv/bin/pip", "install", "--quiet", "--retries", "1", *lowest_versions()],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode and re.search(UNREACHED, done.stderr):
        raise unittest.SkipTest("not run: pip reaches no index of packages")
    assert done.returncode == 0, done.stderr
    lowest = folder / "venv/bin/python"


class LowestVersions(unittest.TestCase):
    def rouse(self, python: Path, *words: str | Path) -> str:
        environment = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
        environment["ROUSE_PRELOAD"] = str(LIBRARY)
        return run(python, "-m", "rouse", *words, env=environment, timeout=LIMIT_S)

    def test_every_format_is_the_same(self) -> None:
        recording = folder / "recording"
        command = ("run", "--trace", "--keep", recording, "-o", folder / "said")
        self.rouse(lowest, *command, "--", PROGRAM, "0.3")
        self.assertIn("post bank.cpp:", (folder / "said").read_text("utf-8"))
        for form in FORMATS:
            with self.subTest(form=form):
                made = []
                for name, python in (("low", lowest), ("new", SOURCE / "build/venv/bin/python")):
                    self.rouse(python, "report", recording, "-f", form, "-o", folder / name)
                    data = (folder / name).read_bytes()
                    made.append(gzip.decompress(data) if form == "pprof" else data)
                self.assertTrue(made[0])
                self.assertEqual(made[0], made[1])

    def test_other_commands_run(self) -> None:
        recording = folder / "other"
        self.rouse(lowest, "run", "--keep", recording, "-o", folder / "said", "--", PROGRAM, "0.1")
        self.assertIn("main::bank", self.rouse(lowest, "compare", recording, recording))
        self.assertIn(
            "\n", self.rouse(lowest, "query", "SELECT count(*) FROM wait_sites", recording)
        )
        self.assertIn("main::bank", self.rouse(lowest, "model", "whatif", "--onion", recording))


if __name__ == "__main__":
    skip_without("python3.11")
    for needed in (SOURCE / "build/venv/bin/python", PROGRAM, LIBRARY):
        if not needed.exists():
            print(f"not run: {needed} is not there")
            raise SystemExit(77)
    unittest.main(verbosity=2)
