# SPDX-License-Identifier: MIT
"""Java's monitors: threads that wait for `synchronized` blocks and methods.

The JVM makes them of a mutex and a condition per thread. Its functions tell such a wait from
others. Which object it is for, and which method holds it, is in the JVM's own memory.
"""

from __future__ import annotations

import re

from rouse.query import measures
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding
from rouse.query.program import STATES, Program
from rouse.query.ran import Running, busiest
from rouse.tables.engine import Database
from rouse.text import duration

MONITOR = "java-monitor"
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


def sites(database: Database) -> set[tuple[str, str]]:
    """Return the processes and sites of these waits, which look like those for a pool or queue."""
    return {(row["process"], row["wait_site"]) for row in database.rows(WAITS)}


def find(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    rows = database.rows(measures.labelled(WAITS, ("wait_ns DESC",), label="wait_site"))
    wait_ns = sum(row["wait_ns"] for row in rows)
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if wait_ns < max(LEAST_SHARE * whole, LEAST_NS):
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
