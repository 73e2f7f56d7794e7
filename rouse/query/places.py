# SPDX-License-Identifier: MIT
"""Where threads waited, and which of these waits are idle: for work, not for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rouse.query import measures
from rouse.query.finding import most_of
from rouse.query.specs import Row
from rouse.tables.engine import Database
from rouse.tables.views import CLIENTS, NOT_KNOWN

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
    "epoll": "I/O",
    "read": "I/O",
    "signal": "I/O",
    "message": "I/O",
    "accept": CLIENTS,
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
        part = CLIENTS if row["object_name"] == CLIENTS else OF_WORK.get(row["kind"])
        if part and is_idle(row, duration_ns):
            found[part] = found.get(part, 0.0) + row["wait_ns"]
    return found


@dataclass(frozen=True)
class Event:
    """Threads of all processes wait at one place for a call of another thread."""

    wait_label: str
    wake_label: str
    wait_ns: int


def longest_event(database: Database, duration_ns: float) -> Event | None:
    """Return the place where threads wait longest for a known call of other threads."""
    known = [
        row
        for row in rows(database)
        if row["role"] == "woke"
        and row["other_site"] != NOT_KNOWN
        and not is_idle(row, duration_ns)
    ]
    waited: Counter[str] = Counter()
    for row in known:
        waited[row["wait_label"]] += row["wait_ns"]
    if not waited:
        return None
    ((place, wait_ns),) = waited.most_common(1)
    return Event(
        place, most_of([row for row in known if row["wait_label"] == place], "other_label"), wait_ns
    )
