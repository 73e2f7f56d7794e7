# SPDX-License-Identifier: MIT
"""Threads that use the processor while they wait: spin locks, and loops around sched_yield."""

from __future__ import annotations

from collections import Counter

from rouse.query.demand import key_of
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding, Row, lock_name, most_of
from rouse.query.measures import labelled
from rouse.query.program import STATES, Program
from rouse.query.ran import Running, busiest
from rouse.tables.engine import Database
from rouse.tables.views import known_site
from rouse.text import duration, share

SPINNING = "spinning"
MOSTLY = 0.5  # of the time waited for a lock
YIELD_NS = 2_000  # of a call of sched_yield: two switches
YIELDS_SHARE = 0.1  # of the CPU time
YIELDS_MOST = 32  # for each wait: std::counting_semaphore and others do so before they sleep
SPUN_SHARE = 0.1  # the same, in a loop that calls nothing
YIELDS = f"""
SELECT process, {known_site("yield_site")} AS site, SUM(yields) AS yields
FROM workers WHERE yields > 0 GROUP BY process, {known_site("yield_site")}
"""


def lock(row: Row, program: Program) -> Finding | None:
    """A lock for which threads spin rather than sleep."""
    spun = row["spin_ns"]
    if spun < max(LEAST_SHARE * worked(program), LEAST_NS, MOSTLY * row["wait_ns"]):
        return None
    sides = [side for side in program.sides if key_of(side) == key_of(row)]
    waiter, holder = most_of(sides, "site_label"), most_of(sides, "holder_label")
    name = lock_name(row)
    held = f" It is held for {duration(row['hold_ns'] / row['holds'])}." if row["holds"] else ""
    text = (
        f"{name}: threads spin for {duration(spun)} in all at {waiter or 'a place not known'},"
        f" {duration(spun / max(row['contested'], 1))} each, on a processor or in a queue for one."
        f"{held} A mutex lets waiters sleep [{SPINNING}]"
    )
    return Finding(SPINNING, name, waiter, holder, spun, None, None, text)


def loops(program: Program, sampled: Running | None) -> list[Finding]:
    """Functions that run in a loop until another thread changes a word, as in an own lock."""
    spinning = [stack for stack in sampled.stacks if stack.is_waiting] if sampled else []
    function, part = busiest(spinning)
    spun = sum(stack.ns for stack in spinning) * part
    if not sampled or spun < max(SPUN_SHARE * program.ran_ns, LEAST_NS):
        return []
    of_all = spun / max(sum(stack.ns for stack in sampled.stacks), 1)
    callers = Counter[str]()
    for stack in spinning:
        if stack.function == function:
            callers[stack.caller] += stack.samples
    caller = callers.most_common(1)[0][0]
    text = (
        f"{function} runs in a loop until another thread changes a word, for {duration(spun)},"
        f" {share(of_all)} % of the CPU time{caller and f', called from {caller}'}: a lock of the"
        " program's own, or another wait for a thread. A mutex or condition variable lets threads"
        f" sleep [{SPINNING}]"
    )
    return [Finding(SPINNING, "-", function, caller or function, round(spun), None, None, text)]


def worked(program: Program) -> float:
    return program.sum(*STATES) - program.sum("join", "accept")


def yields(database: Database, program: Program) -> list[Finding]:
    """Loops that give up the processor again and again, instead of waiting for an event."""
    rows = database.rows(labelled(YIELDS, ("yields DESC",), label="site"))
    count = sum(row["yields"] for row in rows)
    spun = min(count * YIELD_NS, program.ran_ns)
    if count <= YIELDS_MOST * program.sum("waits"):
        return []
    if spun < max(YIELDS_SHARE * program.ran_ns, LEAST_NS):
        return []
    label = rows[0]["label"]
    text = (
        f"{label} calls sched_yield in a loop, {count:,} times in all: the threads use the"
        " processors while they wait. A semaphore or a condition variable lets them sleep"
        f" [{SPINNING}]"
    )
    return [Finding(SPINNING, "-", label, label, round(spun), None, None, text)]
