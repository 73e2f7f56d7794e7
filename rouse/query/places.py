# SPDX-License-Identifier: MIT
"""Where threads waited, and which of these waits are idle: for work, not for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rouse.query import java_locks, measures
from rouse.query.finding import most_of
from rouse.query.polling import function_of
from rouse.query.specs import Row
from rouse.tables.engine import Database
from rouse.tables.views import CLIENTS, NOT_KNOWN, quoted

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


# Kinds of waits that are work, of a thread that others wait for: what it does in each.
AT_WORK = {
    "sleep": "sleeps",
    "read": "reads",
    "write": "writes",
    "sync": "syncs",
    "connect": "connects",
    "message": "sends and receives",
}
BACK_LEAST = 0.1  # of the waits for another thread, which waits in turn


@dataclass(frozen=True)
class Place:
    """Waits of all processes of one kind at one place."""

    label: str
    kind: str
    wait_ns: int
    count: int


@dataclass(frozen=True)
class Event:
    """Threads of all processes wait at one place for a call of another thread."""

    wait_label: str
    wake_label: str
    wait_ns: int
    count: int
    back_ns: int = 0  # how long the function of that call waited for them
    work: Place | None = None  # what that function waited for otherwise, the longest


def longest(
    database: Database, part: str, kinds: Sequence[str], duration_ns: float
) -> Place | None:
    """Return the place with the longest waits of these kinds. part: that of the threads' time."""
    return longest_of(
        row
        for row in rows(database)
        if row["kind"] in kinds
        and not (OF_WORK.get(row["kind"]) == part and is_idle(row, duration_ns))
    )


def longest_of(some: Iterable[Row]) -> Place | None:
    waited: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for row in some:
        key = (row["wait_label"], row["kind"])
        waited[key] += row["wait_ns"]
        counts[key] += row["count"] + row["waiting"]
    if not waited:
        return None
    ((key, wait_ns),) = waited.most_common(1)
    return Place(*key, wait_ns, counts[key])


def is_nameless(database: Database, label: str) -> bool:
    """Whether the function of a site is not known: its label has a module, and the offset in it."""
    return bool(
        database.rows(
            "SELECT l.label FROM labels l JOIN sites s ON s.process = l.process"
            " AND s.site = l.site AND s.frame = 0"
            f' WHERE s."function" IS NULL AND l.label = {quoted(label)} LIMIT 1'
        )
    )


def longest_event(database: Database, duration_ns: float) -> Event | None:
    """Return the place where threads wait longest for a known call of other threads.

    A JVM's own threads do not count.
    """
    internal = java_locks.internal_sites(database)
    known = [
        row
        for row in rows(database)
        if row["role"] == "woke"
        and (row["process"], row["wait_site"]) not in internal
        and row["other_site"] != NOT_KNOWN
        and not is_idle(row, duration_ns)
    ]
    waited: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for row in known:
        waited[row["wait_label"]] += row["wait_ns"]
        counts[row["wait_label"]] += row["count"]
    if not waited:
        return None
    ((place, wait_ns),) = waited.most_common(1)
    waker = most_of([row for row in known if row["wait_label"] == place], "other_label")
    if is_nameless(database, waker):
        return Event(place, waker, wait_ns, counts[place])
    function = function_of(waker)
    back_ns = sum(
        row["wait_ns"]
        for row in known
        if function_of(row["wait_label"]) == function
        and function_of(row["other_label"]) == function_of(place)
    )
    work = longest_of(
        row
        for row in rows(database)
        if row["kind"] in AT_WORK and function_of(row["wait_label"]) == function
    )
    is_mutual = function != function_of(place) and back_ns >= BACK_LEAST * wait_ns
    return Event(place, waker, wait_ns, counts[place], back_ns if is_mutual else 0, work)
