# SPDX-License-Identifier: MIT
"""Wait for processes, and sample their threads from /proc before and after."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from rouse.errors import RouseError
from rouse.sched import procfs, switches
from rouse.sched.procfs import KernelThread
from rouse.sched.switches import Sleep, Switches, Thread


def open_processes(pids: Sequence[int]) -> dict[int, int]:
    """Open descriptors that become readable when the processes end, by process number."""
    opened = {}
    for pid in dict.fromkeys(pids):
        try:
            opened[pid] = os.pidfd_open(pid)
        except OSError as error:
            raise RouseError(f"process {pid}: {error.strerror}") from error
    return opened


def wait(processes: dict[int, int], seconds: float) -> bool:
    """Wait until the time is over, all have ended, or a signal. Return whether all have ended."""
    deadline = time.monotonic() + seconds
    alive = set(processes.values())
    poll = select.poll()
    for fd in alive:
        poll.register(fd, select.POLLIN)
    while alive and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            alive.discard(fd)
    return not alive


def look(processes: Sequence[int]) -> dict[tuple[int, int], KernelThread]:
    return {
        (pid, tid): found
        for pid in processes
        for tid in procfs.tids(pid)
        if (found := procfs.read_thread(pid, tid))
    }


def between(
    before: dict[tuple[int, int], KernelThread], after: dict[tuple[int, int], KernelThread]
) -> Switches:
    """Return the differences of the figures of /proc, which has no wakers."""
    found = Switches(now_ns=time.monotonic_ns())
    for number, ((pid, tid), now) in enumerate(after.items(), 1):
        was = before.get((pid, tid))
        first = was.read_ns if was else now.read_ns - now.age_ns
        cpu = (now.cpu_ns or 0) - ((was.cpu_ns or 0) if was else 0)
        queued = (now.run_queue_ns or 0) - ((was.run_queue_ns or 0) if was else 0)
        voluntary = now.voluntary - (was.voluntary if was else 0)
        involuntary = now.involuntary - (was.involuntary if was else 0)
        state = switches.RUNS if now.is_runnable else switches.ASLEEP
        found.threads[number] = Thread(
            tid=tid,
            process=pid,
            name=now.name,
            state=state,
            since_ns=found.now_ns,
            first_ns=first,
            call=switches.NO_CALL,
            voluntary=voluntary,
            involuntary=involuntary,
            cpu_ns=cpu,
            preempted_ns=0,
            preempted_most_ns=0,
        )
        found.sleeps.append(
            Sleep(
                thread=number,
                call=switches.NO_CALL,
                count=voluntary,
                asleep_ns=max(now.read_ns - first - cpu - queued, 0),
                queued_ns=queued,
            )
        )
    return found
