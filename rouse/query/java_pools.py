# SPDX-License-Identifier: MIT
"""Executors of Java with too few threads, by dumps of the JVM's threads."""

from __future__ import annotations

from rouse.query.finding import LEAST_GAIN, SMALL_POOL, Finding
from rouse.query.java_locks import DUMPS_LEAST, HANDOVER, by_processors
from rouse.query.program import Program
from rouse.query.ran import Running
from rouse.sched.java_dumps import JavaPool

QUEUED_LEAST = 0.5  # requests that nobody serves, on average


def find(program: Program, sampled: Running | None) -> list[Finding]:
    found = [finding(pool, program) for pool in (sampled.java_pools if sampled else [])]
    return [each for each in found if each]


def finding(pool: JavaPool, program: Program) -> Finding | None:
    """The bound: all requests are served at once, as far as there are processors."""
    waiting, busy, queued = (count / pool.dumps for count in (pool.waiting, pool.busy, pool.queued))
    most = min(HANDOVER * waiting / busy, by_processors(program))
    if pool.dumps < DUMPS_LEAST or queued < QUEUED_LEAST or most < LEAST_GAIN:
        return None
    queued_ns = round(queued * program.wall_ns)
    name = "an executor of Java"
    text = (
        f"{name} is too small: {waiting:.1f} threads wait for results on average, at {pool.waiter},"
        f" and {busy:.1f} threads of it work, mostly at {pool.worker}. A larger pool gains at most"
        f" {most:.2f}x the throughput [{SMALL_POOL}]"
    )
    return Finding(*(SMALL_POOL, name, pool.waiter, pool.worker, queued_ns, most, None, text))
