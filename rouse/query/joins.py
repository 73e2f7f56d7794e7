# SPDX-License-Identifier: MIT
"""Threads that are started and joined one by one, so that none runs beside its successor.

`std::async` and `get()` in a loop do so, and so does a thread for each piece of work.
"""

from __future__ import annotations

from rouse.query import measures
from rouse.query.demand import least_ran
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, Finding, Row
from rouse.query.program import STATES, Program
from rouse.query.ran import Running
from rouse.query.stragglers import cut, work_of
from rouse.tables.engine import Database
from rouse.text import duration

JOINED_AT_ONCE = "joined-at-once"
LEAST, RATE = 20, 20  # joins, and their rate per s
MOSTLY = 0.5  # of the threads that ended
# How much longer than its joins the lives of all joined threads are: if two run beside each other,
# twice as long.
LONGER_MOST = 1.3


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
    return [each for each in found if each]


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
    if count < MOSTLY * ended or lived_ns > LONGER_MOST * wait_ns or most < LEAST_GAIN:
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
