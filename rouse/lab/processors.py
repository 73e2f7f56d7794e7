# SPDX-License-Identifier: MIT
"""A part of this machine's processors for a program: some of them, or a share of all their time.

A whole number is an affinity (taskset). Any other number is a quota of the kernel, which a control
group has: version 2 (cpu.max) or version 1 (cpu.cfs_quota_us). Only root can make one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rouse.errors import RouseError

GROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10_000  # a program that has used its quota waits for less than this
ENTER = 'echo $$ >"$0" && exec "$@"'
EMPTY_S = 10  # until the last process of a group has ended


def quota_files(group: Path, processors: float) -> list[tuple[Path, str]]:
    """Return what limits a group, for the version of control groups that it belongs to."""
    quota_us = round(processors * PERIOD_US)
    if (group / "cpu.max").exists():
        return [(group / "cpu.max", f"{quota_us} {PERIOD_US}")]
    return [
        (group / "cpu.cfs_period_us", str(PERIOD_US)),
        (group / "cpu.cfs_quota_us", str(quota_us)),
    ]


def parent(root: Path) -> Path:
    """Return the group below which groups with a quota can be made."""
    for folder in (root / "cpu", root / "cpu,cpuacct"):
        if (folder / "cgroup.procs").exists():
            return folder
    return root


def remove(group: Path) -> None:
    """Remove a group as soon as its processes have ended. One that has some later stays."""
    until = time.monotonic() + EMPTY_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def limited(processors: float, root: Path = GROUPS) -> Iterator[Sequence[str]]:
    """Yield the beginning of a command, whose program then has so many processors.

    Raises RouseError if there are not as many, or if no quota can be set.
    """
    available = sorted(os.sched_getaffinity(0))
    if processors > len(available):
        raise RouseError(f"{processors:g} processors: this machine has {len(available)}")
    if processors.is_integer():
        yield ["taskset", "-c", ",".join(map(str, available[: int(processors)]))]
        return
    group = parent(root) / f"rouse-lab-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        why = f"a quota of {processors:g} processors needs a control group"
        raise RouseError(f"{why}: {group}: {error.strerror}", "run it as root") from error
    try:
        try:
            for file, text in quota_files(group, processors):
                file.write_text(text)
        except OSError as error:
            raise RouseError(f"{error.filename}: {error.strerror}; no quota is set") from error
        yield ["sh", "-c", ENTER, str(group / "cgroup.procs")]
    finally:
        remove(group)
