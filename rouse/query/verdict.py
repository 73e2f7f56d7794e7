# SPDX-License-Identifier: MIT
"""The verdict: how the threads' time divides, and which waits are worth fixing.

A finding is a rule over the tables, with a page in docs/findings/. Findings are ranked by blame:
how long other threads waited because of it, not how long its own thread did.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rouse.query import (
    accept_herds,
    file_locks,
    gain,
    handovers,
    interpreter,
    java_locks,
    java_pools,
    known_locks,
    locks,
    loops,
    measures,
    onions,
    places,
    polling,
    pools,
    python_locks,
    rwlocks,
    shares,
    spins,
    stages,
    stragglers,
    thread_pools,
    timers,
)
from rouse.query.demand import (
    IO_SAVES_NS,
    SLEEP_SAVES_NS,
    WAIT_NS,
    contention_of,
    ended_early,
    evened,
    key_of,
    least_ran,
    own_of,
    phase_of,
    unseen,
)
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, Finding, Row, lock_name, most_of
from rouse.query.program import PARTS, STATES, Program
from rouse.query.ran import PYTHON_TELLING, Running, busiest
from rouse.query.specs import address
from rouse.symbols.runtimes import OWN_CALLS
from rouse.tables.engine import Database
from rouse.tables.views import CLIENTS, NOT_KNOWN, names, quoted, texts
from rouse.text import counted, duration, share

HOT_LOCK, UNDER_LOCK, HERD, CPU = "hot-lock", "wait-under-lock", "herd", "cpu-bound"
SHOWN = 5  # findings
LOCKS_MOST = 50  # locks that are looked at, the longest waits first
SIDES_MOST = 500
MOSTLY = 0.5
NEAR = 3  # calls between a function that holds a lock and its wait
SYNC = "sync"
IO_KINDS = ("read", "write", SYNC, "connect", "poll", "set", "epoll", "message")
WAITS_INSIDE = ("sleep", *IO_KINDS)
SATURATED = 0.9  # a lock that is held for more of the time is not free when a request comes
WOKEN_OFTEN = 3.0  # times for each wait for a lock, from which on the verdict says it
HERD_LEAST, HERD_SHARE = 100, 0.4  # useless wake-ups per s of the run, and their part of all
LEAST_ERROR = 0.005  # of a share, which is then printed
ERROR_MOST = 0.3  # of a share, from which on it is not stated
BUSY = 0.85  # of the processors, or of the threads' time
WORK_LEAST = 0.1  # of the waits for a thread, which it waits at work
BESIDE_JOINS = 0.05  # a share of the time, from which on other waits are mentioned first
IDLE_REST = 0.005  # a share of the time, below which waits are not mentioned
QUEUED_LEAST = 0.05
UNEXPLAINED, UNEXPLAINED_LEAST = "unexplained", 0.05
DELIVERY_LEAST = 0.02
WITH_MUTEX = ("condition", "mutex")  # waits that end with a mutex
DELIVERY_MOST_NS = 100_000  # of a wake-up, until the kernel's scheduler has it
SLEPT = "in system calls that rouse does not see, such as those of libc's own locks"
OTHERWISE = "rouse run --kernel and sudo rouse watch PID show in which"
NO_THREAD = {
    "threads": 0,
    "accepted": 0,
    "waits": 0,
    "wall_ns": 0,
    "to_run_ns": None,
    "queue_ns": None,
    "queue_most_ns": None,
}


@dataclass(frozen=True)
class Verdict:
    time: dict[str, float]  # shares of 1 of the threads' time
    thread_ns: int
    findings: list[Finding] = field(default_factory=list)
    summary: str = ""  # where there is no finding, why
    unexplained: str = ""  # if it is much of the time: why it is, and how to see it
    # Of the time queued: in the kernel's run queue, and the rest, in which a wake-up was under way
    # from its call until the kernel's scheduler had it. None: not known of most of it.
    queue_ns: int | None = None
    delivery_ns: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "thread_ns": self.thread_ns,
            "findings": [asdict(finding) for finding in self.findings],
            "summary": self.summary,
            "unexplained": self.unexplained,
            "queue_ns": self.queue_ns,
            "delivery_ns": self.delivery_ns,
        }

    @property
    def head(self) -> str:
        """How the threads' time divides. Empty: there is none."""
        names = {name: name for name in self.time} | {CLIENTS: "waits for clients"}
        delivered = (self.delivery_ns or 0) / max(self.thread_ns, 1)
        if delivered >= DELIVERY_LEAST:
            names["queued"] = f"queued ({share(delivered)} % delivery of wake-ups)"
        shares = {name: share(part) for name, part in self.time.items()}
        parts = ", ".join(
            f"{part} % {names[name]}"
            for name, part in shares.items()
            if part != "0.0" or name == UNEXPLAINED
        )
        return f"{duration(self.thread_ns)} of threads' time: {parts}" if self.thread_ns else ""

    def lines(self) -> list[str]:
        """The verdict as text: the division of time, one line per finding, and what is open."""
        found = [f"{n}. {finding.text}" for n, finding in enumerate(self.findings, 1)]
        return [line for line in (self.head, *found, self.summary, self.unexplained) if line]


def thread_rows() -> str:
    """Threads that are alive one by one, and those that have ended by name."""
    known = measures.total(state for state in STATES if state not in ("usr", "missing"))
    return f"""
SELECT process, name, is_user, threads, waits, accepted, wall_ns,
    to_run_ns, queue_ns, queue_most_ns,
    {names(s for s in STATES if s not in ("usr", "missing"))},
    COALESCE(usr, had_usr) AS usr, wall_ns - {known} - COALESCE(usr, had_usr) AS missing
FROM ({measures.thread_parts()}) p
"""


def read(database: Database, busy_ns: int | None) -> Program:
    def wakes_cut(rows: str, order: Sequence[str]) -> str:
        # Not only the useless ones: their share of all wake-ups of a place tells a herd.
        return measures.whole(rows, ("lost_race + false_ DESC", *order)) + f" LIMIT {SIDES_MOST}"

    def sides_cut(rows: str, order: Sequence[str]) -> str:
        return f"{measures.whole(rows, order)} LIMIT {SIDES_MOST}"

    found = database.rows(locks.all_locks(LOCKS_MOST))
    waited = any(row["contested"] or row["waiting"] for row in found)
    processes = database.rows(
        "SELECT duration_ns, COALESCE(cpus, 0) AS cpus, COALESCE(cpu_ns, 0) AS cpu_ns,"
        " COALESCE(system_ns, 0) AS system_ns FROM processes"
    )
    threads = database.rows(thread_rows())
    ran_ns = float(sum(row["usr"] or 0 for row in threads))
    known_ns = float(sum(row["cpu_ns"] for row in processes))
    if known_ns > ran_ns:  # threads that never waited are not recorded one by one
        threads.append(dict.fromkeys(STATES, 0) | {"usr": known_ns - ran_ns, **NO_THREAD})
        ran_ns = known_ns
    herds = [row for row in database.rows(measures.herds()) if row["size_from"] > 1]
    return Program(
        threads=threads,
        locks=found,
        sides=database.rows(locks.sides(sides_cut)) if waited else [],
        wakes=database.rows(measures.wake_ledger(wakes_cut)),
        polls=database.rows(measures.polls()),
        herd_wakes=sum(row["size_from"] * row["count"] for row in herds),
        herd_calls=sum(row["count"] for row in herds),
        wall_ns=max((row["duration_ns"] for row in processes), default=0),
        processors=max((row["cpus"] for row in processes), default=0) or os.cpu_count() or 1,
        ran_ns=ran_ns,
        in_kernel=min(sum(row["system_ns"] for row in processes) / max(known_ns, 1.0), 1.0),
        others_ran_ns=max((busy_ns or 0) - ran_ns, 0.0),
    )


def division(program: Program) -> dict[str, float]:
    whole = program.sum(*STATES)
    time = {name: program.sum(*states) / whole if whole else 0.0 for name, states in PARTS}
    asleep = slept_on(program, program.threads) / whole if whole else 0.0
    return time | {"queued": time["queued"] - asleep, "locks": time["locks"] + asleep}


def slept_on(program: Program, threads: Iterable[Row]) -> float:
    """Return for how long these slept for a mutex after the call that is taken for their wake-up.

    A thread that was woken, and is neither in the kernel's run queue nor on a processor for longer
    than a wake-up takes, sleeps. Threads that come out of a wait for a condition wait for its mutex
    inside of libc, where they are not seen: their time counts from the signal on, and an unlock may
    wake one of them instead of the thread that is taken for woken.
    """
    known = [row for row in threads if row.get("queue_most_ns") is not None]
    queue_ns, waits = (sum(row[name] for row in known) for name in ("queue_most_ns", "waits"))
    woken_ns = program.sum("lat", rows=known)
    for_locks = sum(row["late_ns"] for row in program.wakes if row["kind"] in WITH_MUTEX)
    return float(max(min(woken_ns - queue_ns - DELIVERY_MOST_NS * waits, for_locks), 0))


def delivery(program: Program) -> tuple[int | None, int | None]:
    """Return the time in the kernel's run queue, and that until wake-ups were delivered to it.

    None: not known. A thread that was taken off its processor just before it slept, or just after
    it was woken, was queued in time that counts as its wait. On busy processors that may be longer
    than all deliveries.
    """
    known = [row for row in program.threads if row["to_run_ns"] is not None]
    to_run_ns, queue_ns = (sum(row[name] for row in known) for name in ("to_run_ns", "queue_ns"))
    if to_run_ns < MOSTLY * program.sum("lat") or not to_run_ns:
        return None, None
    to_run_ns -= round(slept_on(program, known))
    return queue_ns, to_run_ns - queue_ns if to_run_ns >= queue_ns else None


# Locks


def sharing(row: Row, program: Program) -> list[Row]:
    """The threads of the lock's process that wait for locks."""
    own = [t for t in program.threads if t.get("process") == row["process"]]
    return [t for t in own if (t["mutex"] or 0) + (t["rwlock"] or 0) > 0]


def is_open(row: Row, busy: float, program: Program) -> bool:
    """Whether the load on a lock does not depend on how soon its threads are done.

    A thread is free at any time, and so is the lock at times: requests do not queue for threads,
    so that more of them would be served if more came.
    """
    free_ns = program.sum("cond", "sem", "poll", "accept", rows=sharing(row, program))
    return busy < SATURATED and free_ns >= phase_of(row, program)


def load_of(row: Row, program: Program) -> gain.Load:
    """The load that the threads with waits for locks make, while this lock is contended.

    Threads and locks of other processes only share the processors. Of other locks and of the
    processors only the sums over the whole run are known.
    """
    beside = [lock for lock in program.locks if lock["process"] == row["process"]]
    threads = sharing(row, program)
    phase = phase_of(row, program)
    part = phase / max(program.wall_ns, phase)
    others = program.sum("cond", "sem", "join", "poll", "accept", rows=threads)
    at_work = max(program.sum(*STATES, rows=threads) - others, row["wait_ns"])
    ran, io, sleep = (program.sum(state, rows=threads) for state in ("usr", "io", "sleep"))
    held_ns = own_of(row).held_ns
    beside_ns = unseen(held_ns, row["wait_ns"], ("mutex", "rwlock"), threads, program)
    slept = io + sleep + beside_ns
    count = (at_work + beside_ns) / phase * ended_early(row, threads, program, beside_ns)
    waits = sum(thread["waits"] for thread in threads)
    contested, acquired = (sum(lock[key] for lock in beside) for key in ("contested", "acquired"))
    saves = (io * IO_SAVES_NS + sleep * SLEEP_SAVES_NS) / slept if slept else 0.0
    return gain.Load(
        wall_ns=phase,
        threads=count,
        processors=program.processors,
        ran_ns=ran,
        slept_ns=slept,
        least_ran_ns=least_ran(ran, waits, program, acquired),
        least_slept_ns=max(slept - max(waits - contested, 0) * saves, slept / 2),
        all_ran_ns=least_ran(program.ran_ns, waits, program, acquired) * part,
        others_ran_ns=program.others_ran_ns * part,
        locks=evened(
            {
                key_of(other): own_of(
                    other, 1 if other is row else part, contention_of(other, ran, waits, program)
                )
                for other in beside
            },
            beside,
            count,
        ),
    )


def longest_inside(database: Database, side: Row, kinds: Sequence[str]) -> tuple[str, int]:
    """The place of the longest waits of these kinds in the function that holds the lock, or ''.

    And how long they were, with those before and after the lock.
    """
    rows = database.rows(f"""
SELECT MAX(s.label) AS label, SUM(w.wait_ns) AS wait_ns FROM wakes w
JOIN sites s ON s.process = w.process AND s.site = w.wait_site
JOIN sites h ON h.process = w.process AND h.frame = 0 AND (
    h."function" = s."function" OR s.within LIKE '%' || h."function" || '%'
)
WHERE h.process = {quoted(side["process"])} AND h.site = {quoted(side["holder_site"])}
    AND w.kind IN ({texts(kinds)}) AND s.frame <= {NEAR}
GROUP BY w.wait_site ORDER BY SUM(w.wait_ns) DESC LIMIT 1
""")
    return (rows[0]["label"] or "", rows[0]["wait_ns"]) if rows else ("", 0)


def woken_often(row: Row, program: Program) -> str:
    """Say how often a waiter is woken until it has the lock, if others mostly take it first."""
    lost = sum(
        wake["lost_race"] + wake["false_"]
        for wake in program.wakes
        if wake["process"] == row["process"]
        and (wake["kind"], wake["object"], wake["objects"]) == (row["kind"], row["lock"], 1)
    )
    each = 1 + lost / max(row["contested"], 1)
    return f", and is woken {each:,.0f} times until it has the lock" if each >= WOKEN_OFTEN else ""


def lock_finding(row: Row, program: Program, database: Database) -> Finding | None:
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if row["wait_ns"] < max(LEAST_SHARE * whole, LEAST_NS):
        return None
    key = key_of(row)
    sides = [side for side in program.sides if key_of(side) == key]
    longest = max(sides, key=lambda side: side["wait_ns"], default=None)
    waiter, holder = most_of(sides, "site_label"), most_of(sides, "holder_label")
    name = lock_name(row)
    role = rwlocks.role_at(database, row, holder) if row["kind"] in rwlocks.KINDS else ""
    whom = "another thread there" if holder and holder == waiter else holder
    waits = (
        f"{waiter or 'a thread'} waits {duration(row['wait_ns'])} in all for"
        f" {whom or 'a holder that is not known'}{role and f', {role}'}{woken_often(row, program)}"
    )
    own, load = own_of(row), load_of(row, program)
    if not row["hold_ns"]:
        most, expected = gain.bound(load, [key]), gain.estimate(load, [key])
        if most < LEAST_GAIN:
            return None
        kind, does = HOT_LOCK, ""
        at, wait_ns = longest_inside(database, longest, WAITS_INSIDE) if longest else ("", 0)
        if wait_ns > MOSTLY * phase_of(row, program):
            kind, does = UNDER_LOCK, f", which waits {duration(wait_ns)} in all at {at} meanwhile"
        text = (
            f"{name}: {waits}{does}. How long the lock is held was not recorded. Without these"
            f" waits at most {most:.2f}x, about {expected:.2f}x the throughput [{kind}]"
        )
        return Finding(kind, name, waiter, holder, row["wait_ns"], most, expected, text)
    busy = min(own.held_ns / load.wall_ns, 1.0)
    if row["inside_lck_ns"] > MOSTLY * row["hold_ns"] and busy < MOSTLY:
        return None  # its holders wait for another lock, which is to blame
    most, expected = gain.bound(load, [key]), gain.estimate(load, [key])
    if most < LEAST_GAIN:
        return None
    kind = UNDER_LOCK if own.slept_ns > MOSTLY * own.held_ns else HOT_LOCK
    does, is_on_disk = "", False
    if kind == UNDER_LOCK:
        is_asleep = row["inside_sleep_ns"] > row["inside_io_ns"]
        kinds = ("sleep",) if is_asleep else IO_KINDS
        at = longest_inside(database, longest, kinds)[0] if longest else ""
        does = f", while its holder {'sleeps' if is_asleep else 'waits for I/O'}"
        does += f" at {at}" if at else ""
        on_disk = longest_inside(database, longest, (SYNC,))[0] if longest else ""
        is_on_disk = bool(at) and at == on_disk
    error = 2 * math.sqrt(row["hold_variance"]) / load.wall_ns
    is_known = error < ERROR_MOST
    around = f" ± {100 * error:.0f}" if error >= LEAST_ERROR else ""
    part = f"{share(busy)}{around} % of the time, {duration(row['hold_ns'] / row['holds'])} each"
    if not is_known:
        part = "for a part of the time that too few timed holds tell"
    text = f"{name} is held {part}{does}: {waits}. Without these waits"
    sooner = None
    if is_open(row, busy, program):
        gains: tuple[float | None, float | None] = (None, None)
        sooner = row["wait_ns"] / max(row["acquired"], row["contested"], 1)
        text += (
            f" each acquisition takes {duration(sooner)} less; the throughput stays, since it is"
            f" limited by the load: threads are free for more [{kind}]"
        )
    elif is_on_disk:
        gains = (most, None)
        text += (
            f" at most {most:.2f}x the throughput, less if the disk serves one thread after the"
            f" other [{kind}]"
        )
    else:
        gains = (most, expected if is_known else None)
        about = f", about {expected:.2f}x" if is_known else ""
        text += f" at most {most:.2f}x{about} the throughput"
        text += f"{onions.further(key, load, program)} [{kind}]"
    return Finding(*(kind, name, waiter, holder, row["wait_ns"], *gains, text, busy, error, sooner))


# Wake-ups


def without_work(count: int, program: Program) -> int:
    """Return how many wake-ups of a futex, at one place, probably find nothing to do.

    A thread that waits again without the mutex of a condition is not seen to have lost a race. But
    each call wakes several, and they run for less than a wake-up costs.
    """
    if program.herd_wakes < MOSTLY * count or program.ran_ns > WAIT_NS * count:
        return 0
    return max(count - program.herd_calls, 0)


def herd_findings(
    program: Program, waiters: Collection[str], of_jvm: Collection[tuple[str, str]]
) -> list[Finding]:
    """Calls that wake several threads, of which most find that another was faster.

    waiters: the labels of waits for something of a pool, which may wake all for each thing, or for
    the last thread of a group. of_jvm: waits of the JVM's own threads, which nobody can repair.
    """
    sites: dict[tuple[str, str, str], list[Row]] = {}
    for row in program.wakes:
        is_own = (row["process"], row["wait_site"]) not in of_jvm
        if is_own and row["kind"] not in ("sleep", "mutex", "read lock", "write lock"):
            sites.setdefault((row["process"], row["kind"], row["wait_site"]), []).append(row)
    found = []
    for rows in sites.values():
        useless = sum(row["lost_race"] + row["false_"] for row in rows)
        count = sum(row["count"] for row in rows)
        if rows[0]["wait_label"] in waiters:
            continue
        if rows[0]["kind"] == "futex":
            useless = max(useless, without_work(count, program))
        least = HERD_LEAST * max(program.wall_ns / 1e9, 1)
        if useless < max(least, HERD_SHARE * count) or not program.has_herds(useless):
            continue
        worst = max(rows, key=lambda row: row["lost_race"] + row["false_"])
        name = worst["object_name"] or (address(worst["object"]) if worst["object"] else "-")
        blame = sum(row["late_ns"] + row["waste_ns"] for row in rows)
        waker = "its waker" if worst["wake_site"] == NOT_KNOWN else worst["wake_label"]
        # The processors limit the throughput, even if no wake-up were useless.
        ran = least_ran(program.ran_ns, useless, program)
        most = program.processors * program.wall_ns / ran if ran else None
        gains = f": at most {most:.2f}x the throughput without them" if most else ""
        text = (
            f"{useless:,} of {counted(count, 'wake-up')} find nothing to do: {worst['wait_label']}"
            f" waits for {name} ({worst['kind']}), and {waker} wakes more threads"
            f" than have work{gains} [{HERD}]"
        )
        finding = Finding(
            *(HERD, name, worst["wait_label"], worst["wake_label"], blame, most, None, text)
        )
        found.append(finding)
    return found


def summary(
    database: Database,
    program: Program,
    time: dict[str, float],
    idle: dict[str, float],
    sampled: Running | None,
) -> str:
    """Say why there is no finding. idle: ns by part of the time in which threads had no work."""
    at_work = program.sum("usr", "lat", "mutex", "rwlock", "io", "sleep", "in_call", "missing")
    whole = program.processors * program.wall_ns
    could = min(whole, at_work)
    # On busy processors, a program that computes all the time has a share of them.
    is_crowded = program.ran_ns + program.others_ran_ns > BUSY * whole
    least = program.wall_ns / (4 if is_crowded else 1)
    if (
        could
        and program.ran_ns > BUSY * min(could, whole - program.others_ran_ns)
        and (program.ran_ns > BUSY * least)
    ):
        part = min(program.ran_ns / program.wall_ns, program.processors)
        others = program.others_ran_ns / program.wall_ns
        if others > part:
            return (
                f"Nothing to fix here: the processors are busy, {others:.1f} of"
                f" {program.processors} with other programs and {part:.1f} with these threads"
                f"{where_busy(program, sampled)} [{CPU}]"
            )
        return (
            f"Nothing to fix here: the threads compute, on {part:.1f} of"
            f" {counted(program.processors, 'processor')}{where_busy(program, sampled)} [{CPU}]"
        )
    if time[UNEXPLAINED] > MOSTLY * (1 - time["joins"]):
        return "Nothing that was recorded is contended, but most of the time is unexplained"
    all_ns = max(program.sum(*STATES), 1.0)
    waits = {
        name: max(part - idle.get(name, 0.0) / all_ns, 0.0)
        for name, part in time.items()
        if name not in ("running", UNEXPLAINED, CLIENTS)
    }
    # To join threads that are at work is no wait of interest if there is another one.
    if any(part >= BESIDE_JOINS for name, part in waits.items() if name != "joins"):
        del waits["joins"]
    longest = max(waits, key=lambda name: waits[name], default="")
    if not longest or waits[longest] < IDLE_REST:
        what = "no thread waited"
        if idle or time[CLIENTS]:
            others = sum(ns for name, ns in idle.items() if name != CLIENTS)
            is_served = time[CLIENTS] * all_ns > others
            what = f"threads wait for {CLIENTS if is_served else 'work'}"
        return f"Nothing is contended: {what}"
    delivered = delivery(program)[1] or 0
    queued, ran = time["queued"] * all_ns - delivered, program.ran_ns
    if longest == "queued" and delivered > queued:
        return (
            f"Nothing is contended, but threads waited {duration(delivered)} for wake-ups to reach"
            f" a processor, and ran {duration(ran)}: they hand over to each other often, for"
            " little work"
        )
    if longest == "queued" or (queued > ran and waits["queued"] >= QUEUED_LEAST):
        return (
            f"Nothing is contended, but threads were queued {duration(queued)} for a processor, and"
            f" ran {duration(ran)}: there are too few processors, or other programs use them"
        )
    if longest == "conditions" and (event := places.longest_event(database, program.wall_ns)):
        of_time = share(event.wait_ns / all_ns)
        return (
            f"No lock is contended, but threads wait for each other: {event.wait_label} waits"
            f" {duration(event.wait_ns)} in all, {of_time} % of the time, until {event.wake_label}"
            f"{does(event)}"
        )
    if waits[longest] < time[CLIENTS]:
        return f"Nothing is contended: threads wait mostly for {CLIENTS}"
    if longest == "locks":
        return "Threads wait mostly for locks, but fixing one of them alone would gain nothing"
    text = f"Nothing is contended: threads wait mostly for {longest}"
    kinds = IO_KINDS if longest == "I/O" else ("sleep",) if longest == "timers" else ()
    if place := places.longest(database, longest, kinds, program.wall_ns):
        each = place.wait_ns / max(place.count, 1)
        text += (
            f", {duration(place.wait_ns)} of it in {place.kind} at {place.label},"
            f" {counted(place.count, 'time')}, {duration(each)} each"
        )
        if place.kind == "sleep" and place.count >= polling.RATE * program.wall_ns / 1e9:
            text += (
                ". If that loop looks for an event, a condition variable or a semaphore would wake"
                " the thread at once"
            )
    return text + meanwhile(program, sampled)


def does(event: places.Event) -> str:
    """Say what the thread that others wait for waits for itself."""
    if event.back_ns:
        return (
            f", which waits {duration(event.back_ns)} for it in turn: there is little room between"
            " the two, or little work at a time"
        )
    work = event.work
    if work is None or work.wait_ns < WORK_LEAST * event.wait_ns:
        return ""
    return f", which {places.AT_WORK[work.kind]} {duration(work.wait_ns)} at {work.label} meanwhile"


def meanwhile(program: Program, sampled: Running | None) -> str:
    """Say where threads compute, if they do for about as long as the program runs."""
    part = program.ran_ns / max(program.wall_ns, 1)
    if part < BUSY:
        return ""
    return (
        f". Meanwhile threads compute, on {part:.1f} of {counted(program.processors, 'processor')}"
        f"{where_busy(program, sampled)}"
    )


def where_busy(program: Program, sampled: Running | None) -> str:
    """Say in which function threads that compute run, and what shows more."""
    if sampled is None:
        return ". Run perf to see where"
    function, part = busiest(sampled.python, PYTHON_TELLING)
    if function and sampled.python_ns > MOSTLY * program.ran_ns:
        return f", {share(part)} % of it in {function}. py-spy shows the lines"
    function, part = busiest(sampled.stacks)
    if not function:
        return ". Run perf to see where"
    return f", {share(part)} % of it in {function}. perf shows the instructions"


def unexplained(database: Database, program: Program) -> str:
    """Say why much of the time is unexplained, and what explains it. Empty: it is not much."""
    asleep, missing = program.sum("in_call"), program.sum("missing")
    whole = program.sum(*STATES)
    if asleep + missing < max(UNEXPLAINED_LEAST * whole, LEAST_NS):
        return ""
    text = f"{duration(asleep + missing)} of {duration(whole)} of threads' time are unexplained: "
    if asleep < missing:
        return f"{text}the kernel's figures for threads are missing or incomplete in the recording"
    listed = database.rows("SELECT DISTINCT runtimes FROM processes")
    named = {name for row in listed for name in (row["runtimes"] or "").split(", ")}
    where = [OWN_CALLS[name] for name in sorted(named & set(OWN_CALLS))] or [SLEPT]
    return f"{text}threads slept {' and '.join(where)}. {OTHERWISE}"


def alike(findings: Sequence[Finding]) -> list[Finding]:
    """Join the findings that differ only in their process, or in their lock of several."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.kind, each.object, each.waiter, each.holder), []).append(each)
    joined = []
    for group in groups.values():
        worst = max(group, key=lambda each: each.blame_ns)
        if len(group) > 1:
            blame = sum(each.blame_ns for each in group)
            text = f"{worst.text} and {len(group) - 1} more like it"
            worst = replace(worst, blame_ns=blame, text=text)
        joined.append(worst)
    return joined


def make(database: Database, busy_ns: int | None = None, sampled: Running | None = None) -> Verdict:
    """busy_ns: how long all programs ran on these processors meanwhile. None: not known.

    sampled: where the threads ran. None: not known.
    """
    program = read(database, busy_ns)
    time = division(program)
    shared = rwlocks.find(database, program)
    onion = onions.find(program, load_of)
    found = [
        spins.lock(row, program)
        or rwlocks.better(lock_finding(row, program, database), shared.get(key_of(row)))
        for row in program.locks
        if onion is None or key_of(row) not in onion.keys
    ]
    findings = [finding for finding in found if finding]
    findings += [onion.finding] if onion else []
    threads, slow = thread_pools.find(database, program), stages.find(database, program)
    findings += threads.findings + slow.findings
    findings += polling.find(database, program, threads.served | slow.served)
    small = pools.find(database, program)
    findings += small.findings
    findings += herd_findings(program, small.waiters, java_locks.internal_sites(database))
    findings += stragglers.find(database, program, sampled, small.barriers)
    findings += java_locks.find(database, program, sampled) + java_pools.find(program, sampled)
    findings += interpreter.find(database, program, sampled) + spins.yields(database, program)
    findings += spins.loops(program, sampled)
    findings += shares.find(database, program) + accept_herds.find(database, program)
    findings += handovers.find(database, program) + loops.find(database, program)
    findings += known_locks.find(database, program)
    findings += python_locks.find(database, program, sampled)
    findings += timers.find(database, program) + file_locks.find(database, program)
    findings = alike(findings)
    findings.sort(key=lambda finding: -finding.blame_ns)
    idle = {} if findings else places.idle_parts(database, program.wall_ns)
    text = "" if findings else summary(database, program, time, idle, sampled)
    return Verdict(
        *(time, round(program.sum(*STATES)), findings[:SHOWN], text),
        unexplained(database, program),
        *delivery(program),
    )
