# SPDX-License-Identifier: MIT
"""Loops that sleep for a short time and look whether something has happened."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from rouse.query import frames, gain, interpreter, java_locks, measures
from rouse.query.demand import key_of, least_ran, load_without
from rouse.query.finding import DESCRIPTORS, Finding, Row
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.tables.views import LOCK_KINDS, NOT_KNOWN, texts
from rouse.text import duration

POLLING = "polling"
SUMS = ("repeated_sleeps", "repeated_ns", "sleeps", "slept_ns")
LEAST, RATE = 50, 50  # sleeps, and their rate per s
LEAST_PART = 0.1  # of the elapsed time
OFTEN = 0.2  # waits for locks per sleep
SEVERAL = 1.2  # threads that wait at one object on average
EACH = 0.8  # wake-ups per sleep
WAKERS_MOST = 100  # places
MOSTLY = 0.5
NEAR = 2  # calls between a function that waits and another one that sleeps for it
EVENTS = ("condition", "semaphore", "futex")
ANSWERS = ("read", "message")  # waits that no thread is known to end


def under_locks(program: Program) -> set[str]:
    """The functions that acquire locks whose holders sleep most of the time."""
    keys = {
        key_of(row)
        for row in program.locks
        if row["hold_ns"] and row["inside_sleep_ns"] > MOSTLY * row["hold_ns"]
    }
    labels = (
        side[name]
        for side in program.sides
        if key_of(side) in keys
        for name in ("site_label", "holder_label")
    )
    return {function_of(label) for label in labels if label}


def function_of(label: str) -> str:
    """The function in the label of a site: `function file:line`, or `function+offset`.

    Without the caller that tells the site from others.
    """
    own = label.partition(" from ")[0]
    return own.rpartition(" ")[0] or own.rpartition("+")[0] or own


def without_sleeps(slept_ns: int, program: Program) -> float:
    """Return the most that the throughput can grow by without these sleeps."""
    load = load_without(0, ("sleep",), program)
    rest = max(load.least_slept_ns - slept_ns, 0.0)
    return gain.bound(replace(load, least_slept_ns=rest), [])


def time_outs() -> str:
    """Waits for events, or for descriptors, that ended by their time-out, and all others."""
    rows = f"""
SELECT process, wait_site AS site, SUM({measures.total(measures.VERDICTS)}) AS waits,
    SUM(timeout) AS timeouts, SUM(CASE WHEN timeout > 0 THEN wait_ns ELSE 0 END) AS timed_ns
FROM wakes WHERE kind IN ({texts((*EVENTS, *DESCRIPTORS))})
GROUP BY process, wait_site HAVING SUM(timeout) > 0
"""
    return measures.labelled(rows, ("timed_ns DESC", "process", "site"), site_label="site")


def dependents(row: Row, waits: list[Row], known: frames.Known) -> int:
    """For how long others waited for the thread that waits there, or for one that is not known."""
    own = known.get((row["process"], row["site"]), [])
    found = 0
    for other in waits:
        waiter, waker = (
            known.get((other["process"], other[key]), []) for key in ("wait_site", "wake_site")
        )
        if other["process"] != row["process"] or (own and waiter and own[-1] == waiter[-1]):
            continue
        is_for_it = bool(own and waker) and own[-1] == waker[-1]
        if is_for_it or other["kind"] in ANSWERS:
            found += other["wait_ns"]
    return found


def by_time_out(database: Database, program: Program) -> list[Finding]:
    """Threads whose waits for an event mostly end by a short time-out, while others wait for them.

    Then the event may be there without a call that ends the wait.
    """
    rows = [
        row
        for row in database.rows(time_outs())
        if row["timeouts"] >= max(LEAST, RATE * program.wall_ns / 1e9, MOSTLY * row["waits"])
        and row["timed_ns"] >= LEAST_PART * program.wall_ns
        # Java's sleeps and the pauses of its own threads are waits with a time-out.
        and not java_locks.WAIT_FUNCTIONS.search(row["site_label"])
    ]
    if not rows:
        return []
    waits = database.rows(measures.waits_and_wakes())
    sites = {row["site"] for row in rows}
    sites |= {row[key] for row in waits for key in ("wait_site", "wake_site")}
    known, locked = frames.functions(database, sites), interpreter.sites(database)
    found = []
    for row in rows:
        blame = dependents(row, waits, known)
        is_gil = (row["process"], row["site"]) in locked
        if blame < LEAST_PART * program.wall_ns or is_gil:
            continue
        ran = least_ran(program.ran_ns, 0, program)
        most = max(program.processors * program.wall_ns / max(ran, 1.0), 1.0)
        each, label = row["timed_ns"] / row["timeouts"], row["site_label"]
        text = (
            f"{label} waits with a time-out, {row['timeouts']:,} times to its end,"
            f" {duration(each)} each, while others wait {duration(blame)} in all for its thread. If"
            f" it looks for their requests then, it sees them {duration(each / 2)} late on average,"
            f" and a signal of the condition, or a write to an eventfd, would wake it at once: at"
            f" most {most:.2f}x the throughput [{POLLING}]"
        )
        found.append(Finding(POLLING, "-", label, "timer", blame, most, None, text))
    return found


def wakers(database: Database) -> list[Row]:
    """The places that wake threads, the longest waits first.

    waited_ns: at the object with the longest waits.
    """
    return database.rows(
        'SELECT process, wake_site, SUM("count") AS "count", MAX(wait_ns) AS waited_ns FROM ('
        "    SELECT process, object, wake_site, SUM(wait_ns) AS wait_ns,"
        f'       SUM({measures.total(measures.VERDICTS)}) AS "count" FROM wakes'
        f"    WHERE kind IN ({texts(EVENTS)}) AND object <> 0 AND wake_site <> '{NOT_KNOWN}'"
        "    GROUP BY process, object, wake_site"
        f") w GROUP BY process, wake_site ORDER BY waited_ns DESC LIMIT {WAKERS_MOST}"
    )


def acquisitions(database: Database) -> list[list[frames.Function]]:
    """The functions of each acquisition of a lock."""
    sites = {row["site"] for row in database.rows("SELECT DISTINCT site FROM locks")}
    return [own for own in frames.functions(database, sites).values() if own]


def looks(slept: Sequence[frames.Function], acquired: Sequence[Sequence[frames.Function]]) -> bool:
    """Whether the function that sleeps, or one that it calls, acquires a lock.

    So does a loop that looks whether something has happened.
    """
    return any(calls(slept, own) for own in acquired)


def calls(slept: Sequence[frames.Function], other: Sequence[frames.Function]) -> bool:
    """Whether the function that sleeps does the other thing, or a function that it calls."""
    return bool(slept) and slept[0].name in (function.name for function in other[: NEAR + 1])


def is_producer(slept: Row, made: Sequence[Row], program: Program) -> bool:
    """Whether a thread that sleeps makes what others wait for. made: its places that wake them.

    Several threads on average wait at one object: these wait for something that is produced, and
    the thread is a clock, or slow. Or each sleep ends with a wake-up: nothing tells whether that is
    an answer, but a loop that polls also sleeps without finding a request.
    """
    if any(row["waited_ns"] > SEVERAL * program.wall_ns for row in made):
        return True
    return bool(made) and sum(row["count"] for row in made) >= EACH * slept["sleeps"]


def produces(
    slept: Sequence[frames.Function], waker: Sequence[frames.Function], locking: Collection[str]
) -> bool:
    """Whether the function that sleeps, or its caller, also wakes. locking: functions with locks.

    One that acquires a lock, and leaves the wake-up to its caller, looks for something.
    """
    both = frames.common(slept, waker, NEAR)
    return both is not None and (both is slept[0] or slept[0].name not in locking)


def between(
    database: Database,
    slept: list[Row],
    program: Program,
    sleeping: frames.Known,
    acquired: Sequence[Sequence[frames.Function]],
) -> set[str]:
    """Return the labels of sleeps that are work, by the other waits of their function, or caller.

    Nothing tells that it looks for an event: it neither acquires a lock, nor wakes others. Or it
    waits for events or locks for longer. Then the sleep is what it does with something that it
    waited for, such as a semaphore's unit, which is often free. Or it waits for a lock often: a
    thread that looks whether something has happened seldom meets another one. Or it produces
    something that others wait for.
    """
    waits = [
        row
        for row in database.rows(measures.waits_and_wakes())
        if row["kind"] in EVENTS or row["kind"] in LOCK_KINDS or row["kind"] == "barrier"
    ]
    made = wakers(database) if slept else []
    locking = {own[0].name for own in acquired}
    sites = {row["wait_site"] for row in waits} | {row["wake_site"] for row in made}
    known = frames.functions(database, sites) if waits and slept else {}
    found = set()
    for row in slept:
        own = sleeping.get((row["process"], row["site"]), [])
        near = [
            other
            for other in waits
            if other["process"] == row["process"]
            and frames.common(own, known.get((row["process"], other["wait_site"]), []), NEAR)
        ]
        waited = sum(other["wait_ns"] for other in near)
        contested = sum(other["count"] for other in near if other["kind"] in LOCK_KINDS)
        own_made = [
            other
            for other in made
            if other["process"] == row["process"]
            and produces(own, known.get((row["process"], other["wake_site"]), []), locking)
        ]
        is_event = waited > row["repeated_ns"] or contested > OFTEN * row["sleeps"]
        answers = any(
            other["process"] == row["process"]
            and calls(own, known.get((row["process"], other["wake_site"]), []))
            for other in made
        )
        is_seen = answers or looks(own, acquired)
        if not is_seen or is_event or is_producer(row, own_made, program):
            found.add(row["label"])
    return found


def find(database: Database, program: Program, served: Collection[str] = ()) -> list[Finding]:
    """Threads that do nothing but sleep briefly and run, again and again.

    Not those that sleep under a lock: only some of the holds are known when the sleep begins.
    served: the labels of sleeps that are known to be work.
    """
    found = []
    under = under_locks(program)
    polls = program.polls
    known = frames.functions(database, {row["site"] for row in polls}) if polls else {}
    acquired = acquisitions(database) if polls else []
    sleeping = frames.without_helpers(known, {own[0].name for own in acquired})
    slept = []
    for row in polls:
        key, label = (row["process"], row["site"]), row["site_label"]
        own = sleeping.get(key, [])
        if own != known.get(key, []) and " from " not in label:
            label = f"{label} from {own[0].name}"
        slept.append({**row, "label": label})
    work = between(database, slept, program, sleeping, acquired)
    sites: dict[str, Row] = {}
    for row in slept:
        total = sites.setdefault(row["label"], {**row, **dict.fromkeys(SUMS, 0)})
        for name in SUMS:
            total[name] += row[name]
    for row in sites.values():
        count = row["repeated_sleeps"]
        least = max(LEAST, RATE * program.wall_ns / 1e9, MOSTLY * row["sleeps"])
        label, at = row["label"], row["site_label"]
        is_short = row["repeated_ns"] < LEAST_PART * program.wall_ns
        is_work = label in work or at in served or function_of(at) in under
        if count < least or is_short or is_work:
            continue
        each = row["repeated_ns"] / count
        most = without_sleeps(max(row["slept_ns"], row["repeated_ns"]), program)
        text = (
            f"{label} sleeps in a loop, {count:,} times, {duration(each)} each, and waits for"
            f" little else. If it looks for an event there, it sees it {duration(each / 2)} late on"
            f" average, and a condition variable, semaphore or eventfd would wake it at once: at"
            f" most {most:.2f}x the throughput [{POLLING}]"
        )
        blame = row["repeated_ns"]
        found.append(Finding(POLLING, "-", label, "timer", blame, most, None, text))
    return found + by_time_out(database, program)
