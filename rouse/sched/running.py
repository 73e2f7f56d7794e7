# SPDX-License-Identifier: MIT
"""Sample where the threads of some processes run, by perf_event_open(2) and its task clock.

Each thread has an event and a ring of its own, because an event that a process's new threads
inherit cannot have a ring for any processor. New threads are found at each look. Users may sample
their own processes, outside of the kernel; root also in it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from rouse.sched import procfs
from rouse.sched.probe import SYS_PERF_EVENT_OPEN, System

PERIOD_NS = 10_000_000  # of time on a processor, per sample
THREADS_MOST = 256  # sampled at once; each has a descriptor and two pages
EVENT = struct.Struct("=IIQQQQQIIQQ")  # the first fields of struct perf_event_attr
ATTRIBUTE_BYTES = 112
TYPE_SOFTWARE, TASK_CLOCK = 1, 1
SAMPLE_IP = 1 << 0
EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6
CLOSE_ON_EXEC = 1 << 3
# In the first page of a ring: the ends of what was written and what was read.
WRITTEN_AT, READ_AT = 1024, 1032
HEAD = struct.Struct("=IHH")  # of a record: type, misc, size
RECORD_LOST, RECORD_SAMPLE = 2, 9
MODE, IN_KERNEL = 7, 1  # of misc
KERNEL = -1  # instead of an address


@dataclass
class Ring:
    fd: int
    pages: mmap.mmap

    def take(self) -> list[int]:
        """Return the addresses that were sampled since the last call, and forget them.

        The kernel writes records before their end, and x86-64 keeps that order. Elsewhere a record
        may be read too early: its size is checked, and what is no sample is left out.
        """
        (written,) = struct.unpack_from("=Q", self.pages, WRITTEN_AT)
        (read,) = struct.unpack_from("=Q", self.pages, READ_AT)
        data = self.pages[mmap.PAGESIZE :]
        found = []
        while read < written:
            record = bytes(data[(read + i) % len(data)] for i in range(HEAD.size + 8))
            kind, misc, size = HEAD.unpack_from(record)
            if size < HEAD.size:
                break
            if kind == RECORD_SAMPLE:
                (address,) = struct.unpack_from("=Q", record, HEAD.size)
                found.append(KERNEL if misc & MODE == IN_KERNEL else address)
            read += size
        struct.pack_into("=Q", self.pages, READ_AT, written)
        return found

    def close(self) -> None:
        self.pages.close()
        os.close(self.fd)


@dataclass
class Samples:
    """Samples of the threads of some processes."""

    pids: Sequence[int]
    counts: dict[tuple[int, int], int] = field(default_factory=dict)  # by process and address
    rings: dict[tuple[int, int], Ring] = field(default_factory=dict)
    why: str = ""  # why some threads are not sampled
    is_with_kernel: bool = True

    def look(self) -> None:
        """Take what was sampled, and begin to sample new threads."""
        alive = {(pid, tid) for pid in self.pids for tid in procfs.tids(pid)}
        for (pid, tid), ring in list(self.rings.items()):
            for address in ring.take():
                key = (pid, address)
                self.counts[key] = self.counts.get(key, 0) + 1
            if (pid, tid) not in alive:
                self.rings.pop((pid, tid)).close()
        for key in sorted(alive - set(self.rings)):
            if len(self.rings) == THREADS_MOST:
                self.why = f"of more than {THREADS_MOST} threads at once"
                break
            try:
                self.rings[key] = self.opened(key[1])
            except ProcessLookupError:
                continue
            except OSError as error:
                self.why = f"{error.strerror}; see rouse doctor"
                break

    def opened(self, tid: int) -> Ring:
        if self.is_with_kernel:
            try:
                return opened(tid, 0)
            except PermissionError:
                self.is_with_kernel = False
        return opened(tid, EXCLUDE_KERNEL)

    def stop(self) -> None:
        self.look()
        for ring in self.rings.values():
            ring.close()
        self.rings.clear()


def opened(tid: int, excluded: int) -> Ring:
    """Begin to sample a thread. Raise OSError."""
    system = System()
    flags = EXCLUDE_HYPERVISOR | excluded
    words = (TYPE_SOFTWARE, ATTRIBUTE_BYTES, TASK_CLOCK, PERIOD_NS, SAMPLE_IP, 0, flags, 0, 0, 0, 0)
    attributes = EVENT.pack(*words).ljust(ATTRIBUTE_BYTES, b"\0")
    number = SYS_PERF_EVENT_OPEN.get(system.machine, -1)
    fd = system.libc.syscall(number, attributes, tid, -1, -1, ctypes.c_ulong(CLOSE_ON_EXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return Ring(fd, mmap.mmap(fd, 2 * mmap.PAGESIZE))
    except OSError:
        os.close(fd)
        raise
