# SPDX-License-Identifier: MIT
"""Threads that are joined one by one, so that none runs beside its successor, and brief threads.

`std::async` and `get()` in a loop start and join them one by one. A thread for each piece of little
work takes longer to start and to end than to do it.
"""

from __future__ import annotations

from rouse.query import measures
from rouse.query.demand import least_ran
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, Finding, Row, most_of
from rouse.query.program import STATES, Program
from rouse.query.ran import Running, busiest
from rouse.query.stragglers import cut, work_of
from rouse.tables.engine import Database
from rouse.text import duration, share

JOINED_AT_ONCE, BRIEF_THREADS = "joined-at-once", "brief-threads"
LEAST, RATE = 20, 20  # joins, and their rate per s
MOSTLY = 0.5
NEARLY_ALL = 0.9  # of the threads that are joined: those are known that have waited for something
# How much longer than its joins the lives of all joined threads are: if two run beside each other,
# twice as long.
LONGER_MOST = 1.3
BRIEF_RATE = 1000  # threads per s, and at least as many in all
BRIEF_RAN = 0.3  # of the elapsed time


def find(database: Database, program: Program, sampled: Running | None) -> list[Finding]:
    sites: dict[tuple[str, str], list[Row]] = {}
    for row in database.rows(measures.wake_ledger(cut)):
        if row["kind"] == "join":
            sites.setdefault((row["process"], row["wait_site"]), []).append(row)
    groups = database.rows("SELECT * FROM groups_seen WHERE NOT is_user") if sites else []
    found = (
        finding(database, rows, groups, program, sampled)
        for rows in sites.values()
        if sum(row["count"] for row in rows) >= max(LEAST, RATE * program.wall_ns / 1e9)
    )
    made = [each for each in found if each]
    if sampled is None:
        return made
    for process in sampled.begun:
        own = [row for (of, _), rows in sites.items() if of == process for row in rows]
        if few := brief(process, most_of(own, "wait_label"), program, sampled):
            made.append(few)
    return made


def finding(
    database: Database,
    joins: list[Row],
    groups: list[Row],
    program: Program,
    sampled: Running | None,
) -> Finding | None:
    """joins: those at one place."""
    process, label = joins[0]["process"], joins[0]["wait_label"]
    count, wait_ns = (sum(row[name] for row in joins) for name in ("count", "wait_ns"))
    if wait_ns < max(LEAST_SHARE * program.sum(*STATES), LEAST_NS):
        return None
    own = [group for group in groups if group["process"] == process]
    ended = sum(group["threads"] for group in own)
    # Those that join may have ended themselves.
    lived_ns = sum(group["wall_ns"] - group["join"] for group in own)
    ran = least_ran(program.ran_ns, 0, program)
    most = program.processors * program.wall_ns / max(ran, 1.0)
    if (
        not NEARLY_ALL * count <= ended <= count / MOSTLY
        or lived_ns > LONGER_MOST * wait_ns
        or most < LEAST_GAIN
    ):
        return None
    how, work, _ = work_of(database, process, sampled)
    at = f" A joined thread {how} {work}." if work else ""
    text = (
        f"{label} joins {count:,} threads one by one, and waits {duration(wait_ns / count)} for"
        f" each, {duration(wait_ns)} in all: none of them runs beside its successor.{at} If several"
        f" are started before the first is joined, at most {most:.2f}x the throughput; else a call"
        f" does the same without a thread [{JOINED_AT_ONCE}]"
    )
    return Finding(JOINED_AT_ONCE, "-", label, work, wait_ns, most, None, text)


def brief(process: str, label: str, program: Program, sampled: Running) -> Finding | None:
    """Threads that are started so often that the kernel has most of the work.

    label: where they are joined. Empty: nowhere. The time of the work alone is not known.
    """
    count = sampled.begun.get(process, 0)
    stacks = sampled.of(process)
    ran, in_kernel = (
        sum(stack.ns for stack in some)
        for some in (stacks, [stack for stack in stacks if stack.is_in_kernel])
    )
    is_often = count >= BRIEF_RATE * program.wall_ns / 1e9 and count >= BRIEF_RATE
    if not is_often or in_kernel < MOSTLY * ran or ran < BRIEF_RAN * program.wall_ns:
        return None
    starting = [stack for stack in stacks if stack.is_in_kernel]
    function = busiest(starting)[0]
    where = f"{label} joins them, and" if label else "the program"
    text = (
        f"{count:,} threads are started, {duration(program.wall_ns / count)} apart: {where} runs"
        f" {share(in_kernel / ran)} % of its CPU time in the kernel, mostly for {function}. Threads"
        f" that stay and take work from a queue save that [{BRIEF_THREADS}]"
    )
    waiter = label or function
    return Finding(BRIEF_THREADS, "-", waiter, function, round(in_kernel), None, None, text)
