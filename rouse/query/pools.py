# SPDX-License-Identifier: MIT
"""Pools that are too small: threads wait until others return what they hold.

A pool is a condition, a semaphore or a futex at which one function waits and, after its work, wakes
the next one. Of a queue, one function takes and another one puts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rouse.query import frames, gain, java_locks, measures
from rouse.query.demand import load_without
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, SMALL_POOL, Finding, Row
from rouse.query.program import STATES, Program
from rouse.tables.engine import Database
from rouse.tables.views import NOT_KNOWN
from rouse.text import counted, duration

ROWS_MOST = 200  # of wake-ups, the longest waits first
LEAST_WAITS = 20
LEAST_WAITERS = 0.5  # on average
# The calls between the function that has something of the pool, and those that take and return it.
NEAR = 2
NEARLY_ALL, MOSTLY = 0.9, 0.5
USED_LEAST = 0.5  # threads that use a pool, while one waits for it
ONE = 1.3  # threads that use a pool on average, below which it is a lock


def cut(rows: str, _order: Sequence[str]) -> str:
    return (
        f"SELECT * FROM ({rows}) w WHERE kind IN ('condition', 'semaphore', 'futex')"
        f" ORDER BY wait_ns DESC LIMIT {ROWS_MOST}"
    )


@dataclass(frozen=True)
class Found:
    findings: list[Finding]
    # The labels of waits that the threads of a group end for each other, as at a barrier.
    barriers: set[str]

    @property
    def waiters(self) -> set[str]:
        return {finding.waiter for finding in self.findings} | self.barriers


def find(database: Database, program: Program) -> Found:
    rows = database.rows(measures.wake_ledger(cut))
    whole = program.sum(*STATES) - program.sum("join", "accept")
    least = max(LEAST_SHARE * whole, LEAST_NS, LEAST_WAITERS * program.wall_ns)
    found = Found([], set())
    if sum(row["wait_ns"] for row in rows) < least:
        return found
    of_java = java_locks.sites(database)
    rows = [row for row in rows if (row["process"], row["wait_site"]) not in of_java]
    sites = {row[key] for row in rows for key in SITES}
    others = [row for row in database.rows(measures.waits_and_wakes()) if row["kind"] in WORK]
    known = frames.functions(database, sites | {row["wait_site"] for row in others})
    made = []
    for some in by_object(rows, known):
        if pool := shared_pool(some, known) or pool_of(some, known):
            made.append(pool)
            rows = [row for row in rows if row not in some]
    made += [pool for some in groups_of(rows, known) if (pool := pool_of(some, known))]
    for pool in made:
        if sum(row["wait_ns"] for row in pool.rows) <= least:
            continue
        if is_barrier(pool, others, known, program):
            found.barriers.add(pool.row["wait_label"])
        elif small := finding(pool, others, known, program):
            found.findings.append(small)
    return found


def groups_of(rows: list[Row], known: frames.Known) -> list[list[Row]]:
    """Return the waits of each place. Processes that call it in the same way may share the pool."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        site = (row["process"], row["wait_site"])
        functions = [function.name for function in known.get(site, [])] or site
        groups.setdefault((row["kind"], row["wait_label"], *functions), []).append(row)
    return list(groups.values())


def by_object(rows: list[Row], known: frames.Known) -> list[list[Row]]:
    """Return the waits for each object in one function that several others call."""
    groups: dict[tuple[str, str, int, str], list[Row]] = {}
    for row in rows:
        functions = known.get((row["process"], row["wait_site"]), [])
        if row["objects"] == 1 and functions:
            key = (row["process"], row["kind"], row["object"], functions[0].name)
            groups.setdefault(key, []).append(row)
    return [some for some in groups.values() if len(groups_of(some, known)) > 1]


SITES = ("wait_site", "wake_site")
WORK = ("sleep", "read", "write", "sync", "connect", "poll", "message")
SEVERAL = 1.5  # threads woken by each return


def user_of(row: Row, known: frames.Known) -> frames.Function | None:
    """The function that takes from a pool and returns to it."""
    waiter, waker = (known.get((row["process"], row[key]), []) for key in SITES)
    if user := frames.common(waiter, waker, NEAR):
        return user
    if row["objects"] > 1 or row["kind"] == "futex":  # what one thread waits for, as a future
        return None
    # A function whose last call returns it may have left no frame then, only its caller.
    return next((each for each in waiter[: NEAR + 1] if each in waker[:1]), None)


def used_at(pool: Pool, others: list[Row], known: frames.Known, sum_of: str) -> tuple[str, int]:
    """Where the function that has something of the pool mostly waits for something else meanwhile.

    sum_of: the column by which, "count" or "wait_ns". Return also its sum. Empty: nowhere.
    """
    processes = {row["process"] for row in pool.rows}
    sums: Counter[str] = Counter()
    for row in others:
        near = known.get((row["process"], row["wait_site"]), [])[:NEAR]
        if row["process"] in processes and pool.users & {each.name for each in near}:
            sums[row["label"]] += row[sum_of]
    return next(iter(sums.most_common(1)), ("", 0))


def uses(pool: Pool, others: list[Row], known: frames.Known) -> int:
    """How often the function that has something of the pool waits for something else meanwhile."""
    return used_at(pool, others, known, "count")[1]


@dataclass(frozen=True)
class Pool:
    """Waits at one place, which the same functions end later that have waited there."""

    rows: list[Row]
    row: Row  # of the longest waits
    user: frames.Function
    users: frozenset[str]  # the names of all such functions
    count: int  # wake-ups by them

    @property
    def called(self) -> str:
        """The name of the function, and how many others there are."""
        more = len(self.users) - 1
        others = f", or {counted(more, 'other function')}," if more else ""
        return self.user.name + others


def pool_of(rows: list[Row], known: frames.Known) -> Pool | None:
    """rows: the wake-ups of one wait site. None: other functions end the waits."""
    woken = [row for row in rows if row["wake_site"] != NOT_KNOWN]
    count = sum(row["count"] for row in woken)
    users = [(row, user) for row in woken if (user := user_of(row, known))]
    returned = sum(row["count"] for row, _ in users)
    is_pool = returned >= NEARLY_ALL * count and count >= MOSTLY * sum(r["count"] for r in rows)
    if not users or not is_pool or count < LEAST_WAITS:
        return None
    row, user = max(users, key=lambda pair: pair[0]["wait_ns"])
    return Pool(rows, row, user, frozenset({user.name}), count)


def shared_pool(rows: list[Row], known: frames.Known) -> Pool | None:
    """The pool of several functions, each of which takes from it and returns to it.

    rows: the wake-ups of one object and place. None: others end the waits.
    """
    woken = [row for row in rows if row["wake_site"] != NOT_KNOWN]
    near = {
        key: [known.get((row["process"], row[key]), [])[:NEAR] for row in woken] for key in SITES
    }
    takers, givers = ({function.name for some in near[key] for function in some} for key in SITES)
    users = frozenset(takers & givers)
    pairs = [
        (row, user)
        for row, waiter, waker in zip(woken, *near.values(), strict=True)
        if any(function.name in users for function in waker)
        and (user := next((each for each in waiter if each.name in users), None))
    ]
    count = sum(row["count"] for row in woken)
    returned = sum(row["count"] for row, _ in pairs)
    is_pool = returned >= NEARLY_ALL * count and count >= MOSTLY * sum(r["count"] for r in rows)
    if not pairs or not is_pool or count < LEAST_WAITS:
        return None
    row, user = max(pairs, key=lambda pair: pair[0]["wait_ns"])
    return Pool(rows, row, user, users, count)


def wakes_all(pool: Pool, program: Program) -> bool:
    return program.herd_wakes > MOSTLY * pool.count


def is_barrier(pool: Pool, others: list[Row], known: frames.Known, program: Program) -> bool:
    """Whether the last thread wakes all others, once for each turn of theirs.

    A pool may wake all that wait for each thing that is returned: much more often.
    """
    used = uses(pool, others, known)
    return wakes_all(pool, program) and (used < LEAST_WAITS or pool.count < SEVERAL * used)


def finding(pool: Pool, others: list[Row], known: frames.Known, program: Program) -> Finding | None:
    """others: waits of the kinds of WORK."""
    rows, most_row, user, count = pool.rows, pool.row, pool.user, pool.count
    if wakes_all(pool, program):
        count = uses(pool, others, known)
    wait_ns = sum(row["wait_ns"] for row in rows)
    load = load_without(wait_ns, ("cond", "sem"), program)
    most, expected = gain.bound(load, []), gain.estimate(load, [])
    if most < LEAST_GAIN:
        return None
    waiter, giver = most_row["wait_label"], most_row["wake_label"]
    if len({row["wait_site"] for row in rows}) > 1:
        waiter = waiter.partition(" from ")[0]  # one of several callers
    name = most_row["object_name"] or f"the pool of {waiter}"
    each, waiting = duration(wait_ns / count), wait_ns / program.wall_ns
    if load.threads - waiting < USED_LEAST * min(waiting, 1.0):
        return None  # while a thread waits for a pool, others use it
    gains = f"at most {most:.2f}x, about {expected:.2f}x the throughput [{SMALL_POOL}]"
    if load.threads - waiting < ONE:
        work = used_at(pool, others, known, "wait_ns")[0]
        during = f", and waits mostly at {work} until then" if work else ""
        text = (
            f"{name} lets one thread pass at a time, as a lock does: of {load.threads:.1f} threads"
            f" {waiting:.1f} wait on average, {each} each, until {pool.called} returns it at"
            f" {giver}{during}. Less work before that, or more permits if several threads may"
            f" pass, gains {gains}"
        )
    else:
        text = (
            f"{name} is too small: of {load.threads:.1f} threads {waiting:.1f} wait on average and"
            f" {load.threads - waiting:.1f} use it. They wait {each} each, until {pool.called}"
            f" returns something at {giver}. A larger pool gains {gains}"
        )
    return Finding(SMALL_POOL, name, waiter, user.label, wait_ns, most, expected, text)
