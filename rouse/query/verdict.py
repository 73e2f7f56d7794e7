# SPDX-License-Identifier: MIT
"""The verdict: how the threads' time divides, and which waits are worth fixing.

A finding is a rule over the tables, with a page in docs/findings/. Findings are ranked by blame:
how long other threads waited because of it, not how long its own thread did.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rouse.query import (
    accept_herds,
    behind,
    deadlocks,
    file_locks,
    handovers,
    herds,
    hot_locks,
    interpreter,
    java_locks,
    java_pools,
    joins,
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
    summary,
    thread_pools,
    thread_time,
    timers,
)
from rouse.query.demand import key_of
from rouse.query.finding import LEAST_NS, Finding
from rouse.query.program import STATES, UNEXPLAINED, Program
from rouse.query.ran import Running
from rouse.symbols.runtimes import OWN_CALLS
from rouse.tables.engine import Database
from rouse.tables.views import CLIENTS, names
from rouse.text import duration, share

SHOWN = 5  # findings
LOCKS_MOST = 50  # locks that are looked at, the longest waits first
SIDES_MOST = 500
UNEXPLAINED_LEAST = 0.05
DELIVERY_LEAST = 0.02
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
    together = [row for row in database.rows(measures.herds()) if row["size_from"] > 1]
    return Program(
        threads=threads,
        locks=found,
        sides=database.rows(locks.sides(sides_cut)) if waited else [],
        wakes=database.rows(measures.wake_ledger(wakes_cut)),
        polls=database.rows(measures.polls()),
        herd_wakes=sum(row["size_from"] * row["count"] for row in together),
        herd_calls=sum(row["count"] for row in together),
        wall_ns=max((row["duration_ns"] for row in processes), default=0),
        processors=max((row["cpus"] for row in processes), default=0) or os.cpu_count() or 1,
        ran_ns=ran_ns,
        in_kernel=min(sum(row["system_ns"] for row in processes) / max(known_ns, 1.0), 1.0),
        others_ran_ns=max((busy_ns or 0) - ran_ns, 0.0),
    )


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
    time = thread_time.division(program)
    kept = deadlocks.find(database)
    others = [row for row in program.locks if key_of(row) not in kept.keys]
    program = replace(program, locks=others)
    shared = rwlocks.find(database, program)
    onion = onions.find(program, hot_locks.load_of)
    found = [
        (
            row,
            spins.lock(row, program)
            or rwlocks.better(hot_locks.find(row, program, database), shared.get(key_of(row))),
        )
        for row in program.locks
        if onion is None or key_of(row) not in onion.keys
    ]
    findings = behind.joined(found, program, database)
    findings += file_locks.find(database, program, sampled)
    held_at = " ".join(finding.text for finding in findings)
    findings += kept.findings + ([onion.finding] if onion else [])
    threads, slow = thread_pools.find(database, program), stages.find(database, program)
    findings += [each for each in threads.findings if each.waiter not in slow.waits]
    findings += slow.findings
    findings += [
        each
        for each in polling.find(database, program, threads.served | slow.served)
        if not re.search(rf"{re.escape(each.waiter)}\b", held_at)  # it sleeps with the lock
    ]
    small = pools.find(database, program)
    findings += small.findings
    findings += herds.find(program, small.waiters, java_locks.internal_sites(database))
    findings += stragglers.find(database, program, sampled, small.barriers)
    findings += joins.find(database, program, sampled)
    findings += java_locks.find(database, program, sampled) + java_pools.find(program, sampled)
    of_interpreter = interpreter.find(database, program, sampled)
    findings += of_interpreter + spins.yields(database, program)
    findings += spins.loops(program, sampled)
    findings += shares.find(database, program) + accept_herds.find(database, program)
    findings += handovers.find(database, program) + loops.find(database, program)
    findings += known_locks.find(database, program)
    of_python = [
        each
        for each in python_locks.find(database, program, sampled)
        # The thread that has it waits to run.
        if not (of_interpreter and python_locks.is_of_library(each, sampled))
    ]
    findings += of_python
    of_executors = python_locks.executors(program, sampled)
    findings += of_executors
    if not of_python and not of_executors:
        findings += python_locks.pools(database, program, sampled)
    findings += timers.find(database, program)
    findings = alike(findings)
    findings.sort(key=lambda each: (each.kind != deadlocks.DEADLOCK, -each.blame_ns))
    idle = {} if findings else places.idle_parts(database, program.wall_ns)
    text = "" if findings else summary.text_of(database, program, time, idle, sampled)
    return Verdict(
        *(time, round(program.sum(*STATES)), findings[:SHOWN], text),
        unexplained(database, program),
        *thread_time.delivery(program),
    )
