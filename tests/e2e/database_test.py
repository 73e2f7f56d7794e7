#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""demos/database.py on real databases: its figures are consistent, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
PYTHON = SOURCE / "build" / "venv" / "bin" / "python"
LIBRARY = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check")) / "preload"
CLIENTS, PROFILED = 2, 4
PLACE = "rouse-demo-"


def reason() -> str:
    for name in ("sysbench", "mariadbd"):
        if not shutil.which(name) and not Path(f"/usr/sbin/{name}").exists():
            return f"{name} is not installed (make check-all installs it)"
    if not PYTHON.exists():
        return "the packages of the command are not in build/venv"
    if not (LIBRARY / "librouse-preload.so").exists():
        return "there is no librouse-preload.so in a build with sanitizers"
    return ""


def postgres_can_read() -> bool:
    """Whether PostgreSQL's user, who is not the user of this process, can read the checkout."""
    if os.getuid():
        return True
    words = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "test")
    needed = (("-r", SOURCE / "rouse" / "__init__.py"), ("-x", PYTHON), ("-r", LIBRARY))
    return not any(subprocess.run([*words, flag, path]).returncode for flag, path in needed)


class Databases(unittest.TestCase):
    def demonstrated(self, server: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)  # PostgreSQL runs as another user
            file = Path(place) / "figures.json"
            done = subprocess.run(
                [
                    *(PYTHON, SOURCE / "demos" / "database.py", server, "--json", file),
                    *("--clients", str(CLIENTS), "--profile", str(PROFILED), "--seconds", "1"),
                ],
                capture_output=True,
                text=True,
                timeout=300,
                env={
                    **os.environ,
                    "ROUSE_PRELOAD": str(LIBRARY / "librouse-preload.so"),
                    "TMPDIR": place,
                },
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            self.assertEqual(list(Path(place).glob(f"{PLACE}*")), [])
        self.assertIn("| clients |", done.stdout)
        (row,) = found["curve"]
        self.assertEqual(row["clients"], CLIENTS)
        self.assertGreater(row["per_s"], 1)
        self.assertGreater(row["user_us"] + row["system_us"], 0)
        self.assertGreater(row["voluntary"], 0)
        profile: dict[str, Any]
        (profile,) = found["profiles"]
        verdicts = profile["totals"]
        self.assertLessEqual(verdicts["useful"] + verdicts["false_"], verdicts["wakes"])
        locks = sum(row["waits"] for row in profile["locks"])
        self.assertEqual(locks, verdicts["lock_waits"])
        return profile

    def test_mariadb(self) -> None:
        profile = self.demonstrated("mariadb")
        self.assertEqual(profile["processes"], 1)
        self.assertGreater(profile["kinds"]["poll"]["times"], PROFILED)
        self.assertGreater(profile["kinds"]["condition"]["times"], 0)

    @unittest.skipUnless(
        list(Path("/usr/lib/postgresql").glob("*/bin/postgres")), "PostgreSQL is not installed"
    )
    @unittest.skipIf(os.getuid() == 0 and not shutil.which("setpriv"), "setpriv is not installed")
    def test_postgresql(self) -> None:
        if not postgres_can_read():
            print(f"not run: the user postgres cannot read {SOURCE}", flush=True)
            self.skipTest("another user cannot read this checkout")
        profile = self.demonstrated("postgresql")
        self.assertGreater(profile["processes"], PROFILED)
        self.assertGreater(profile["kinds"]["epoll"]["times"], PROFILED)


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
