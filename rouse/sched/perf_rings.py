# SPDX-License-Identifier: MIT
"""The kernel's records of sampled stacks, by perf_event_open(2): open events, and read their rings.

A record has its time by CLOCK_MONOTONIC, so that records of several rings can be put in order.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from dataclasses import dataclass

from rouse.sched.probe import SYS_PERF_EVENT_OPEN, System
from rouse.symbols.unwind import Stack

EVENT = struct.Struct("=IIQQQQQIIQQQQIIQIHH")  # struct perf_event_attr
TYPE_SOFTWARE = 1
CPU_CLOCK, TASK_CLOCK = 0, 1  # runs with the processor, or with one thread
# Fields of a sample, in their order. Other records end with thread and time.
SAMPLE_THREAD, SAMPLE_TIME, SAMPLE_REGISTERS, SAMPLE_STACK = 1 << 1, 1 << 2, 1 << 12, 1 << 13
FIELDS = SAMPLE_THREAD | SAMPLE_TIME | SAMPLE_REGISTERS | SAMPLE_STACK
EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR, EXCLUDE_IDLE = 1 << 5, 1 << 6, 1 << 7
WITH_MAPPINGS, WITH_NAMES, WITH_LIVES = 1 << 8 | 1 << 23, 1 << 9, 1 << 13
ALL_HAVE_TIMES, BY_CLOCK = 1 << 18, 1 << 25
CLOCK_MONOTONIC = 1
CLOSE_ON_EXEC = 1 << 3
# In the first page of a ring: the ends of what was written and what was read.
WRITTEN_AT, READ_AT = 1024, 1032
HEAD = struct.Struct("=IHH")  # of a record: type, misc, size
MAPPED, LOST, NAMED, ENDED, FORKED, SAMPLED = 10, 2, 3, 4, 7, 9  # types
MODE, IN_KERNEL, IS_EXEC = 7, 1, 1 << 13  # of misc
THREAD = struct.Struct("=II")
TRAILER = struct.Struct("=IIQ")  # of a record that is no sample: process, thread, time
SAMPLE = struct.Struct("=IIQQ")  # process, thread, time, and the kind of the registers
MAPPING = struct.Struct("=QQQIIQQII")  # start, bytes, offset, device, inode, its age, rights, flags
# The numbers of the registers: instruction, stack, frame, link. The kernel writes them by number.
IS_ARM = platform.machine() == "aarch64"
REGISTERS = {"ip": 32, "sp": 31, "bp": 29, "link": 30} if IS_ARM else {"ip": 8, "sp": 7, "bp": 6}
BY_NUMBER = sorted(REGISTERS, key=lambda name: REGISTERS[name])


@dataclass(frozen=True)
class Sampled:
    """Where a thread ran."""

    at_ns: int
    pid: int
    tid: int
    is_in_kernel: bool
    stack: Stack


@dataclass(frozen=True)
class Mapped:
    """A process mapped a file of code."""

    at_ns: int
    pid: int
    start: int
    end: int
    line: str  # as in /proc/PID/maps


@dataclass(frozen=True)
class Named:
    """A thread has a new name."""

    at_ns: int
    pid: int
    tid: int
    name: str
    is_exec: bool  # since it executed a program


@dataclass(frozen=True)
class Forked:
    """A thread began, perhaps in a process of its own."""

    at_ns: int
    pid: int
    tid: int
    by_pid: int
    by_tid: int


@dataclass(frozen=True)
class Ended:
    """A thread ended."""

    at_ns: int
    pid: int
    tid: int


Record = Sampled | Mapped | Named | Forked | Ended


def text_of(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace")


def sampled(misc: int, data: bytes) -> Sampled | None:
    """Decode a sample. None: it has no registers, as of a thread of the kernel."""
    pid, tid, at_ns, kind = SAMPLE.unpack_from(data)
    if not kind:
        return None
    words = struct.unpack_from(f"={len(BY_NUMBER)}Q", data, SAMPLE.size)
    known = {"link": 0, **dict(zip(BY_NUMBER, words, strict=True))}
    at = SAMPLE.size + 8 * len(words)
    (size,) = struct.unpack_from("=Q", data, at)
    filled = 0
    if size:
        (filled,) = struct.unpack_from("=Q", data, at + 8 + size)
    copy = data[at + 8 : at + 8 + min(filled, size)]
    return Sampled(at_ns, pid, tid, misc & MODE == IN_KERNEL, Stack(copy=copy, **known))


def decoded(kind: int, misc: int, data: bytes) -> Record | None:
    """Decode what follows the head of a record. None: it is of no use here."""
    if kind == SAMPLED:
        return sampled(misc, data)
    *_, at_ns = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    pid, tid = THREAD.unpack_from(data)
    rest = data[THREAD.size : -TRAILER.size]
    if kind == NAMED:
        return Named(at_ns, pid, tid, text_of(rest), bool(misc & IS_EXEC))
    if kind in (FORKED, ENDED):
        begun, by = THREAD.unpack_from(rest)  # the second word of data was the parent process
        return Forked(at_ns, pid, begun, tid, by) if kind == FORKED else Ended(at_ns, pid, begun)
    if kind == MAPPED:
        start, size, offset, *numbers = MAPPING.unpack_from(rest)
        major, minor = numbers[0], numbers[1]
        path = text_of(rest[MAPPING.size :])
        line = (
            f"{start:x}-{start + size:x} r-xp {offset:08x} {major:02x}:{minor:02x} {numbers[2]}"
            f" {path.replace(chr(10), '?')}"
        )
        return Mapped(at_ns, pid, start, start + size, line)
    return None


class Ring:
    """The records of one processor, or of one thread."""

    def __init__(self, fd: int, data_pages: int) -> None:
        self.fd = fd
        self.pages = mmap.mmap(fd, (1 + data_pages) * mmap.PAGESIZE)
        self.bytes = data_pages * mmap.PAGESIZE
        self.lost = 0

    def part(self, at: int, size: int) -> bytes:
        begin = at % self.bytes
        first = self.pages[mmap.PAGESIZE + begin : mmap.PAGESIZE + min(begin + size, self.bytes)]
        return first + self.pages[mmap.PAGESIZE : mmap.PAGESIZE + size - len(first)]

    def take(self) -> list[Record]:
        """Return the records since the last call.

        The kernel writes records before their end, and x86-64 keeps that order. Elsewhere a record
        may be read too early: its size is checked, and what cannot be decoded is left out.
        """
        (written,) = struct.unpack_from("=Q", self.pages, WRITTEN_AT)
        (read,) = struct.unpack_from("=Q", self.pages, READ_AT)
        found = []
        while read < written:
            kind, misc, size = HEAD.unpack(self.part(read, HEAD.size))
            if size < HEAD.size or size > written - read:
                break
            data = self.part(read + HEAD.size, size - HEAD.size)
            read += size
            if kind == LOST:
                self.lost += struct.unpack_from("=Q", data, 8)[0]
                continue
            try:
                record = decoded(kind, misc, data)
            except (struct.error, ValueError):
                continue
            if record:
                found.append(record)
        struct.pack_into("=Q", self.pages, READ_AT, written)
        return found

    def close(self) -> None:
        self.pages.close()
        os.close(self.fd)


@dataclass(frozen=True)
class Asked:
    """How to sample. Both sizes are of bytes; that of the ring is a power of two."""

    period_ns: int
    stack_bytes: int
    ring_bytes: int


def opened(asked: Asked, tid: int, processor: int, flags: int = 0) -> Ring:
    """Begin to sample a thread, or all threads (-1) on a processor. Raise OSError."""
    system = System()
    clock = CPU_CLOCK if tid < 0 else TASK_CLOCK
    registers = sum(1 << number for number in REGISTERS.values())
    flags |= EXCLUDE_HYPERVISOR | EXCLUDE_IDLE | WITH_NAMES | ALL_HAVE_TIMES | BY_CLOCK
    attributes = EVENT.pack(
        *(TYPE_SOFTWARE, EVENT.size, clock, asked.period_ns, FIELDS, 0, flags, 0, 0, 0, 0, 0),
        *(registers, asked.stack_bytes, CLOCK_MONOTONIC, 0, 0, 0, 0),
    )
    number = SYS_PERF_EVENT_OPEN.get(system.machine, -1)
    fd = system.libc.syscall(number, attributes, tid, processor, -1, ctypes.c_ulong(CLOSE_ON_EXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return Ring(fd, asked.ring_bytes // mmap.PAGESIZE)
    except OSError:
        os.close(fd)
        raise
