# SPDX-License-Identifier: MIT
"""Locks of files, by flock(), lockf() and fcntl(), which processes share.

The kernel has them, and does not tell who holds one, or for how long: only the waits are recorded.
"""

from __future__ import annotations

from collections import Counter

from rouse.query import frames, gain, measures, python_locks
from rouse.query.demand import load_without
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, PAUSES, Finding, Row
from rouse.query.program import STATES, Program
from rouse.query.ran import Running
from rouse.tables.engine import Database
from rouse.text import duration

FILE_LOCK = "file-lock"
NEAR = 3  # calls, from a wait to the function that takes the lock and waits for other things
OFTEN = 0.5  # of the elapsed time, that such a function waits for other things


def find(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    every = database.rows(measures.waits_and_wakes())
    rows = [row for row in every if row["kind"] == "file lock"]
    wait_ns, count = (sum(row[key] for row in rows) for key in ("wait_ns", "count"))
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if wait_ns < max(LEAST_SHARE * whole, LEAST_NS):
        return []
    load = load_without(0, ("mutex",), program)  # they count as waits for mutexes
    most, expected = gain.bound(load, []), gain.estimate(load, [])
    if most < LEAST_GAIN:
        return []
    waiter, of = rows[0]["label"], {row["process"] for row in rows}
    holder, does = "", ""
    of_python = [stack for stack in sampled.python_all if stack.process in of] if sampled else []
    place, during = python_locks.sides(of_python, wait_ns / (program.wall_ns or 1))
    if place:
        waiter, holder = place, during
        does = f" Those that wait for none are mostly in {during} then." if during else ""
    elif both := user(rows[0], [row for row in every if row["kind"] in PAUSES], database, program):
        function, place, slept_ns = both
        holder = function.label
        does = (
            f" {function.name}, from which it is called, also waits {duration(slept_ns)} at"
            f" {place}, perhaps with a lock held."
        )
    text = (
        f"{waiter} waits {duration(wait_ns)} in all for locks of files, {count:,} times,"
        f" {duration(wait_ns / max(count, 1))} each.{does} Which thread or process holds one"
        f" meanwhile, the kernel does not tell; those of now are in /proc/locks. Without these"
        f" waits at most"
        f" {most:.2f}x, about {expected:.2f}x the throughput [{FILE_LOCK}]"
    )
    return [Finding(FILE_LOCK, "files", waiter, holder, wait_ns, most, expected, text)]


def user(
    wait: Row, pauses: list[Row], database: Database, program: Program
) -> tuple[frames.Function, str, int] | None:
    """Return the function that waits for the lock and, for long, for something else at a place.

    Also where, and for how long all processes do so.
    """
    known = frames.functions(database, {row["wait_site"] for row in (wait, *pauses)})

    def of(row: Row) -> list[frames.Function]:
        return known.get((row["process"], row["wait_site"]), [])

    slept_ns: Counter[str] = Counter()
    users: dict[str, frames.Function] = {}
    for pause in pauses:
        slept_ns[pause["label"]] += pause["wait_ns"]
        if function := frames.common(of(wait), of(pause), NEAR):
            users[pause["label"]] = function
    often = [place for place in users if slept_ns[place] >= max(OFTEN * program.wall_ns, 1)]
    # The innermost function that does both has the lock meanwhile, if any has.
    calls = [function.name for function in of(wait)]
    found = min(often, key=lambda p: (calls.index(users[p].name), -slept_ns[p]), default="")
    return (users[found], found, slept_ns[found]) if found else None
