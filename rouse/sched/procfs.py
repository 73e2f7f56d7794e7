# SPDX-License-Identifier: MIT
"""The kernel's figures of a kernel thread, from /proc."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rouse.clock import NS

CLOCK_TICK_NS = NS // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class KernelThread:
    """Sums since the thread began."""

    name: str
    age_ns: int
    is_runnable: bool  # at this moment: it runs, or waits for a processor
    user_ns: int  # in steps of a clock tick; so is system_ns
    system_ns: int
    cpu_ns: int | None  # both together, exact; None: no schedstat
    run_queue_ns: int | None  # runnable, waiting for a processor
    block_ns: int  # waiting for a disk; 0 unless the kernel counts it
    major_faults: int
    minor_faults: int
    voluntary: int  # switches
    involuntary: int
    read_ns: int  # CLOCK_MONOTONIC: when this was read
    calls: int | None = None  # system calls; None: nobody counts them, which is so for signals too
    signals: int | None = None


def counts_delays() -> bool:
    """Whether the kernel counts the time that threads wait for disks."""
    try:
        return Path("/proc/sys/kernel/task_delayacct").read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False


def read_thread(pid: int, tid: int) -> KernelThread | None:
    """Read a thread. None: it no longer exists."""
    folder = f"/proc/{pid}/task/{tid}"
    try:
        stat = read(f"{folder}/stat")
        status = read(f"{folder}/status")
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 40:
        return None
    cpu_ns, run_queue_ns = read_schedstat(folder)
    voluntary, involuntary = switches(status)
    return KernelThread(
        name=name,
        age_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(fields[19]) * CLOCK_TICK_NS,
        is_runnable=fields[0] == "R",
        user_ns=int(fields[11]) * CLOCK_TICK_NS,
        system_ns=int(fields[12]) * CLOCK_TICK_NS,
        cpu_ns=cpu_ns,
        run_queue_ns=run_queue_ns,
        block_ns=int(fields[39]) * CLOCK_TICK_NS,
        major_faults=int(fields[9]),
        minor_faults=int(fields[7]),
        voluntary=voluntary,
        involuntary=involuntary,
        read_ns=time.monotonic_ns(),
    )


def read(path: str) -> str:
    """Read a file of /proc in one read: cheaper than Path, and a thread that ends is an OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 8192).decode("utf-8", "replace")
    finally:
        os.close(fd)


def read_schedstat(folder: str) -> tuple[int | None, int | None]:
    try:
        words = read(f"{folder}/schedstat").split()
    except OSError:
        return None, None
    return (int(words[0]), int(words[1])) if len(words) >= 2 else (None, None)


def has_mapped(pid: int, pattern: re.Pattern[str]) -> bool:
    """Return whether a process has mapped a file whose path matches. No: it has ended."""
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as file:
            return any(pattern.search(line.rstrip()) for line in file)
    except OSError:
        return False


class Mapped:
    """Finds the processes that have mapped a file: a library, or a program that interprets another.

    A process may do so some time after it began, and may become another program by exec.
    """

    LOOKS = 20  # at each program of a process

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.has: set[int] = set()
        self.looks: Counter[tuple[int, str]] = Counter()

    def look(self, pid: int) -> bool:
        """Return whether the process has mapped it, now or at an earlier look."""
        if pid in self.has:
            return True
        try:
            program = str(Path(f"/proc/{pid}/exe").readlink())
        except OSError:
            return False
        self.looks[pid, program] += 1
        if self.looks[pid, program] <= self.LOOKS and has_mapped(pid, self.pattern):
            self.has.add(pid)
        return pid in self.has


def busy_ns() -> int | None:
    """Return how long the processors that we may use have run any program. None: not known."""
    mine = os.sched_getaffinity(0)
    ticks = 0
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        number = words[0].removeprefix("cpu") if words else ""
        if number.isdigit() and int(number) in mine:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])
            ticks += user + nice + system + irq + softirq + steal
    return ticks * CLOCK_TICK_NS


def switches(status: str) -> tuple[int, int]:
    found = {"voluntary_ctxt_switches": 0, "nonvoluntary_ctxt_switches": 0}
    for line in status.splitlines():
        word, _, value = line.partition(":")
        if word in found:
            found[word] = int(value)
    return found["voluntary_ctxt_switches"], found["nonvoluntary_ctxt_switches"]


def tids(pid: int) -> list[int]:
    """Return the kernel threads of a process. Empty: it has ended."""
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
