# SPDX-License-Identifier: MIT
"""Locks of Python programs: threading.Lock, and what is built of it.

CPython makes them of semaphores. So do its conditions, events and queues: there, each thread waits
for a lock of its own. For a lock that is shared, several threads wait at the same time.
"""

from __future__ import annotations

from collections import Counter

from rouse.query import gain, measures
from rouse.query.demand import load_without
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, Finding, Row
from rouse.query.program import STATES, Program
from rouse.query.ran import PYTHON_TELLING, PythonStack, Running
from rouse.tables.engine import Database
from rouse.tables.views import texts
from rouse.text import duration

PYTHON_LOCK = "python-lock"
SEVERAL = 1.2  # threads that wait for it on average
MOSTLY = 0.5
NEAR = 2  # the function that waits, and its caller
FUNCTIONS = ("PyThread_acquire_lock_timed", "PyThread_acquire_lock")
WAITS = f"""
SELECT w.process, w.object, MIN(w.wait_site) AS wait_site, SUM(w.wait_ns) AS wait_ns,
    SUM({measures.total(measures.VERDICTS)}) AS waits
FROM wakes w JOIN (
    SELECT DISTINCT process, site FROM sites
    WHERE frame = 0 AND "function" IN ({texts(FUNCTIONS)})
) s ON s.process = w.process AND s.site = w.wait_site
WHERE w.kind IN ('semaphore', 'condition') GROUP BY w.process, w.object
"""


def find(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    rows = database.rows(measures.labelled(WAITS, ("wait_ns DESC",), label="wait_site"))
    whole = program.sum(*STATES) - program.sum("join", "accept")
    least = max(LEAST_SHARE * whole, LEAST_NS, SEVERAL * program.wall_ns)
    found = [finding(row, program, sampled) for row in rows if row["wait_ns"] >= least]
    return [each for each in found if each]


def finding(row: Row, program: Program, sampled: Running | None) -> Finding | None:
    load = load_without(row["wait_ns"], ("cond", "sem"), program, is_lock=True)
    most, expected = gain.bound(load, []), gain.estimate(load, [])
    if most < LEAST_GAIN:
        return None
    mine = (
        [each for each in sampled.python_all if each.process == row["process"]] if sampled else []
    )
    waiter, holder = sides(mine, row["wait_ns"] / (program.wall_ns or 1))
    why = f" ({sampled.python_why})" if sampled and sampled.python_why else ""
    where = f"{waiter} waits" if waiter else f"threads wait, it is not known where{why}"
    until = f", while its holder is mostly in {holder}" if holder else ""
    text = (
        f"a lock of Python: {where}, {duration(row['wait_ns'])} in all, {row['waits']:,} times,"
        f" {duration(row['wait_ns'] / max(row['waits'], 1))} each{until}. Without these waits at"
        f" most {most:.2f}x, about {expected:.2f}x the throughput [{PYTHON_LOCK}]"
    )
    return Finding(
        *(PYTHON_LOCK, "a lock of Python", waiter or row["label"], holder),
        *(row["wait_ns"], most, expected, text),
    )


def sides(stacks: list[PythonStack], waiting: float) -> tuple[str, str]:
    """Return where threads wait for a lock, and where the thread is that holds it. Empty: unknown.

    waiting: how many threads wait for it on average. They are the most that wait at one place, if
    their number is about that. The holder is in a call that was made from the same function, or
    from its caller: __enter__ returns with the lock.
    """
    places: Counter[str] = Counter()
    for stack in stacks:
        places[stack.place[1]] += stack.samples
    if places.total() < PYTHON_TELLING:
        return "", ""
    (waiter, count), *_ = places.most_common(1)
    others = [stack for stack in stacks if stack.place[1] != waiter]
    if count < MOSTLY * waiting / (waiting + 1) * places.total():
        return "", ""
    mine = max(
        (stack for stack in stacks if stack.place[1] == waiter), key=lambda stack: stack.samples
    )
    for function in calls_of(mine)[:NEAR]:
        held: Counter[str] = Counter()
        for stack in others:
            if function in calls_of(stack):
                held[stack.place[1]] += stack.samples
        if held:
            return waiter, held.most_common(1)[0][0]
    return waiter, ""


def calls_of(stack: PythonStack) -> list[str]:
    """Return the program's functions of a stack, the innermost first."""
    functions = [PythonStack("", 1, (frame,)).place[0] for frame in stack.frames]
    function = stack.place[0]
    return functions[functions.index(function) :] if function in functions else functions
