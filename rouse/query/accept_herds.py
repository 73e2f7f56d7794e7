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
    found = [finding(row, program) for row in database.rows(listeners.listeners())]
    return [each for each in found if each]


def finding(row: Row, program: Program) -> Finding | None:
    useless = row["in_vain"] + row["lost"]
    blame = useless * SWITCH_NS
    least = max(LEAST_NS, LEAST_SHARE * program.ran_ns)
    if useless < WAKES_LEAST or (row["woken_each"] or 0) < EACH_LEAST or blame < least:
        return None
    name = row["name"] or f"listener {row['listener']}"
    waiters = counted(row["threads"], "thread")
    if row["processes"] > 1:
        waiters += f" of {row['processes']} processes"
    text = (
        f"{name}: each connection wakes {row['woken_each']:.1f} of {waiters} that wait for it, and"
        f" one gets it: {useless:,} wake-ups were spurious. EPOLLEXCLUSIVE, or a listener for each"
        f" (SO_REUSEPORT), wakes one; rouse run --accept fifo shows the effect [{ACCEPT_HERD}]"
    )
    return Finding(ACCEPT_HERD, name, "-", "-", blame, None, None, text)
