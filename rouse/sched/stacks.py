# SPDX-License-Identifier: MIT
"""Look at the stacks of sleeping threads from outside, without BPF: by /proc and process_vm_readv.

A thread is not stopped. It may move on between the look at its registers and the copy of its
stack; the callers found then are checked as those of any damaged stack are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rouse.sched import procfs
from rouse.sched.switches import Place, Sleep, Switches
from rouse.symbols.unwind import Stack

EVERY_SECONDS = 0.02
SHARE_MOST = 0.05  # of one processor, for looking
COPY_BYTES = 4096
PLACES_MOST = 4096
CALLS = {
    "x86_64": {
        **{0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv"},
        **{20: "writev", 23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept"},
        **{44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 73: "flock"},
        **{74: "fsync", 75: "fdatasync", 128: "rt_sigtimedwait", 202: "futex"},
        **{230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 270: "pselect6"},
        **{271: "ppoll", 281: "epoll_pwait", 288: "accept4"},
    },
    "aarch64": {
        **{22: "epoll_pwait", 32: "flock", 63: "read", 64: "write", 65: "readv", 66: "writev"},
        **{67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync"},
        **{83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep"},
        **{137: "rt_sigtimedwait", 202: "accept", 203: "connect", 206: "sendto"},
        **{207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4"},
    },
}.get(platform.machine(), {}) | {426: "io_uring_enter", 441: "epoll_pwait2"}
ASLEEP = "asleep"  # in a call that was not seen
REMEDY = "be root, or set kernel.yama.ptrace_scope=0 for processes of this user"


class Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_size_t), ("bytes", ctypes.c_size_t))


@cache
def reader() -> Any:
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    return call


def read_memory(pid: int, start: int, size: int) -> bytes:
    """Return what can be read of another process's memory, page by page. Raise OSError."""
    found = ctypes.create_string_buffer(size)
    ends = [*range(start - start % mmap.PAGESIZE + mmap.PAGESIZE, start + size, mmap.PAGESIZE)]
    starts = [start, *ends]
    pieces = [
        Piece(begin, end - begin) for begin, end in zip(starts, [*ends, start + size], strict=True)
    ]
    local = (Piece * 1)(Piece(ctypes.addressof(found), size))
    remote = (Piece * len(pieces))(*pieces)
    count = reader()(
        pid, local, ctypes.c_ulong(1), remote, ctypes.c_ulong(len(pieces)), ctypes.c_ulong(0)
    )
    if count < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found.raw[:count]


@dataclass(frozen=True)
class Seen:
    """A thread asleep in a system call."""

    call: str
    futex: int
    place: int  # 0: not known


NOT_SEEN = Seen(ASLEEP, 0, 0)


@dataclass
class Looks:
    """How often each thread was seen in each wait, by process and thread."""

    pids: Sequence[int]
    seen: dict[tuple[int, int], dict[Seen, int]] = field(default_factory=dict)
    places: dict[tuple[int, Stack], int] = field(default_factory=dict)
    why: str = ""  # why there are no places
    lost: int = 0  # call paths for which there was no room
    every: float = EVERY_SECONDS

    def look(self) -> None:
        """Look at each thread once, and set how long to wait until the next look."""
        begin = time.monotonic()
        for pid in self.pids:
            for tid in procfs.tids(pid):
                self.look_at(pid, tid)
        self.every = max(EVERY_SECONDS, (time.monotonic() - begin) / SHARE_MOST)

    def look_at(self, pid: int, tid: int) -> None:
        try:
            words = procfs.read(f"/proc/{pid}/task/{tid}/syscall").split()
        except PermissionError as error:
            self.why = f"{error.strerror}; {REMEDY}"
            return
        except OSError:
            return
        if len(words) != 9:  # it runs, or sleeps in no call
            return
        call = CALLS.get(int(words[0]), words[0])
        sp, ip = int(words[7], 16), int(words[8], 16)
        try:
            copy = read_memory(pid, sp, COPY_BYTES)
        except OSError:
            copy = b""
        futex = int(words[1], 16) if call == "futex" else 0
        what = Seen(call, futex, self.place(pid, Stack(ip, sp, 0, 0, copy)))
        of = self.seen.setdefault((pid, tid), {})
        of[what] = of.get(what, 0) + 1

    def place(self, pid: int, stack: Stack) -> int:
        key = (pid, stack)
        if key not in self.places:
            if len(self.places) == PLACES_MOST:
                self.lost += 1
                return 0
            self.places[key] = len(self.places) + 1
        return self.places[key]

    def add_to(self, found: Switches) -> None:
        """Divide the time that each thread slept by what was seen of it."""
        found.places = {
            number: Place(pid, 0, stack) for (pid, stack), number in self.places.items()
        }
        found.lost_places = self.lost
        asleep_ns = {sleep.thread: sleep.asleep_ns for sleep in found.sleeps}
        found.sampled, found.blind = [], self.why
        for key, thread in found.threads.items():
            of = self.seen.get((thread.process, thread.tid), {})
            whole = sum(of.values())
            for what, count in (of or {NOT_SEEN: 1}).items():
                ns = round(asleep_ns.get(key, 0) * count / (whole or 1))
                found.sampled.append(
                    Sleep(key, what.call, 0, ns, 0, futex=what.futex, place=what.place)
                )
