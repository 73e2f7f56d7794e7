# SPDX-License-Identifier: MIT
"""Where threads waited, and which of these waits are idle: for work, not for each other."""

from __future__ import annotations

from collections.abc import Sequence

from rouse.query import measures
from rouse.query.specs import Row
from rouse.tables.engine import Database

READ_MOST = 5000  # rows, the longest waits first
# A thread that waits so long each time waits for work: in ns, and as a share of the recording.
IDLE_LEAST_NS, IDLE_SHARE = 50_000_000, 0.01
# The kinds of waits that threads without work are in, and the part of the time that each is in.
OF_WORK = {
    "condition": "conditions",
    "semaphore": "conditions",
    "futex": "conditions",
    "poll": "I/O",
    "set": "I/O",
    "read": "I/O",
    "signal": "I/O",
    "message": "I/O",
    "accept": "accept",
}


def rows(database: Database) -> list[Row]:
    """Return the wait sites. A database runs the query once."""

    def cut(text: str, order: Sequence[str]) -> str:
        return f"{measures.whole(text, order)} LIMIT {READ_MOST}"

    return database.rows(measures.wait_sites(cut))


def is_idle(row: Row, duration_ns: float) -> bool:
    """Whether the waits of a row are for the next work, such as a pool's or a listener's."""
    each = row["wait_ns"] / max(row["count"] + row["waiting"], 1)
    is_long = each >= max(IDLE_LEAST_NS, IDLE_SHARE * duration_ns)
    return row["is_idle"] or (row["kind"] in OF_WORK and is_long)


def idle_parts(database: Database, duration_ns: float) -> dict[str, float]:
    """Return the idle time by part of the threads' time, in ns."""
    found: dict[str, float] = {}
    for row in rows(database):
        part = OF_WORK.get(row["kind"])
        if part and is_idle(row, duration_ns):
            found[part] = found.get(part, 0.0) + row["wait_ns"]
    return found
