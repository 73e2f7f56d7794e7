# SPDX-License-Identifier: MIT
"""Locks that are never released again: threads wait for each other, or for one that kept a lock.

Only waits under way show them. A lock that is part of no ring counts as never released if a thread
has slept for it for long, and for much longer than any hold of it that was seen to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse.query import frames
from rouse.query.demand import key_of
from rouse.query.finding import Finding, Row, lock_name, lock_words
from rouse.query.locks import LOCK, NAME
from rouse.query.measures import UNSEEN, labelled
from rouse.tables.engine import Database
from rouse.tables.views import LOCK_KINDS, NOT_KNOWN, names, quoted, texts
from rouse.text import counted, duration

DEADLOCK, NEVER_RELEASED = "deadlock", "never-released"
LONG_NS = 1_000_000_000
LONG = 3  # times the longest hold
SHOWN = 4  # threads of a ring
FOR_CLIENTS = ("accept", "poll")
IN_ORDER = "Acquire these locks in the same order everywhere."
NOT_TWICE = "Call a function that expects the lock, or unlock before."
DOES = {
    "mutex": "for another lock",
    "rwlock": "for another lock",
    "cond": "for a condition",
    "sem": "for a semaphore",
    "join": "for another thread or process",
    "io": "to read or write",
    "accept": "for clients",
    "poll": "for descriptors",
    "sleep": "for the time",
}
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Wait:
    """A thread that sleeps for a lock."""

    tid: int
    lock: Row
    since_ns: int
    waiter: str  # the label of the place
    caller: str  # the program's own function that called it; empty: not known
    holder_tid: int  # 0: not known
    holder: str  # the label of the place where the lock was acquired; empty: not known

    @property
    def words(self) -> str:
        return lock_words(self.lock, self.waiter)

    @property
    def place(self) -> str:
        return f"{self.waiter} (called by {self.caller})" if self.caller else self.waiter

    @property
    def acquired(self) -> str:
        return f", acquired at {self.holder}," if self.holder else ""


@dataclass
class Found:
    keys: set[Key] = field(default_factory=set)  # of locks, for which no gain can be stated
    findings: list[Finding] = field(default_factory=list)


def waits_for_locks() -> str:
    """The threads that sleep for a lock, with the lock and the place where it was acquired.

    only_site is the only place that was seen to acquire it: the holder's is not known if the thread
    had ended before.
    """
    rows = f"""
SELECT t.tid, t.since_ns, t.holder_tid, l.*, COALESCE(o.only_site, '{NOT_KNOWN}') AS only_site
FROM threads t JOIN (
    SELECT {names(LOCK)}, site, MAX(kind) AS kind, {NAME}, MAX(holder_site) AS holder_site
    FROM locks_now WHERE waiting > 0 GROUP BY {names(LOCK)}, site
) l ON l.process = t.process AND l."lock" = t.object AND l.site = t.wait_site
LEFT JOIN (
    SELECT process, "lock", MIN(site) AS only_site FROM locks_now WHERE acquired > 0
    GROUP BY process, "lock" HAVING MIN(site) = MAX(site)
) o ON o.process = t.process AND o."lock" = t.object
WHERE t.kind IN ({texts(LOCK_KINDS)}) AND t.state IN ('mutex', 'rwlock')
"""
    return labelled(
        labelled(rows, init_label="init_site", site_label="site"),
        ("since_ns DESC", "tid"),
        UNSEEN,
        holder_label="holder_site",
        only_label="only_site",
    )


def longest_holds(database: Database) -> dict[Key, int]:
    rows = database.rows(
        f"SELECT {names(LOCK)}, MAX(hold_most_ns) AS most_ns FROM locks_now GROUP BY {names(LOCK)}"
    )
    return {key_of(row): row["most_ns"] or 0 for row in rows}


def read(database: Database) -> list[Wait]:
    """Return the waits for locks that nobody has released for long, the longest first."""
    rows = database.rows(waits_for_locks())
    longest: dict[Key, int] = {}
    for row in rows:
        longest[key_of(row)] = max(longest.get(key_of(row), 0), row["since_ns"])
    if max(longest.values(), default=0) < LONG_NS:
        return []
    known = frames.functions(database, {row["site"] for row in rows})
    callers = {key: own[1].name for key, own in known.items() if len(own) > 1}
    return [
        Wait(
            tid=row["tid"],
            lock=row,
            since_ns=row["since_ns"],
            waiter=row["site_label"],
            caller=callers.get((row["process"], row["site"]), ""),
            holder_tid=row["holder_tid"],
            holder=next(
                (row[name] for name in ("holder_label", "only_label") if row[name] != UNSEEN), ""
            ),
        )
        for row in rows
        if longest[key_of(row)] >= LONG_NS
    ]


def chain_of(first: Wait, every: Sequence[Wait]) -> tuple[list[Wait], bool]:
    """Follow each wait to that of the thread which has the lock. Returns whether they are a ring.

    Of a ring, only its waits are returned.
    """
    by_tid = {(wait.lock["process"], wait.tid): wait for wait in every if wait.tid}
    chain = [first]
    while follower := by_tid.get((first.lock["process"], chain[-1].holder_tid)):
        if follower in chain:
            return chain[chain.index(follower) :], True
        chain.append(follower)
    return chain, False


def ring_words(ring: Sequence[Wait]) -> str:
    """ring: each waits for a lock that the next one has, and the last for one of the first."""
    if len(ring) == 1:
        (own,) = ring
        return f"thread {own.tid} has {own.words}{own.acquired} and waits for it at {own.place}"
    parts = []
    for before, wait in zip((ring[-1], *ring), ring, strict=False):
        parts.append(
            f"thread {wait.tid} has {before.words}{before.acquired} and waits for {wait.words}"
            f" at {wait.place}"
        )
    more = len(parts) - SHOWN
    return "; ".join(parts[:SHOWN]) + (f"; and {more} more threads in the ring" if more > 0 else "")


def holder_of(wait: Wait, database: Database) -> Row | None:
    """Return the thread that has the lock of a wait, with its state. None: not known, or none."""
    rows = database.rows(
        labelled(
            f"SELECT process, state, wait_site FROM threads WHERE tid = {wait.holder_tid}"
            f" AND process = {quoted(wait.lock['process'])}",
            label="wait_site",
        )
    )
    return rows[0] if wait.holder_tid and rows else None


def kept_words(wait: Wait, holder: Row | None, since: str) -> str:
    """Say which lock is kept, who waits for it, and what the thread does that has it."""
    thread = f"thread {wait.tid}" if wait.tid else "a thread"  # a user thread has no number
    waits = f"{thread} waits for it at {wait.place}"
    if not wait.holder_tid:
        last = f" The last one that is known acquired it at {wait.holder}." if wait.holder else ""
        return f"{wait.words} was not free {since}: {waits}; who has it is not known.{last}"
    has = f"{wait.words}{wait.acquired} was not released {since}: {waits}"
    if not holder:
        return (
            f"{has}; thread {wait.holder_tid} has it, which is no thread of the process: it has"
            " ended, or has stayed in the parent at a fork."
        )
    state = holder["state"]
    does = f"waits {DOES.get(state, state)} at {holder['label']}"
    if state in ("USR", "LAT"):
        does = "runs, or sleeps in a call that rouse does not see"
    return f"{has}; thread {wait.holder_tid} has it, and {does}."


def is_leader(wait: Wait, holder: Row | None) -> bool:
    """Whether the thread with the lock waits for clients, in place of those that wait for it.

    They come from the same place, to wait for clients in turn.
    """
    if holder is None or wait.waiter != wait.holder:
        return False
    return holder["state"] in FOR_CLIENTS


def find(database: Database) -> Found:
    every = read(database)
    if not every:
        return Found()
    holds = longest_holds(database)
    found = Found()
    groups: dict[frozenset[Key], tuple[list[Wait], list[Wait], bool]] = {}
    for wait in every:
        chain, is_ring = chain_of(wait, every)
        named = chain if is_ring else chain[-1:]
        locks = frozenset(key_of(each.lock) for each in named)
        groups.setdefault(locks, (named, [], is_ring))[1].append(wait)
    for named, waiters, is_ring in groups.values():
        first = named[0]
        since_ns = max(wait.since_ns for wait in waiters if key_of(wait.lock) == key_of(first.lock))
        if not is_ring and since_ns < LONG * holds.get(key_of(first.lock), 0):
            continue
        found.keys |= {key_of(wait.lock) for wait in waiters}
        # Of a mutex, the holder is not known if processes share it: one of them may lead others.
        is_anyones = not first.holder_tid and first.lock["kind"] == "mutex"
        holder = holder_of(first, database)
        if is_ring or not (is_anyones or is_leader(first, holder)):
            found.findings.append(finding_of(named, waiters, is_ring, holder))
    return found


def finding_of(
    named: Sequence[Wait], waiters: Sequence[Wait], is_ring: bool, holder: Row | None
) -> Finding:
    """waiters: the threads that wait for the named waits to end, and those of these waits."""
    first = named[0]
    others = len(waiters) - (len(named) if is_ring else 1)
    more = f" {counted(others, 'other thread waits', 'other threads wait')} too." if others else ""
    since = f"for the last {duration(min(wait.since_ns for wait in named))}"
    if is_ring:
        advice = IN_ORDER if len(named) > 1 else NOT_TWICE
        text = f"deadlock {since}: {ring_words(named)}.{more} {advice} [{DEADLOCK}]"
    else:
        text = f"{kept_words(first, holder, since)}{more} [{NEVER_RELEASED}]"
    return Finding(
        DEADLOCK if is_ring else NEVER_RELEASED,
        lock_name(first.lock),
        first.waiter,
        first.holder if is_ring or first.holder_tid else "",
        sum(wait.since_ns for wait in waiters),
        None,
        None,
        text,
    )
