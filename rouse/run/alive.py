# SPDX-License-Identifier: MIT
"""Note in recordings until when their processes lived.

A process that is killed, or that leaves by _exit(), does not close its recording. Its last event
may lie far back: a thread that hangs has none. So `rouse run` writes the time into the head of each
recording, again and again while the process lives, and at the end of the program that it started.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rouse.errors import RouseError
from rouse.store import decode, find, layout

EVERY_S = 1.0  # the error of a time of death, unless `rouse run` is the parent
COST_MOST = 0.01  # share of a processor
AT = layout.offset_of(layout.HEAD, "alive_ns")


def write(path: Path, now_ns: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(fd, now_ns.to_bytes(8, "little"), AT)
    finally:
        os.close(fd)


def note(path: Path, now_ns: int, dead_pid: int = 0) -> None:
    """Write the time if the process of this file runs its program, or has just ended as dead_pid.

    A file without a head is left alone, and so is one that its process closed.
    """
    try:
        source = find.open_source(path)
    except RouseError:
        return
    try:
        head = decode.read_head(source)
        is_that = head.pid == dead_pid and find.is_here(head) and not head.ended
        if is_that or find.what_became(source, path) is None:
            write(path, now_ns)
    except (RouseError, OSError):
        return
    finally:
        source.close()


class Watch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.next_s = time.monotonic() + EVERY_S

    def note_living(self) -> float:
        """Note which processes live, if that is due. Return for how many seconds it is not."""
        began = time.monotonic()
        if began >= self.next_s:
            for path in find.files_of(self.folder):
                if find.NAME.fullmatch(path.name):
                    note(path, time.monotonic_ns())
            took = time.monotonic() - began
            self.next_s = began + took + max(EVERY_S, took / COST_MOST)
        return max(self.next_s - time.monotonic(), 0.0)

    def note_end(self, pid: int) -> None:
        """Note that a process has ended just now."""
        note(self.folder / find.file_name(pid), time.monotonic_ns(), pid)
