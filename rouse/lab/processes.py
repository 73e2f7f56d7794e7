# SPDX-License-Identifier: MIT
"""Processes that an experiment starts: their descendants, their resources, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

STOP_S = 60
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stop(program: subprocess.Popen[bytes]) -> None:
    if program.poll() is None:
        program.send_signal(signal.SIGTERM)
    try:
        program.wait(STOP_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def tree(root: int) -> list[int]:
    """A process and all its descendants. The process itself comes first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                children.setdefault(int(fields(entry)[3]), []).append(int(entry.name))
    every, left = [], [root]
    while left:
        every += left
        left = [child for pid in left for child in children.get(pid, [])]
    return every


def ancestors(pid: int) -> list[int]:
    """The processes above a process: its parent comes first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        while (pid := int(fields(Path(f"/proc/{pid}"))[3])) > 0:
            found.append(pid)
    return found


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def fields(process: Path) -> list[str]:
    """The fields of /proc/PID/stat, from field 1 on. The second may contain blanks."""
    text = (process / "stat").read_text(encoding="utf-8", errors="replace")
    head, _, tail = text.rpartition(")")
    return [*head.split("(", 1), *tail.split()]
