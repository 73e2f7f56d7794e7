# SPDX-License-Identifier: MIT
"""Locks that are never released again: threads wait for each other, or for one that kept a lock.

Only waits under way show them. A lock counts as never released if a thread has slept for it for
long, and for much longer than any hold of it that was seen to end.
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
# A thread that waits so with a lock leads others, which come to wait for clients in turn.
FOR_CLIENTS = ("accept", "poll")
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
    holds = longest_holds(database)
    kept = {k for k, ns in longest.items() if ns >= max(LONG_NS, LONG * holds.get(k, 0))}
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
        if key_of(row) in kept
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
    return "; ".join(parts)


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


def holder_words(wait: Wait, holder: Row | None) -> str:
    """Say what the thread does that has the lock of a wait."""
    if not wait.holder_tid:
        return "which thread has it is not known"
    if not holder:
        return (
            f"thread {wait.holder_tid} has it, which is no thread of the process: it has ended, or"
            " has stayed in the parent at a fork"
        )
    state = holder["state"]
    does = "runs" if state in ("USR", "LAT") else f"waits ({state}) at {holder['label']}"
    return f"thread {wait.holder_tid} has it, and {does}"


def find(database: Database) -> Found:
    every = read(database)
    found = Found({key_of(wait.lock) for wait in every})
    groups: dict[frozenset[Key], tuple[list[Wait], list[Wait], bool]] = {}
    for wait in every:
        chain, is_ring = chain_of(wait, every)
        named = chain if is_ring else chain[-1:]
        locks = frozenset(key_of(each.lock) for each in named)
        groups.setdefault(locks, (named, [], is_ring))[1].append(wait)
    for named, waiters, is_ring in groups.values():
        holder = holder_of(named[0], database)
        if is_ring or not holder or holder["state"] not in FOR_CLIENTS:
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
        order = " Acquire these locks in the same order everywhere." if len(named) > 1 else ""
        text = f"deadlock {since}: {ring_words(named)}.{more}{order} [{DEADLOCK}]"
    else:
        text = (
            f"{first.words}{first.acquired} was not released {since}: {first.place} waits for it;"
            f" {holder_words(first, holder)}.{more} [{NEVER_RELEASED}]"
        )
    return Finding(
        DEADLOCK if is_ring else NEVER_RELEASED,
        lock_name(first.lock),
        first.waiter,
        first.holder,
        sum(wait.since_ns for wait in waiters),
        None,
        None,
        text,
    )
