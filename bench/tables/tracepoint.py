# SPDX-License-Identifier: MIT
"""Count a running process's system calls with the kernel's tracepoint, which hardly slows it down.

Requires root, or a kernel that lets other users see tracepoints. The callers fall back on strace.
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


class Counter:
    """Counts the calls from its creation on."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where this is not allowed."""
        number = PERF_EVENT_OPEN.get(platform.machine())
        known = [path for path in ID_FILES if path.exists()]
        if number is None or not known:
            raise OSError("no tracepoint of system calls here")
        event = int(known[0].read_text(encoding="ascii"))
        attribute = ATTRIBUTE.pack(
            PERF_TYPE_TRACEPOINT, ATTRIBUTE.size, event, 0, 0, 0, INHERIT, 0, 0, 0
        )
        self.descriptors: list[int] = []
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        for task in sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()):
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


@contextlib.contextmanager
def counting(pid: int) -> Iterator[Counter | None]:
    """Yield a counter, or None where it is not allowed."""
    try:
        counter = Counter(pid)
    except OSError:
        yield None
        return
    try:
        yield counter
    finally:
        counter.close()
