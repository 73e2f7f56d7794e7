# SPDX-License-Identifier: MIT
"""Wait for a recorder's writes. The kernel reports them, so nothing polls the file."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

import common  # noqa: F401 sets the package's path

from rouse.errors import RouseError
from rouse.store import recording

LIMIT_S = 60
IN_MODIFY = 2  # from linux/inotify.h
LIBC = ctypes.CDLL(None, use_errno=True)


def watch(folder: Path) -> int:
    """Return a descriptor that becomes readable when a file in the folder is written."""
    fd = LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0 or LIBC.inotify_add_watch(fd, os.fsencode(folder), IN_MODIFY) < 0:
        raise OSError(ctypes.get_errno(), f"inotify: {os.strerror(ctypes.get_errno())}")
    return int(fd)


def read(file: Path) -> recording.Recording | None:
    """Read the recording. Returns None if its recorder has only just begun."""
    try:
        return recording.read(file)
    except RouseError:
        return None


def await_recording(
    file: Path, is_enough: Callable[[recording.Recording], bool]
) -> recording.Recording:
    """Wait until the contents of the file suffice, and return them."""
    until = time.monotonic() + LIMIT_S
    fd = watch(file.parent)  # before the first look, so that every later write is reported
    try:
        while True:
            found = read(file)
            if found and is_enough(found):
                return found
            ready, _, _ = select.select([fd], [], [], max(until - time.monotonic(), 0))
            if not ready:
                snapshots = found.snapshots if found else "no"
                raise AssertionError(f"{snapshots} snapshots in {LIMIT_S} s are not enough")
            os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def await_snapshots(file: Path, count: int) -> recording.Recording:
    return await_recording(file, lambda found: found.snapshots >= count)
