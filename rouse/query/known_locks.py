# SPDX-License-Identifier: MIT
"""Locks of well-known programs that are no lock of a library: of rows, tables and shared memory.

Such a lock is a state in memory, and a thread or process waits for a message that it is free. The
function in which it waits tells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rouse.query import frames, measures
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding, Row
from rouse.query.program import STATES, Program
from rouse.tables.engine import Database
from rouse.text import duration

DATABASE_LOCK = "database-lock"


@dataclass(frozen=True)
class Known:
    function: re.Pattern[str]
    name: str
    what: str
    shown_by: str


KNOWN = (
    Known(
        re.compile(r"ProcSleep"),
        "PostgreSQL's lock manager",
        "a row, a table or another transaction",
        "pg_locks, and pg_blocking_pids() in pg_stat_activity, show",
    ),
    Known(
        re.compile(r"LWLock(Acquire(OrWait)?|WaitForVar)"),
        "PostgreSQL's LWLocks",
        "a structure in shared memory",
        "wait_event in pg_stat_activity shows",
    ),
    Known(
        re.compile(r"lock_wait(_suspend_thread)?"),
        "InnoDB's row locks",
        "a row of another transaction",
        "INNODB_LOCK_WAITS in information_schema shows",
    ),
)


def find(database: Database, program: Program) -> list[Finding]:
    rows = database.rows(measures.waits_and_wakes())
    functions = frames.functions(database, {row["wait_site"] for row in rows})
    found = []
    for known in KNOWN:
        own = [row for row in rows if is_of(row, known, functions)]
        found += [finding(own, known, functions, program)] if own else []
    return [each for each in found if each]


def is_of(row: Row, known: Known, functions: frames.Known) -> bool:
    passed = functions.get((row["process"], row["wait_site"]), [])
    return any(known.function.fullmatch(function.name) for function in passed)


def caller(row: Row, known: Known, functions: frames.Known) -> str:
    """The function that needs the lock. Empty: not known."""
    passed = [function.name for function in functions.get((row["process"], row["wait_site"]), [])]
    inside = [number for number, name in enumerate(passed) if known.function.fullmatch(name)]
    outer = passed[inside[-1] + 1 :]
    return next((name for name in outer if not name.startswith(("Lock", "LWLock"))), "")


def finding(
    rows: Sequence[Row], known: Known, functions: frames.Known, program: Program
) -> Finding | None:
    waited = sum(row["wait_ns"] for row in rows)
    if waited < max(LEAST_SHARE * (program.sum(*STATES) - program.sum("join", "accept")), LEAST_NS):
        return None
    count = sum(row["count"] for row in rows)
    below: Counter[str] = Counter()
    for row in rows:
        below[caller(row, known, functions)] += row["wait_ns"]
    (longest, _), *_ = below.most_common(1)
    on_average = waited / (program.wall_ns or 1)
    text = (
        f"{known.name}: {on_average:.1f} of its threads or processes wait on average for"
        f" {known.what}, {duration(waited)} in all, {count:,} times for"
        f" {duration(waited / max(count, 1))}{longest and f', most of it in {longest}'};"
        f" {known.shown_by} which [{DATABASE_LOCK}]"
    )
    return Finding(
        *(DATABASE_LOCK, known.name, longest or rows[0]["label"], ""),
        *(round(waited), None, None, text),
    )
