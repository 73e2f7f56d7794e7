# SPDX-License-Identifier: MIT
"""Java's locks: `synchronized` blocks and methods, and those of java.util.concurrent.

The JVM makes monitors of a mutex and a condition per thread. Its functions tell such a wait from
others. Threads that want another lock park, as idle ones do. Which object a wait is for, and which
method holds it, is in the JVM's own memory: dumps of its threads tell it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rouse.query import measures
from rouse.query.demand import least_ran
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, SMALL_POOL, Finding, Row
from rouse.query.program import STATES, Program
from rouse.query.ran import Running, busiest
from rouse.sched.java_dumps import JavaWaits
from rouse.tables.engine import Database
from rouse.text import counted, duration

MONITOR, LOCK = "java-monitor", "java-lock"
DUMPS_LEAST = 2
WAITING_LEAST = 0.5  # threads on average
OWN = 0.25  # of the CPU time, which the program's methods have at least
# By how much the time from a release until the next thread runs lengthens each use of a lock or a
# pool, at most. Dumps do not tell it; without waits it is saved.
HANDOVER = 1.05
NAME = "Java's monitors"
METHOD = re.compile(r"[\w.$<>]+\.[\w$<>]+$")  # of Java, as the JVM writes it
NEAR = 6  # frames between the wait and the JVM's function
WAITS = f"""
SELECT w.process, w.wait_site, SUM({measures.total(measures.VERDICTS)}) AS waits,
    SUM(w.wait_ns) AS wait_ns
FROM wakes w JOIN (
    SELECT DISTINCT process, site FROM sites WHERE frame <= {NEAR} AND (
        label LIKE '%ObjectMonitor::enter%' OR label LIKE '%complete_monitor_locking%'
        OR label LIKE '%ObjectSynchronizer::enter%'
    )
) s ON s.process = w.process AND s.site = w.wait_site
WHERE w.kind IN ('condition', 'semaphore', 'futex')
GROUP BY w.process, w.wait_site
"""


# The functions of the JVM that wait for whatever Java code waits for, and for its own threads.
WAIT_FUNCTIONS = re.compile(r"^(os::Platform|Parker::|Monitor::|PlatformEvent::)")
# The JVM's own threads wait so for each other: its compilers, and those of its collector.
INTERNAL = """
SELECT DISTINCT process, site FROM sites
WHERE label LIKE '%PlatformMonitor::wait%' OR label LIKE 'Monitor::IWait%'
"""


def internal_sites(database: Database) -> set[tuple[str, str]]:
    """Return the processes and sites of waits that no code of the program makes."""
    return {(row["process"], row["site"]) for row in database.rows(INTERNAL)}


def without_jvm(rows: Iterable[Row]) -> list[Row]:
    """Leave out waits in functions of a JVM, which do not tell its pools and stages apart.

    Dumps of its threads do: java_pools.py.
    """
    return [row for row in rows if not WAIT_FUNCTIONS.match(row["label"])]


def sites(database: Database) -> set[tuple[str, str]]:
    """Return the processes and sites of these waits, which look like those for a pool or queue."""
    return {(row["process"], row["wait_site"]) for row in database.rows(WAITS)}


def find(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    dumped = locks_of(program, sampled)
    if any(each.kind == MONITOR for each in dumped):
        return dumped
    return dumped + unknown(database, program, sampled)


@dataclass
class JavaLock:
    """The waits for locks of one type, in the dumps of a process."""

    process: str
    type: str
    is_monitor: bool
    taker: str  # the method that takes from a queue; empty: it is a lock or a semaphore
    waits: list[JavaWaits] = field(default_factory=list)

    @property
    def waiting(self) -> float:
        """The threads that wait for it on average."""
        return sum(each.count / each.dumps for each in self.waits)

    @property
    def threads(self) -> int:
        """At least so many threads acquire it."""
        return self.waits[0].threads

    @property
    def most(self) -> int:
        """The most that waited for it in one dump."""
        return self.waits[0].most

    def most_at(self, side: str) -> str:
        counts: Counter[str] = Counter()
        for each in self.waits:
            counts[getattr(each, side)] += each.count
        known = [name for name, _ in counts.most_common() if name]
        return known[0] if known else ""


def locks_of(program: Program, sampled: Running | None) -> list[Finding]:
    """The findings of the dumps."""
    found: dict[tuple[str, str, bool, str], JavaLock] = {}
    for process, waits in sampled.java if sampled else []:
        if waits.dumps >= DUMPS_LEAST:
            key = (process, waits.lock, waits.is_monitor, waits.taker)
            found.setdefault(key, JavaLock(*key)).waits.append(waits)
    made = [lock_finding(lock, program) for lock in found.values() if lock.waiting >= WAITING_LEAST]
    return [each for each in made if each]


def by_processors(program: Program) -> float:
    """Return what the processors let the throughput grow by.

    The JVM compiles, collects garbage and spins for locks besides.
    """
    ran = OWN * least_ran(program.ran_ns, 0, program)
    return program.processors * (program.wall_ns or 1) / max(ran, 1.0)


def lock_finding(lock: JavaLock, program: Program) -> Finding | None:
    """The bound: no more threads than those that acquire it can run, nor than processors do.

    Each of them also works without the handovers.
    """
    wall = program.wall_ns or 1
    free = max(lock.threads - lock.most, 1)
    most = max(min(HANDOVER * lock.threads / free, by_processors(program)), 1.0)
    waiter, holder = lock.most_at("waiter"), lock.most_at("holder")
    kind = MONITOR if lock.is_monitor else LOCK
    name = f"a monitor of {lock.type}" if lock.is_monitor else lock.type
    until = f", while its holder is mostly in {holder}" if holder else ""
    wait_ns = round(lock.waiting * wall)
    if lock.taker:
        return pool_finding(lock, waiter, holder, wait_ns, most)
    if permits := lock.waits[0].permits:
        name = name.partition("$")[0]  # without how it orders the threads
        until = f", while those that have one are mostly in {holder}" if holder else ""
        text = (
            f"{name}: {waiter} waits for one of {counted(permits, 'permit')}, {lock.waiting:.1f} of"
            f" {lock.threads} threads on average{until}. With more permits at most {most:.2f}x the"
            f" throughput [{SMALL_POOL}]"
        )
        return Finding(SMALL_POOL, name, waiter, holder, wait_ns, most, None, text)
    text = (
        f"{name}: {waiter} waits, {lock.waiting:.1f} of {lock.threads} threads on average{until}."
        f" Without these waits at most {most:.2f}x the throughput [{kind}]"
    )
    return Finding(kind, name, waiter, holder, wait_ns, most, None, text)


def pool_finding(
    lock: JavaLock, waiter: str, holder: str, wait_ns: int, most: float
) -> Finding | None:
    """Of a queue or a condition, by which threads get something that they put back."""
    if most < LEAST_GAIN:
        return None
    name, threads, used = f"the pool of {lock.taker}", lock.threads, lock.waits[0].permits
    during = f", and are mostly in {holder}" if holder else ""
    text = (
        f"{name} is too small: {waiter} waits, {lock.waiting:.1f} of {threads} threads on average,"
        f" for what it takes from {lock.type}, while {counted(used, 'thread has', 'threads have')}"
        f" something of it{during}. If they put it back, a larger pool gains at most {most:.2f}x;"
        f" if others bring it, these are too slow [{SMALL_POOL}]"
    )
    return Finding(SMALL_POOL, name, waiter, holder, wait_ns, most, None, text)


def unknown(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    """The finding where there are no dumps."""
    rows = database.rows(measures.labelled(WAITS, ("wait_ns DESC",), label="wait_site"))
    wait_ns = sum(row["wait_ns"] for row in rows)
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if wait_ns < max(LEAST_SHARE * whole, LEAST_NS, WAITING_LEAST * program.wall_ns):
        return []
    count = sum(row["waits"] for row in rows)
    function = busiest(sampled.of(rows[0]["process"]))[0] if sampled else ""
    runs = f" The process runs mostly in {function}." if METHOD.match(function) else ""
    text = (
        f"{NAME}: threads wait {duration(wait_ns)} in all for synchronized blocks or methods,"
        f" {count:,} times, {duration(wait_ns / max(count, 1))} each.{runs} Which,"
        f" only the JVM knows: jcmd PID Thread.print shows it, and so does async-profiler -e lock"
        f" [{MONITOR}]"
    )
    return [Finding(MONITOR, NAME, rows[0]["label"], "", wait_ns, None, None, text)]
