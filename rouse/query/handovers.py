# SPDX-License-Identifier: MIT
"""Queues whose items come one by one, sooner than the thread that takes them is woken.

A thread that sleeps for less time than its wake-up takes should not have slept: it is woken for
each item, and the wake-ups cost more than the waits that they end. If it then finds nothing, as
another thread was faster, it is the same fault: each call woke one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from rouse.query import herds, java_locks, measures
from rouse.query.demand import SWITCH_NS
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding, Row
from rouse.query.program import STATES, Program
from rouse.query.specs import address
from rouse.tables.engine import Database
from rouse.tables.schemas import PRELOAD
from rouse.tables.views import NOT_KNOWN
from rouse.text import duration

SIGNAL_PER_ITEM = "signal-per-item"
# Both a wait and its wake-up vary from run to run. A wait that is up to WAIT_MOST times as long as
# the wake-up counts where the wake-ups take a great part of the threads' time.
WAIT_MOST = 2.5
LONGER_SHARE = 0.2
ROWS_MOST = 200  # of wake-ups, the longest time to run first
LEAST_RATE = 1000  # wake-ups per s, and at least as many in all
USELESS_MOST = 0.4  # of the wake-ups; more are a herd, if many threads were woken together


def cut(rows: str, _order: Sequence[str]) -> str:
    return (
        f"SELECT * FROM ({rows}) w WHERE kind IN ('condition', 'semaphore', 'futex')"
        f" AND wake_site <> '{NOT_KNOWN}' ORDER BY late_ns DESC LIMIT {ROWS_MOST}"
    )


def find(database: Database, program: Program) -> list[Finding]:
    kernel_threads = {
        row["process"] for row in database.rows(measures.processes()) if row["recorder"] == PRELOAD
    }
    sites: dict[tuple[str, str, str], list[Row]] = {}
    rows = database.rows(measures.wake_ledger(cut))
    of_java = java_locks.sites(database) if rows else set()
    for row in rows:
        if row["process"] not in kernel_threads:
            continue  # a switch of user threads costs a hundredth
        if (row["process"], row["wait_site"]) in of_java:
            continue  # it waits for a lock
        sites.setdefault((row["process"], row["kind"], row["wait_site"]), []).append(row)
    found = [finding(rows, program) for rows in sites.values()]
    return [each for each in found if each]


def finding(rows: list[Row], program: Program) -> Finding | None:
    """rows: the wake-ups of one wait site."""
    count, wait_ns, late_ns = (
        sum(row[key] for row in rows) for key in ("count", "wait_ns", "late_ns")
    )
    useless = sum(row["lost_race"] + row["false_"] for row in rows)
    whole = program.sum(*STATES) - program.sum("join", "accept")
    cost = late_ns + count * SWITCH_NS
    if rows[0]["kind"] == "futex":
        useless = max(useless, herds.without_work(count, program))
    is_herd = useless > USELESS_MOST * count and program.has_herds(useless)
    if is_herd or count < LEAST_RATE * max(program.wall_ns / 1e9, 1):
        return None
    share = LEAST_SHARE if wait_ns <= cost else LONGER_SHARE
    if wait_ns >= WAIT_MOST * cost or cost < max(share * whole, LEAST_NS):
        return None
    most = max(rows, key=lambda row: row["count"])
    name = most["object_name"] or (address(most["object"]) if most["object"] else "-")
    waiter, waker = most["wait_label"], most["wake_label"]
    text = (
        f"{name}: {waiter} is woken {count:,} times by {waker}, after {duration(wait_ns / count)}"
        f" each, and the wake-up takes {duration(cost / count)}: the threads do little between two"
        f" waits. Hand over several items at a time, or to fewer threads [{SIGNAL_PER_ITEM}]"
    )
    return Finding(SIGNAL_PER_ITEM, name, waiter, waker, round(cost), None, None, text)
