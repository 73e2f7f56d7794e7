# SPDX-License-Identifier: MIT
"""Sleeps that end long after their time: the kernel ends them late, or no processor is free."""

from __future__ import annotations

from rouse.query import gain, measures
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding
from rouse.query.program import STATES, Program
from rouse.tables.engine import Database
from rouse.text import duration

LATE = "late-timers"
LEAST = 20  # sleeps
LATE_LEAST_NS = 1_000_000  # on average
LATE_SHARE = 0.25  # of the time slept
MOSTLY = 0.5
WORK = ("usr", "lat", "mutex", "rwlock", "io", "sleep")

QUEUED = """
SELECT (SELECT COALESCE(SUM(run_queue_ns), 0) FROM groups)
    + (SELECT COALESCE(SUM(run_queue_ns), 0) FROM workers WHERE NOT is_worker) AS queued_ns
"""
SLEEPS = f"""
SELECT process, wait_site, SUM({measures.total(measures.VERDICTS)}) AS sleeps,
    SUM(wait_ns) AS wait_ns
FROM wakes WHERE kind = 'sleep' GROUP BY process, wait_site
"""


def find(database: Database, program: Program) -> list[Finding]:
    late_ns = sum(row["late_ns"] for row in database.rows(measures.lateness_totals()))
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if late_ns < max(LEAST_SHARE * whole, LEAST_NS):
        return []
    order = ("wait_ns DESC", "process", "wait_site")
    rows = database.rows(measures.labelled(SLEEPS, order, label="wait_site"))
    sleeps, slept_ns = (sum(row[key] for row in rows) for key in ("sleeps", "wait_ns"))
    if sleeps < LEAST or late_ns < max(sleeps * LATE_LEAST_NS, LATE_SHARE * slept_ns):
        return []
    (queue,) = database.rows(QUEUED)
    is_queued = queue["queued_ns"] > MOSTLY * late_ns
    why = (
        "they wait for a processor: there are too few"
        if is_queued
        else "the kernel ends them late: prctl(PR_SET_TIMERSLACK) sets by how much at most"
    )
    sharing = [row for row in program.threads if program.sum("sleep", rows=[row]) > 0]
    work = program.sum(*WORK, rows=sharing)
    left_ns = max(slept_ns - late_ns, 1)
    most, expected = gain.allowed(slept_ns / left_ns), work / max(work - late_ns, left_ns)
    first = rows[0]["label"]
    text = (
        f"{sleeps:,} sleeps end {duration(late_ns / sleeps)} late on average, most of them at"
        f" {first}: {why}. If they ended on time: at most {most:.2f}x, about {expected:.2f}x"
        f" as many [{LATE}]"
    )
    return [Finding(LATE, "-", first, "timer", late_ns, most, expected, text)]
