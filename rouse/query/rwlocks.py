# SPDX-License-Identifier: MIT
"""Read-write locks whose readers keep a writer waiting, or stop each other by a writer that waits.

Readers and writers are different threads mostly, and what one side gains, the other one may lose.
So there is no estimate, and the bound of a writer's gain is for writers alone.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rouse.query.demand import SLEEP_SAVES_NS, WAIT_NS, key_of
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding, Row, lock_name, lock_words, most_of
from rouse.query.locks import LOCK
from rouse.query.measures import labelled
from rouse.query.program import STATES, Program
from rouse.tables.engine import Database
from rouse.tables.views import names
from rouse.text import duration

STARVED, CONVOY = "starved-writer", "reader-convoy"
KINDS = READ, WRITE = "read lock", "write lock"
WRITER = "a writer"
STARVED_LEAST = 4  # holds of readers that a writer waits for, where they do not overlap one
WAITS_LEAST = 10
SLOW_LEAST = 3  # holds of the mean reader that the slowest one has
MOSTLY, NEARLY_ALL = 0.5, 0.9
GAIN_LEAST = 1.5  # from which on the throughput matters more than the writers
Key = tuple[Any, ...]


def acquisitions() -> str:
    """The acquisitions of read-write locks by site."""
    keys = (*LOCK, "kind", "site")
    return labelled(
        f"SELECT {names(keys)}, SUM(holds) AS holds, SUM(hold_ns) AS hold_ns FROM locks_now"
        f" WHERE kind IN ('{READ}', '{WRITE}') GROUP BY {names(keys)}",
        keys,
        site_label="site",
    )


def role_at(database: Database, row: Row, label: str) -> str:
    """Return whether a read-write lock is acquired at this place by readers or by writers.

    Empty: by both, or it is another kind of lock.
    """
    kinds = {
        found["kind"]
        for found in database.rows(acquisitions())
        if key_of(found) == key_of(row) and found["site_label"] == label
    }
    return {READ: "a reader", WRITE: WRITER}[kinds.pop()] if len(kinds) == 1 else ""


def find(database: Database, program: Program) -> dict[Key, Finding]:
    """The findings by lock."""
    least = max(LEAST_SHARE * (program.sum(*STATES) - program.sum("join", "accept")), LEAST_NS)
    known = {key_of(row): row for row in program.locks if row["wait_ns"] >= least}
    sides: dict[Key, list[Row]] = {}
    for side in program.sides:
        if side["kind"] in (READ, WRITE) and key_of(side) in known:
            sides.setdefault(key_of(side), []).append(side)
    if not sides:
        return {}
    holds: dict[Key, list[Row]] = {}
    for row in database.rows(acquisitions()):
        holds.setdefault(key_of(row), []).append(row)
    found = {}
    for key, rows in sides.items():
        lock = Lock(known[key], rows, holds.get(key, []), program)
        finding = lock.convoy() or lock.starved()
        if finding:
            found[key] = finding
    return found


class Lock:
    def __init__(self, row: Row, sides: list[Row], holds: list[Row], program: Program) -> None:
        self.wall_ns = program.wall_ns or 1
        self.queued_ns = program.sum("lat")
        self.sides = sides
        self.name = lock_name(row)
        self.called = lock_words(row, most_of(sides, "holder_label"))
        self.wait_ns = row["wait_ns"]
        # By place: the holds of readers, and how long they lasted.
        self.holds: Counter[str] = Counter()
        self.hold_ns: Counter[str] = Counter()
        for hold in holds:
            if hold["kind"] == READ:
                self.holds[hold["site_label"]] += hold["holds"]
                self.hold_ns[hold["site_label"]] += hold["hold_ns"]

    def waits(self, kind: str) -> tuple[int, int, str]:
        """Waits of this kind that readers caused: their time, their count, and where most were."""
        rows = [s for s in self.sides if s["kind"] == kind and s["holder_label"] in self.holds]
        times: Counter[str] = Counter()
        for row in rows:
            times[row["site_label"]] += row["wait_ns"]
        count = sum(row["contested"] for row in rows)
        return times.total(), count, max(times, key=lambda site: times[site], default="")

    def convoy(self) -> Finding | None:
        """Readers that wait for readers: a writer between them waits."""
        wait_ns, count, waiter = self.waits(READ)
        slow = {site: self.hold_ns[site] / count for site, count in self.holds.items() if count}
        if wait_ns < MOSTLY * self.wait_ns or count < WAITS_LEAST or not slow:
            return None
        reader = max(slow, key=lambda site: slow[site])
        if slow[reader] * self.holds.total() < SLOW_LEAST * self.hold_ns.total():
            return None  # all readers are alike
        text = (
            f"{self.called}: {reader} holds it as a reader for {duration(slow[reader])}. Writers"
            f" wait for that, and other readers wait behind the writers: at {waiter} for"
            f" {duration(wait_ns)} in all, {duration(wait_ns / count)} each [{CONVOY}]"
        )
        return Finding(CONVOY, self.name, waiter, reader, self.wait_ns, None, None, text)

    def starved(self) -> Finding | None:
        """Writers that wait for readers, which overtake them."""
        wait_ns, count, waiter = self.waits(WRITE)
        held, holds = self.hold_ns.total(), self.holds.total()
        if wait_ns < NEARLY_ALL * self.wait_ns or count < 1 or not holds:
            return None
        each = held / holds
        if wait_ns < STARVED_LEAST * each * count:
            return None
        reader = max(self.hold_ns, key=lambda site: self.hold_ns[site])
        most = self.most_writes(wait_ns, count)
        text = (
            f"{self.called}: writers at {waiter} wait {duration(wait_ns / count)} each, while"
            f" readers hold it for {duration(each)} at {reader} and overtake them: with the"
            f" default kind of lock, a reader joins other readers. Without these waits writers get"
            f" it at most {most:.2f}x as often [{STARVED}]"
        )
        return Finding(STARVED, self.name, waiter, reader, wait_ns, most, None, text)

    def most_writes(self, wait_ns: int, count: int) -> float:
        """Return how much more often writers can get it if they never wait, at most.

        How many threads write is not known. At least as many as wait at once on average; with more,
        the part of their time that they wait, and the gain, is smaller. They may have been queued
        for a processor, which the readers use.
        """
        whole = self.wall_ns * math.ceil(wait_ns / self.wall_ns)
        rest = whole - wait_ns
        saved = count * (SLEEP_SAVES_NS + WAIT_NS) + self.queued_ns
        return whole / max(rest - saved, rest / 2, 1)


def better(finding: Finding | None, shared: Finding | None) -> Finding | None:
    """Choose between what is known of any lock and what is known of its readers and writers."""
    if shared is None or finding is None:
        return shared or finding
    is_worth = (finding.gain_most or 0) >= GAIN_LEAST
    return finding if shared.kind == STARVED and is_worth else shared
