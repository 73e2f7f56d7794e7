#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""emulated.py NAME | --others NAME... - a test of the interposer on AArch64 programs.

The test is tests/command/NAME_test.py, run unchanged by this machine's Python, on the programs and
the library of the build $ROUSE_BUILD. The kernel starts qemu-user for each of them. --others prints
why tests of the interposer that are not among the names are left out, and fails if one has no
reason.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCE = FOLDER.parents[1]
QEMU = SOURCE / "tools" / "qemu.sh"
VENV = SOURCE / "build" / "venv" / "bin" / "python"
# The emulator itself uses locks. A thread that sleeps for one has not reached its wait yet, so a
# scene may fail by chance.
TRIES = 4
OWN_SECONDS = 400  # of one try

HOST = "its programs are of this machine, or start one that is"
REPORTS = "what it checks is made from a recording, on any machine"
LEFT_OUT = {
    "accept": "an emulator exceeds its time limits",
    "compare": REPORTS,
    "cpu_samples": "the kernel's samples are of the emulator",
    "cpu_samples_user": "the kernel's samples are of the emulator",
    "findings": "an emulator's speed is not that of the planted faults",
    "perf_map": "the kernel's samples are of the emulator",
    "query": REPORTS,
    "report_pictures": REPORTS,
    "report_schema": REPORTS,
    "report_screen": REPORTS,
    "run": HOST,
    "run_clients": "an emulated program reads its clock too long after a call",
    "run_cxx_sites": "the compiler makes programs of this machine",
    "run_delay": "the emulator's /proc/self/exe is the emulator",
    "run_empty_report": HOST,
    "run_ends": HOST,
    "run_killed": HOST,
    "run_live": "the kernel has the emulator's command line, not the program's",
    "run_locked_memory": "the emulator does not say which of the program's memory is locked",
    "run_memory_limit": "a limit of address space or files is the emulator's too",
    "run_python": HOST,
    "run_sanitized": "the sanitizers do not run in an emulator",
    "run_seccomp": "the emulator has no seccomp",
    "run_unexplained": HOST,
    "run_unrecorded": "the emulator's madvise has no effect, so a full disk is not seen",
}


def why_not() -> str:
    if not VENV.exists():
        return "the packages of the command are not in build/venv"
    if not shutil.which("qemu-aarch64-static"):
        return "qemu-aarch64-static is not installed (Debian: qemu-user-static)"
    done = subprocess.run([QEMU, "true"], capture_output=True, text=True)
    return done.stdout.strip().removeprefix("not run: ") if done.returncode == 77 else ""


def run(name: str) -> int:
    """Return 0, 77 if the test was not run, or 1. Prints what the last try did."""
    script = FOLDER / f"{name}_test.py"
    for _ in range(TRIES):
        done = subprocess.run(
            [QEMU, VENV, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=OWN_SECONDS,
            cwd=SOURCE,
        )
        if done.returncode in (0, 77):
            break
    print(done.stdout, end="")
    return done.returncode if done.returncode in (0, 77) else 1


def others(names: list[str]) -> int:
    """Print the reasons of tests of the interposer that are left out."""
    status = 0
    for script in sorted(FOLDER.glob("*_test.py")):
        name = script.stem.removesuffix("_test")
        uses = re.search(r"^from (interposed|run_case) import", script.read_text(), re.MULTILINE)
        if name in names or not uses:
            if name in LEFT_OUT:
                print(f"{script.name}: has a reason to be left out, but is not left out")
                status = 1
        elif name in LEFT_OUT:
            print(f"not run: {script.name}: {LEFT_OUT[name]}")
        else:
            print(f"{script.name}: is left out without a reason")
            status = 1
    return status


def main() -> int:
    if sys.argv[1] == "--others":
        return others(sys.argv[2:])
    reason = why_not()
    if reason:
        print(f"not run: {reason}")
        return 77
    return run(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
