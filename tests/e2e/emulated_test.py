#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""AArch64 programs with known waits are recorded correctly under qemu-user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
THERE = BUILD.parent / "aarch64"  # tools/configure.sh aarch64
QEMU = SOURCE / "tools" / "qemu.sh"
VENV = SOURCE / "build" / "venv" / "bin" / "python"
TESTS = ("waits", "futex", "call_stacks", "init_sites", "holds", "return_values")
# The emulator itself uses locks. A thread that sleeps for one has not reached its wait yet, so a
# scene may fail by chance.
TRIES = 4
SECONDS = 400  # per test


def reason() -> str:
    if not (THERE / "build.ninja").exists():
        return "build/aarch64 is not configured (tools/configure.sh aarch64)"
    if not VENV.exists():
        return "the packages of the command are not in build/venv"
    if not shutil.which("qemu-aarch64-static"):
        return "qemu-aarch64-static is not installed (Debian: qemu-user-static)"
    done = subprocess.run([QEMU, "true"], capture_output=True, text=True)
    return done.stdout.strip().removeprefix("not run: ") if done.returncode == 77 else ""


class Emulated(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        words = ["ninja", "-C", str(THERE), "-j", "2", "command_programs"]
        subprocess.run(words, check=True, capture_output=True, timeout=900)

    def test_waits_known_by_construction_are_recorded(self) -> None:
        for name in TESTS:
            script = SOURCE / "tests" / "command" / f"run_{name}_test.py"
            said = ""
            for _ in range(TRIES):
                done = subprocess.run(
                    [QEMU, VENV, script],
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    cwd=SOURCE,
                    env={**os.environ, "ROUSE_BUILD": str(THERE), "ROUSE_SOURCE": str(SOURCE)},
                )
                said = done.stdout + done.stderr
                if done.returncode == 0:
                    left_out = re.findall(r"^not run: .*$", done.stdout, re.MULTILINE)
                    print("".join(f"{line}\n" for line in left_out), end="")
                    break
            else:
                self.fail(f"{script.name}: {said[-3000:]}")


if __name__ == "__main__":
    if reason():
        print(f"not run: {reason()}")
        sys.exit(77)
    unittest.main(verbosity=2)
