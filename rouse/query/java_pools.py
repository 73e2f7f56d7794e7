# SPDX-License-Identifier: MIT
"""Executors of Java with too few threads, by dumps of the JVM's threads."""

from __future__ import annotations

from rouse.query.finding import LEAST_GAIN, SMALL_POOL, Finding
from rouse.query.java_locks import DUMPS_LEAST, HANDOVER, by_processors
from rouse.query.program import Program
from rouse.query.ran import Running
from rouse.query.timers import LATE
from rouse.sched.java_dumps import JavaPool
from rouse.text import share

QUEUED_LEAST = 0.5  # requests that nobody serves, on average
# Dumps, and the part of them in which all threads of an executor are busy.
FULL_DUMPS_LEAST, FULL, BUSY_TIMERS = 4, 0.8, 0.6
ROOM_GAIN = 1.5  # a slow stage that computes is none


def find(program: Program, sampled: Running | None) -> list[Finding]:
    found = [finding(pool, program) for pool in (sampled.java_pools if sampled else [])]
    return [each for each in found if each]


def finding(pool: JavaPool, program: Program) -> Finding | None:
    if pool.is_scheduled:
        return busy_timers(pool, program)
    return too_small(pool, program) or without_room(pool, program)


def busy_timers(pool: JavaPool, program: Program) -> Finding | None:
    """All threads of an executor that runs timers are busy, so that those that are due are late."""
    full, threads = pool.full / pool.dumps, pool.threads / pool.dumps
    if pool.dumps < FULL_DUMPS_LEAST or full < BUSY_TIMERS:
        return None
    name = "a scheduled executor of Java"
    text = (
        f"{name}: all its threads, {threads:.1f} on average, are busy for {share(full)} % of the"
        f" time, mostly at {pool.worker}: what is due meanwhile is late. Long work on another"
        f" executor, or more threads, let it be on time [{LATE}]"
    )
    late_ns = round(full * program.wall_ns)
    return Finding(LATE, name, pool.worker, pool.worker, late_ns, None, None, text)


def without_room(pool: JavaPool, program: Program) -> Finding | None:
    """All threads of an executor are busy, while other threads wait until they may add work."""
    full, threads, blocked = (
        count / pool.dumps for count in (pool.full, pool.threads, pool.blocked)
    )
    most = by_processors(program)
    is_full = pool.dumps >= FULL_DUMPS_LEAST and full >= FULL and blocked >= QUEUED_LEAST
    if not is_full or most < ROOM_GAIN:
        return None
    name = "an executor of Java"
    text = (
        f"{name} has no time for more: its threads, {threads:.1f} on average, are busy for"
        f" {share(full)} % of the time, mostly at {pool.worker}, and {pool.blocked_at} waits until"
        f" they have done something. More threads gain at most {most:.2f}x the throughput"
        f" [{SMALL_POOL}]"
    )
    blocked_ns = round(blocked * program.wall_ns)
    return Finding(SMALL_POOL, name, pool.blocked_at, pool.worker, blocked_ns, most, None, text)


def too_small(pool: JavaPool, program: Program) -> Finding | None:
    """The bound: all requests are served at once, as far as there are processors.

    How many results each thread waits for is not known.
    """
    if not pool.waiting:
        return None
    waiting, busy, queued = (count / pool.dumps for count in (pool.waiting, pool.busy, pool.queued))
    most, single = by_processors(program), HANDOVER * waiting / busy
    if pool.dumps < DUMPS_LEAST or queued < QUEUED_LEAST or min(most, single) < LEAST_GAIN:
        return None
    queued_ns = round(queued * program.wall_ns)
    name = "an executor of Java"
    text = (
        f"{name} is too small: {waiting:.1f} threads wait for results on average, at {pool.waiter},"
        f" and {busy:.1f} threads of it work, mostly at {pool.worker}. A larger pool gains at most"
        f" {min(most, single):.2f}x the throughput if each waits for one result, else at most"
        f" {most:.2f}x [{SMALL_POOL}]"
    )
    return Finding(*(SMALL_POOL, name, pool.waiter, pool.worker, queued_ns, most, None, text))
