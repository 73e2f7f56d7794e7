# SPDX-License-Identifier: MIT
"""Locks of files, by flock(), lockf() and fcntl(), which processes share.

The kernel has them, and does not tell who holds one, or for how long: only the waits are recorded.
"""

from __future__ import annotations

from rouse.query import gain, measures
from rouse.query.demand import load_without
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, Finding
from rouse.query.program import STATES, Program
from rouse.tables.engine import Database
from rouse.text import duration

FILE_LOCK = "file-lock"


def find(database: Database, program: Program) -> list[Finding]:
    rows = [row for row in database.rows(measures.waits_and_wakes()) if row["kind"] == "file lock"]
    wait_ns, count = (sum(row[key] for row in rows) for key in ("wait_ns", "count"))
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if wait_ns < max(LEAST_SHARE * whole, LEAST_NS):
        return []
    load = load_without(0, ("mutex",), program)  # they count as waits for mutexes
    most, expected = gain.bound(load, []), gain.estimate(load, [])
    if most < LEAST_GAIN:
        return []
    waiter = rows[0]["label"]
    text = (
        f"{waiter} waits {duration(wait_ns)} in all for locks of files, {count:,} times,"
        f" {duration(wait_ns / max(count, 1))} each. Which thread or process holds one meanwhile,"
        f" the kernel does not tell; those of now are in /proc/locks. Without these waits at most"
        f" {most:.2f}x, about {expected:.2f}x the throughput [{FILE_LOCK}]"
    )
    return [Finding(FILE_LOCK, "files", waiter, "", wait_ns, most, expected, text)]
