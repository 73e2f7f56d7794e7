# SPDX-License-Identifier: MIT
"""The machine and the versions that were measured."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

QUIET_LOAD = 0.3


def said_by(*command: str) -> str:
    """The first line that a command prints to either stream. Empty if the command is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return next(iter((done.stdout + done.stderr).splitlines()), "").strip()


def field_of(path: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "?"


def available_bytes() -> int:
    return int(field_of("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def processor() -> str:
    try:
        return field_of("/proc/cpuinfo", "model name")
    except OSError:
        return "?"


def governor() -> str:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text(encoding="utf-8").strip() if path.exists() else "not visible here"


def distribution() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", "?")


def add_anyway(parser: argparse.ArgumentParser) -> None:
    text = f"write figures though the load is {QUIET_LOAD} or more; the page says so"
    parser.add_argument("--anyway", action="store_true", help=text)


def check_quiet(is_written: bool, is_anyway: bool) -> float:
    """Return the load. End the program if it would write figures of a machine that others use."""
    load = os.getloadavg()[0]
    if is_written and not is_anyway and load >= QUIET_LOAD:
        sys.exit(
            f"{Path(sys.argv[0]).name}: the load is {load:.2f}, so that figures would be wrong; "
            f"wait until it is below {QUIET_LOAD}, or give --anyway"
        )
    return load


def describe(root: Path, version: str, load: float) -> list[tuple[str, str]]:
    """Return the facts for a page. load: before anything was built for the measurement."""
    memory = int(field_of("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)
    commit = said_by("git", "-C", str(root), "describe", "--always", "--dirty")
    quiet = "" if load < QUIET_LOAD else "; the machine was busy, so times are rough"
    return [
        ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("rouse", f"{version}, commit {commit}" if commit else version),
        (
            "machine",
            f"{processor()}, {len(os.sched_getaffinity(0))} processors, {memory:.0f} GiB",
        ),
        ("system", f"{distribution()}, Linux {platform.release()}, {platform.machine()}"),
        ("compiler", said_by("gcc", "--version")),
        ("frequency governor", governor()),
        ("load at the start", f"{load:.2f}{quiet}"),
    ]
