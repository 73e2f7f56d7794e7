# SPDX-License-Identifier: MIT
"""Count system calls of running processes with the kernel's tracepoint, which hardly slows them.

Requires root, or a kernel that lets other users see tracepoints.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
ID_FILES = (
    Path("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id"),
    Path("/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id"),
)
PERF_TYPE_TRACEPOINT = 2
ATTRIBUTE = struct.Struct("=IIQQQQQIIQ")  # perf_event_attr as it was first published
INHERIT = 1 << 1  # also count threads that are created later


def tasks(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


class Counter:
    """Counts the calls of processes, and of threads that they create later, from now on."""

    def __init__(self, *pids: int) -> None:
        """Raises OSError where this is not allowed."""
        number = PERF_EVENT_OPEN.get(platform.machine())
        known = [path for path in ID_FILES if path.exists()]
        if number is None or not known:
            raise OSError("no tracepoint is visible here; rouse doctor says why")
        event = int(known[0].read_text(encoding="ascii"))
        attribute = ATTRIBUTE.pack(
            PERF_TYPE_TRACEPOINT, ATTRIBUTE.size, event, 0, 0, 0, INHERIT, 0, 0, 0
        )
        self.descriptors: list[int] = []
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        for task in sorted(task for pid in pids for task in tasks(pid)):
            descriptor = syscall(number, attribute, task, -1, -1, 0)
            if descriptor < 0:
                self.close()
                raise OSError(ctypes.get_errno(), "perf_event_open")
            self.descriptors.append(descriptor)

    def total(self) -> int:
        return sum(struct.unpack("=Q", os.read(fd, 8))[0] for fd in self.descriptors)

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def why_not() -> str:
    """Return why system calls cannot be counted here. Empty: they can."""
    try:
        Counter(os.getpid()).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@contextlib.contextmanager
def counting(*pids: int) -> Iterator[Counter | None]:
    """Yield a counter, or None where it is not allowed."""
    try:
        counter = Counter(*pids)
    except OSError:
        yield None
        return
    try:
        yield counter
    finally:
        counter.close()
