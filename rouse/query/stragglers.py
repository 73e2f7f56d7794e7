# SPDX-License-Identifier: MIT
"""Threads that others wait for at a barrier or a join, because they have more work."""

from __future__ import annotations

from collections.abc import Sequence

from rouse.query import gain, measures
from rouse.query.demand import least_ran, load_without
from rouse.query.finding import LEAST_NS, Finding, Row
from rouse.query.program import Program
from rouse.query.specs import address
from rouse.tables.engine import Database
from rouse.text import counted, duration

STRAGGLER = "straggler"
ROWS_MOST = 100  # of waits, the longest first
LEAST_GAIN = 1.1  # some always arrive later than others
BARRIER_LEAST = 10  # waits
QUEUED_MOST = 0.5  # of the time waited
# Threads that are joined, and how much shorter than the longest the others are.
THREADS_LEAST, THREADS_MOST = 3, 256
SHORT_LEAST, SHORT_MOST = 0.05, 0.5
AT_WORK = ("usr", "lat", "mutex", "rwlock", "io", "sleep")
BUSY = 0.7  # of the threads' time
JOINED = 0.2  # of the elapsed time


def cut(rows: str, _order: Sequence[str]) -> str:
    return (
        f"SELECT * FROM ({rows}) w WHERE kind IN ('barrier', 'join')"
        f" ORDER BY wait_ns DESC LIMIT {ROWS_MOST}"
    )


def find(database: Database, program: Program) -> list[Finding]:
    rows = database.rows(measures.wake_ledger(cut))
    found = barriers([row for row in rows if row["kind"] == "barrier"], program)
    joins = [row for row in rows if row["kind"] == "join"]
    if joins:
        groups = database.rows("SELECT * FROM groups_seen WHERE NOT is_user")
        found += [each for join in joins for each in [joined(join, groups, program)] if each]
    return found


def queued_for(process: str, program: Program) -> float:
    """Return how long threads at barriers may have waited for others that had no processor.

    A thread that is queued for 1 ns may delay each of the others by as much.
    """
    rows = [row for row in program.threads if row.get("process") == process and row["join"]]
    threads: int = sum(row["threads"] for row in rows)
    return program.sum("lat", rows=rows) * max(threads - 1, 0)


def barriers(rows: list[Row], program: Program) -> list[Finding]:
    """The waits at each barrier, for the thread that arrives last because it has more work."""
    sites: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sites.setdefault((row["process"], row["wait_site"]), []).append(row)
    found = []
    for (process, _), some in sites.items():
        first = max(some, key=lambda row: row["wait_ns"])
        wait_ns, count = (sum(row[key] for row in some) for key in ("wait_ns", "count"))
        load = load_without(wait_ns, ("join",), program)
        most, expected = gain.bound(load, []), gain.estimate(load, [])
        if wait_ns < LEAST_NS or count < BARRIER_LEAST or expected < LEAST_GAIN:
            continue
        if queued_for(process, program) > QUEUED_MOST * wait_ns:
            continue
        name = first["object_name"] or (
            address(first["object"]) if first["object"] else "a barrier"
        )
        waiter = first["wait_label"]
        text = (
            f"{name}: threads wait {duration(wait_ns)} in all at {waiter},"
            f" {duration(wait_ns / count)} each, for the last one. With equal shares of the work at"
            f" most {most:.2f}x, about {expected:.2f}x the throughput [{STRAGGLER}]"
        )
        last = first["wake_label"]
        found.append(Finding(STRAGGLER, name, waiter, last, wait_ns, most, expected, text))
    return found


def joined(join: Row, groups: list[Row], program: Program) -> Finding | None:
    """One thread of a group that works for much longer than the others, while it is joined."""
    longest = join["wait_most_ns"]
    if longest < max(JOINED * program.wall_ns, LEAST_NS):
        return None
    for group in groups:
        threads, whole = group["threads"], group["wall_ns"]
        if group["process"] != join["process"] or not THREADS_LEAST <= threads <= THREADS_MOST:
            continue
        short = (whole - longest) / (threads - 1)
        is_uneven = SHORT_LEAST * longest <= short <= SHORT_MOST * longest
        if not is_uneven or program.sum(*AT_WORK, rows=[group]) < BUSY * whole:
            continue
        rest = program.wall_ns - longest + whole / threads
        all_ran = least_ran(program.ran_ns, group["waits"], program)
        most = program.wall_ns / max(rest, all_ran / program.processors)
        expected = program.wall_ns / max(rest, program.ran_ns / program.processors)
        if most < LEAST_GAIN:
            continue
        name, waiter = f"thread {group['name']}", join["wait_label"]
        text = (
            f"{waiter} joins {counted(threads, 'thread')}: one {group['name']} runs for"
            f" {duration(longest)}, the others for {duration(short)} on average. With equal shares"
            f" of the work at most {most:.2f}x, about {expected:.2f}x the throughput [{STRAGGLER}]"
        )
        lost = round((threads - 1) * (longest - short))
        return Finding(STRAGGLER, name, waiter, name, lost, most, expected, text)
    return None
