# SPDX-License-Identifier: MIT
"""The interpreter lock of CPython: of the threads that run Python code, one at a time may.

CPython builds it from a mutex and a condition in its own memory. A thread waits for the condition
with a time-out, the switch interval, after which it asks the holder to let it run.
"""

from __future__ import annotations

from rouse.query import gain, measures
from rouse.query.demand import load_without
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding
from rouse.query.program import STATES, Program
from rouse.query.ran import PYTHON_TELLING, Running, busiest
from rouse.tables.engine import Database
from rouse.tables.views import texts
from rouse.text import duration, share

GIL = "interpreter-lock"
NAME = "the interpreter lock of Python"
LEAST_GAIN = 1.1
# Functions of CPython that wait for it, or call one that does. The symbols of the former are seldom
# there: the frames are near the innermost one.
FUNCTIONS = (
    *("take_gil", "_PyEval_EvalFrameDefault", "PyEval_RestoreThread", "PyEval_AcquireThread"),
    *("PyGILState_Ensure", "_PyEval_EvalFrame", "_Py_HandlePending", "eval_frame_handle_pending"),
)
NEAR = 2  # frames between
WAITS = f"""
SELECT w.process, w.wait_site, SUM({measures.total(measures.VERDICTS)}) AS waits,
    SUM(w.wait_ns) AS wait_ns, SUM(w.timeout) AS timeouts,
    SUM(CASE WHEN w.timeout > 0 THEN w.wait_ns ELSE 0 END) AS timeouts_ns
FROM wakes w JOIN (
    SELECT DISTINCT process, site FROM sites
    WHERE frame <= {NEAR} AND "function" IN ({texts(FUNCTIONS)})
) s ON s.process = w.process AND s.site = w.wait_site
WHERE w.kind IN ('condition', 'semaphore') AND w.object_name LIKE '%PyRuntime%'
GROUP BY w.process, w.wait_site
"""


def sites(database: Database) -> set[tuple[str, str]]:
    """Return the processes and sites of waits for it."""
    return {(row["process"], row["wait_site"]) for row in database.rows(WAITS)}


def holder(process: str, sampled: Running | None) -> tuple[str, str]:
    """Return the Python function that has the lock most often, and a sentence that says so."""
    if sampled is None:
        return "", ""
    mine = [stack for stack in sampled.python if stack.process == process]
    function, part = busiest(mine, PYTHON_TELLING)
    if function:
        return function, f" {function} has it for {share(part)} % of that time."
    return "", f" Which function has it is not known: {why}." if (why := sampled.python_why) else ""


def find(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    rows = database.rows(measures.labelled(WAITS, ("wait_ns DESC",), label="wait_site"))
    wait_ns = sum(row["wait_ns"] for row in rows)
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if wait_ns < max(LEAST_SHARE * whole, LEAST_NS):
        return []
    load = load_without(wait_ns, ("cond", "sem"), program)
    most, expected = gain.bound(load, []), gain.estimate(load, [])
    if most < LEAST_GAIN:
        return []
    count, timeouts = (sum(row[key] for row in rows) for key in ("waits", "timeouts"))
    function, says = holder(rows[0]["process"], sampled)
    interval = ""
    if timeouts:
        each = sum(row["timeouts_ns"] for row in rows) / timeouts
        interval = f", of which {timeouts:,} lasted for a switch interval ({duration(each)})"
    text = (
        f"{NAME}: threads wait {duration(wait_ns)} in all to run Python code, {count:,} times"
        f"{interval}: one thread runs at a time.{says} Processes instead of threads gain at most"
        f" {most:.2f}x, about {expected:.2f}x [{GIL}]"
    )
    waiter = rows[0]["label"]
    return [Finding(GIL, NAME, waiter, function or NAME, wait_ns, most, expected, text)]
