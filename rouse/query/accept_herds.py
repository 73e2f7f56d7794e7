# SPDX-License-Identifier: MIT
"""Listeners of which each connection wakes several threads or processes."""

from __future__ import annotations

from rouse.query import listeners
from rouse.query.demand import SWITCH_NS
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding, Row
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.text import counted

ACCEPT_HERD = "accept-herd"
WAKES_LEAST = 100  # that found no connection
EACH_LEAST = 1.5  # wake-ups per connection


def find(database: Database, program: Program) -> list[Finding]:
    rows = database.rows(listeners.listeners())
    # Where there are several, nobody knows which one a thread waits for.
    place = listeners.waits_at(database) if len(rows) == 1 else ""
    found = [finding(row, program, place) for row in rows]
    return [each for each in found if each]


def finding(row: Row, program: Program, place: str) -> Finding | None:
    useless = row["in_vain"] + row["lost"]
    blame = useless * SWITCH_NS
    least = max(LEAST_NS, LEAST_SHARE * program.ran_ns)
    if useless < WAKES_LEAST or (row["woken_each"] or 0) < EACH_LEAST or blame < least:
        return None
    name = row["name"] or str(row["listener"])
    waiters = counted(row["threads"], "thread")
    if row["processes"] > 1:
        waiters += f" of {row['processes']} processes"
    where = f" at {place}" if place else ""
    text = (
        f"the listener {name}: each connection wakes {row['woken_each']:.1f} of {waiters} that wait"
        f" for it{where}, and one gets it: {useless:,} wake-ups were spurious. EPOLLEXCLUSIVE, or a"
        f" listener for each (SO_REUSEPORT), wakes one; rouse run --accept fifo shows the effect"
        f" [{ACCEPT_HERD}]"
    )
    return Finding(ACCEPT_HERD, name, place or "-", "-", blame, None, None, text)
