# SPDX-License-Identifier: MIT
"""Processes that share a listener, of which one has most of the connections and of the work."""

from __future__ import annotations

from rouse.query import measures
from rouse.query.finding import DESCRIPTORS, LEAST_NS, Finding, Row
from rouse.query.listeners import waits_at
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.text import counted, share

UNEVEN = "uneven-accept"
JAIN_MOST = 0.7  # Jain's index of the processes' connections; 1: all have equally many
EACH_LEAST = 2  # connections per process
BUSY_LEAST, IDLE_MOST = 0.5, 0.5  # of the busiest process, and of the others compared with it
AT_WORK = ("usr", "lat", "mutex", "rwlock", "io", "sleep", "cond", "sem")
ACCEPTED = """
SELECT listener, process, MAX(name) AS name, SUM(accepted) AS accepted FROM listeners
GROUP BY listener, process ORDER BY listener, process
"""


def find(database: Database, program: Program) -> list[Finding]:
    listeners: dict[str, list[Row]] = {}
    for row in database.rows(ACCEPTED):
        listeners.setdefault(row["listener"], []).append(row)
    if not listeners:
        return []
    looks = places_of_looks(database)
    accepting = {row["process"] for rows in listeners.values() for row in rows}
    others = {process: looks[process] for process in looks.keys() - accepting}
    found = []
    for rows in listeners.values():
        places = set().union(*(looks.get(row["process"], set()) for row in rows))
        found.append(finding(database, rows + without_any(places, others), program))
    return [each for each in found if each]


def places_of_looks(database: Database) -> dict[str, set[str]]:
    """By process, the places at which it waits for its descriptors."""
    found: dict[str, set[str]] = {}
    for row in database.rows(measures.waits_and_wakes()):
        if row["kind"] in DESCRIPTORS:
            found.setdefault(row["process"], set()).add(row["label"])
    return found


def without_any(places: set[str], others: dict[str, set[str]]) -> list[Row]:
    """Rows for the processes that wait at the places of a listener, and never called accept.

    Their set has the listener, but the others are faster. others: the places at which processes
    without a listener wait.
    """
    return [
        {"process": process, "accepted": 0, "name": None}
        for process in sorted(others)
        if others[process] & places
    ]


def busy(process: str, program: Program) -> float:
    """The share of its time in which the busiest threads of a process were at work."""
    rows = [row for row in program.threads if row.get("process") == process]
    shares = [program.sum(*AT_WORK, rows=[row]) / (row["wall_ns"] or 1) for row in rows]
    return max(shares, default=0.0)


def finding(database: Database, rows: list[Row], program: Program) -> Finding | None:
    """rows: the processes of one listener."""
    if len(rows) < 2:
        return None
    counts = [int(row["accepted"]) for row in rows]
    whole, squares = sum(counts), sum(count * count for count in counts)
    if whole < EACH_LEAST * len(rows) or whole * whole > JAIN_MOST * len(rows) * squares:
        return None
    first = max(rows, key=lambda row: row["accepted"])
    most = busy(first["process"], program)
    others = [busy(row["process"], program) for row in rows if row is not first]
    mean = sum(others) / len(others)
    blame = round((most - mean) * program.wall_ns)
    if most < BUSY_LEAST or mean > IDLE_MOST * most or blame < LEAST_NS:
        return None
    name = first["name"] or str(first["listener"])
    place = waits_at(database, first["process"])
    where = f", at {place}" if place else ""
    text = (
        f"the listener {name}{where}: one of {len(rows)} processes took {first['accepted']:,} of"
        f" {counted(whole, 'connection')} and is busy {share(most)} % of the time, the others"
        f" {share(mean)} % on average; rouse run --accept fifo shows an even order [{UNEVEN}]"
    )
    return Finding(UNEVEN, name, place or "-", first["process"], blame, None, None, text)
