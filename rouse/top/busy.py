# SPDX-License-Identifier: MIT
"""Divide the time that workers had a thread to run by the kernel's account of the workers.

A user thread's USR is the time that it had a worker. Meanwhile the kernel may have had that worker
in its run queue, or asleep in a system call that rouse does not see. It reports that for the worker
as a whole, including idle time, and not for each thread. So the busy time of a worker counts as
time on a processor, up to the kernel's figure for that. The rest counts as queued, up to the
kernel's figure for that. The remainder counts as asleep. Each part is distributed over the worker's
threads in proportion to their USR. That is exact for a worker that had one thread and was never
idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rouse.clock import NS
from rouse.sched import procfs
from rouse.store.decode import Store

NONE_YET = procfs.KernelThread("", 0, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Shares:
    """Parts of the time that a worker was busy. Their sum is 1."""

    on_cpu: float
    queued: float
    asleep: float


def shares(busy_ns: float, cpu_ns: float, run_queue_ns: float, slept: bool) -> Shares:
    awake_ns = cpu_ns + run_queue_ns
    if not slept and not awake_ns:
        return Shares(0.0, 1.0, 0.0)  # queued all the time: the kernel counts that when it is over
    if not slept:
        # A spell under way is counted at the next clock tick, or when it is over.
        scale = max(busy_ns / awake_ns, 1.0)
        cpu_ns, run_queue_ns = cpu_ns * scale, run_queue_ns * scale
    on_cpu = min(cpu_ns / busy_ns, 1.0)
    queued = min(run_queue_ns / busy_ns, 1.0 - on_cpu)
    return Shares(on_cpu, queued, 1.0 - on_cpu - queued)


def idle_ticks(writer: np.void, now_tsc: int) -> int:
    since = int(writer["idle_since_tsc"])
    return int(writer["idle_ticks"]) + (max(now_tsc - since, 0) if since else 0)


def of_worker(
    writer: np.void,
    was: np.void | None,
    stores: tuple[Store, Store],
    threads: tuple[procfs.KernelThread | None, procfs.KernelThread | None],
) -> Shares | None:
    """Return the parts between two moments. was: the writer at the first. None: not known."""
    before, after = stores
    old, new = threads
    idle = idle_ticks(writer, after.now_tsc)
    begin = int(writer["begin_tsc"])
    if was is None:
        old = NONE_YET
    elif was["tid"] == writer["tid"]:
        idle -= idle_ticks(was, before.now_tsc)
        begin = before.now_tsc
    else:
        return None  # another kernel thread has reused the entry of one that ended
    if old is None or new is None or None in (old.cpu_ns, new.cpu_ns):
        return None
    busy_ns = (after.now_tsc - begin - max(idle, 0)) * NS / after.clock.hz
    if busy_ns <= 0:
        return None
    slept = new.voluntary != old.voluntary or not (old.is_runnable and new.is_runnable)
    cpu_ns = (new.cpu_ns or 0) - (old.cpu_ns or 0)
    run_queue_ns = (new.run_queue_ns or 0) - (old.run_queue_ns or 0)
    return shares(busy_ns, max(cpu_ns, 0), max(run_queue_ns, 0), slept)


def by_writer(
    stores: tuple[Store, Store],
    threads: tuple[Mapping[int, procfs.KernelThread], Mapping[int, procfs.KernelThread]],
) -> dict[int, Shares]:
    """Return the parts of each worker, by the number of its writer, where they are known."""
    before, after = stores
    known = {int(w["index"]): w for w in before.writers}
    found = {}
    for writer in after.writers:
        if not writer["is_worker"] or not writer["is_live"]:
            continue
        index, tid = int(writer["index"]), int(writer["tid"])
        both = threads[0].get(tid), threads[1].get(tid)
        own = of_worker(writer, known.get(index), stores, both)
        if own is not None:
            found[index] = own
    return found
