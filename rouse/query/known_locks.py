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
    kinds: tuple[str, ...] = ()  # of the waits; empty: any


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
    # The same without its symbols, as Debian delivers MariaDB: there only the interface of storage
    # engines is known. InnoDB waits for its own structures by futexes and mutexes.
    Known(
        re.compile(r"handler::ha_\w+|handler::(read|index|rnd)_\w+"),
        "MariaDB's storage engine, without its symbols",
        "a condition, most likely a row of another transaction",
        "INNODB_LOCK_WAITS in information_schema shows",
        ("condition",),
    ),
)


def find(database: Database, program: Program) -> list[Finding]:
    rows = database.rows(measures.waits_and_wakes())
    functions = frames.functions(database, {row["wait_site"] for row in rows})
    groups: dict[Known, list[Row]] = {}
    for row in rows:
        if known := known_of(row, functions):
            groups.setdefault(known, []).append(row)
    found = [finding(own, known, functions, program) for known, own in groups.items()]
    return [each for each in found if each]


def known_of(row: Row, functions: frames.Known) -> Known | None:
    passed = functions.get((row["process"], row["wait_site"]), [])
    for known in KNOWN:
        if (not known.kinds or row["kind"] in known.kinds) and any(
            known.function.fullmatch(function.name) for function in passed
        ):
            return known
    return None


def caller(row: Row, known: Known, functions: frames.Known) -> str:
    """The function that needs the lock, or else the outermost one of the lock that is known."""
    passed = [function.name for function in functions.get((row["process"], row["wait_site"]), [])]
    inside = [number for number, name in enumerate(passed) if known.function.fullmatch(name)]
    outer = [name for name in passed[inside[-1] + 1 :] if not name.startswith(("Lock", "LWLock"))]
    return outer[0] if outer else passed[inside[-1]]


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
        f" {duration(waited / max(count, 1))}, most of it in {longest};"
        f" {known.shown_by} which [{DATABASE_LOCK}]"
    )
    return Finding(
        *(DATABASE_LOCK, known.name, longest, ""),
        *(round(waited), None, None, text),
    )
