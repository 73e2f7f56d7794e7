# SPDX-License-Identifier: MIT
"""Locks of Python programs: threading.Lock, and what is built of it.

CPython makes them of semaphores. So do its conditions, events and queues: there, each thread waits
for a lock of its own. For a lock that is shared, several threads wait at the same time.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from rouse.query import gain, measures
from rouse.query.demand import least_ran, load_without
from rouse.query.finding import LEAST_GAIN, LEAST_NS, LEAST_SHARE, SMALL_POOL, Finding, Row
from rouse.query.java_locks import HANDOVER
from rouse.query.program import STATES, Program
from rouse.query.ran import (
    PYTHON_FRAME,
    PYTHON_LIBRARY,
    PYTHON_TELLING,
    PythonStack,
    Running,
)
from rouse.tables.engine import Database
from rouse.tables.views import texts
from rouse.text import counted, duration

PYTHON_LOCK = "python-lock"
SEVERAL = 1.2  # threads that wait for it on average
MOSTLY = 0.5
NEAR = 2  # the function that waits, and its caller
# Threads that wait for a pool, on average. And how much the mean number of those with something of
# it may differ from a whole number.
WAITING_LEAST, UNEVEN_MOST = 0.5, 0.15
EXECUTOR = re.compile(r"^_worker \(.*/concurrent/futures/thread\.py:")
RESULT = re.compile(r"\b(result|result_iterator|wait) \(.*/concurrent/futures/_base\.py:")
IDLE_MOST = 0.15  # threads of an executor, for each that works
OUTSIDE_MOST = 1.3  # threads that neither wait for a pool nor use it: the main thread
FUNCTIONS = ("PyThread_acquire_lock_timed", "PyThread_acquire_lock")
WAITS = f"""
SELECT w.process, w.object, MIN(w.wait_site) AS wait_site, MIN(w.kind) AS kind,
    SUM(w.wait_ns) AS wait_ns,
    SUM({measures.total(measures.VERDICTS)}) AS waits
FROM wakes w JOIN (
    SELECT DISTINCT process, site FROM sites
    WHERE frame = 0 AND "function" IN ({texts(FUNCTIONS)})
) s ON s.process = w.process AND s.site = w.wait_site
WHERE w.kind IN ('semaphore', 'condition') GROUP BY w.process, w.object
"""


# Calls of CPython below which the main thread runs.
MAIN = ("run_eval_code_obj", "PyEval_EvalCode", "pyrun_file", "run_mod", "pymain_run_python")
# By process, the waits that the main thread ended.
BY_MAIN = f"""
SELECT w.process, SUM(w.wait_ns) AS wait_ns
FROM wakes w JOIN (
    SELECT DISTINCT process, site FROM sites
    WHERE frame = 0 AND "function" IN ({texts(FUNCTIONS)})
) s ON s.process = w.process AND s.site = w.wait_site
JOIN (
    SELECT DISTINCT process, site FROM sites WHERE "function" IN ({texts(MAIN)})
) m ON m.process = w.process AND m.site = w.wake_site
WHERE w.kind IN ('semaphore', 'condition') GROUP BY w.process
"""


def find(database: Database, program: Program, sampled: Running | None = None) -> list[Finding]:
    rows = database.rows(measures.labelled(WAITS, ("wait_ns DESC",), label="wait_site"))
    whole = program.sum(*STATES) - program.sum("join", "accept")
    least = max(LEAST_SHARE * whole, LEAST_NS, SEVERAL * program.wall_ns)
    found = [finding(row, program, sampled) for row in rows if row["wait_ns"] >= least]
    return [each for each in found if each]


def is_of_library(finding: Finding, sampled: Running | None) -> bool:
    """Whether threads wait for the lock in modules of Python alone, as those of a queue."""
    stacks = sampled.python_all if sampled else []
    mine = [stack for stack in stacks if stack.place[1] == finding.waiter]
    files = [match["file"] for stack in mine if (match := stack.match)]
    return bool(files) and all(PYTHON_LIBRARY.search(file) for file in files)


def finding(row: Row, program: Program, sampled: Running | None) -> Finding | None:
    # Threads also wait for conditions of the interpreter lock, which all of them share.
    states = ("sem",) if row["kind"] == "semaphore" else ("cond", "sem")
    load = load_without(row["wait_ns"], states, program, is_lock=True)
    most, expected = gain.bound(load, []), gain.estimate(load, [])
    if most < LEAST_GAIN:
        return None
    mine = (
        [each for each in sampled.python_all if each.process == row["process"]] if sampled else []
    )
    threads = lived(row["process"], program)
    waiter, holder = sides(mine, row["wait_ns"] / (program.wall_ns or 1), threads)
    # If it is known which threads use the lock, the others do not count.
    shares = sharing(mine, waiter)
    wall = program.wall_ns or 1
    least, used = (part * threads * wall - row["wait_ns"] for part in shares)
    if used > 0:
        ran = wall / max(least_ran(program.ran_ns, row["waits"], program), 1.0)
        expected = max(expected, min((used + row["wait_ns"]) / used, ran))
        at_once = (least + row["wait_ns"]) / least if least > 0 else ran
        most = max(most, gain.allowed(min(at_once, ran)), expected)
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


def sharing(stacks: list[PythonStack], waiter: str) -> tuple[float, float]:
    """Return the share of the threads that use a lock, with its standard error subtracted and not.

    Their first function waits for the lock.
    """

    def first(stack: PythonStack) -> str:
        calls = calls_of(stack)
        return calls[-1] if calls else ""

    using = {first(stack) for stack in stacks if stack.place[1] == waiter}
    whole = max(sum(stack.samples for stack in stacks), 1)
    part = sum(stack.samples for stack in stacks if first(stack) in using) / whole
    return part - math.sqrt(part * (1 - part) / whole), part


def lived(process: str, program: Program) -> float:
    """Return how many threads of a process there were on average."""
    own = [row for row in program.threads if row.get("process") == process]
    return float(sum(row["wall_ns"] for row in own) / (program.wall_ns or 1))


def sides(stacks: list[PythonStack], waiting: float, threads: float = 0.0) -> tuple[str, str]:
    """Return where threads wait for a lock, and where the thread is that holds it. Empty: unknown.

    waiting: how many threads wait for it on average, of so many in all. They are the most that are
    at one place where they do not sleep, if their number is about that. The holder is in a call
    that was made from the same function, or from its caller: __enter__ returns with the lock. A
    thread in the same function may also be behind the lock.
    """
    places: Counter[str] = Counter()
    for stack in stacks:
        if not stack.is_asleep:
            places[stack.place[1]] += stack.samples
    whole = sum(stack.samples for stack in stacks)
    if whole < PYTHON_TELLING or not places:
        return "", ""
    (waiter, count), *_ = places.most_common(1)
    if count < MOSTLY * waiting / max(waiting + 1, threads) * whole:
        return "", ""
    held = users(stacks, waiter, least=MOSTLY * whole / max(waiting + 1, threads))
    own = waiter.rpartition(":")[0]
    called = Counter({place: n for place, n in held.items() if place.rpartition(":")[0] != own})
    if called and max(called.values()) >= MOSTLY * max(held.values()):
        held = called
    return waiter, held.most_common(1)[0][0] if held else ""


def users(
    stacks: list[PythonStack], waiter: str, with_all: bool = False, least: float = 0.0
) -> Counter[str]:
    """Return the samples of those that have what others wait for at a place, by their places.

    They are in calls from the function that waits or, if there are none or with_all, from its
    caller. least: fewer samples in the function itself are of threads on their way out of it.
    """
    held: Counter[str] = Counter()
    mine = max(
        (stack for stack in stacks if stack.place[1] == waiter), key=lambda stack: stack.samples
    )
    others = [stack for stack in stacks if stack.place[1] != waiter]
    functions = calls_of(mine)[:NEAR]
    own = waiter.rpartition(":")[0]
    for nearest in [functions] if with_all else [[function] for function in functions]:
        found: Counter[str] = Counter()
        for stack in others:
            if not set(nearest).isdisjoint(calls_of(stack)):
                found[stack.place[1]] += stack.samples
        held = found or held
        is_called = any(place.rpartition(":")[0] != own for place in held)
        if held and (is_called or held.total() >= least):
            break
    return held


def calls_of(stack: PythonStack) -> list[str]:
    """Return the program's functions of a stack, the innermost first."""
    return [
        PythonStack("", 1, (frame,)).place[0]
        for frame in stack.frames
        if (match := PYTHON_FRAME.fullmatch(frame)) and not PYTHON_LIBRARY.search(match["file"])
    ]


def pools(database: Database, program: Program, sampled: Running | None) -> list[Finding]:
    """Pools of which threads take something by a queue, a condition or a semaphore of Python.

    The same number of threads has something of a pool all the time, and those that wait for it are
    the ones that put it back. A thread that does neither, or the main thread, brings them work.
    """
    if sampled is None:
        return []
    by_main = {row["process"]: row["wait_ns"] for row in database.rows(BY_MAIN)}
    rows = database.rows(measures.labelled(WAITS, ("wait_ns DESC",), label="wait_site"))
    waited: Counter[str] = Counter()
    for row in rows:
        waited[row["process"]] += row["wait_ns"]
    found = []
    for process, wait_ns in waited.items():
        if by_main.get(process, 0) > MOSTLY * wait_ns:
            continue
        mine = [each for each in sampled.python_all if each.process == process]
        waiter, holder = sides(mine, wait_ns / (program.wall_ns or 1))
        if holder:
            found.append(pool(mine, waiter, lived(process, program), program))
    return [each for each in found if each]


def executors(program: Program, sampled: Running | None) -> list[Finding]:
    """Executors of concurrent.futures whose threads have no time, while more threads wait for them.

    How many results each of these waits for is not known.
    """
    if sampled is None:
        return []
    found = []
    for process in sorted({stack.process for stack in sampled.python_all}):
        mine = [each for each in sampled.python_all if each.process == process]
        each = lived(process, program) / sum(stack.samples for stack in mine)  # for a sample
        waiting, busy = Counter[str](), Counter[str]()
        idle = 0
        for stack in mine:
            first = PYTHON_FRAME.fullmatch(stack.frames[0])
            is_own = any(EXECUTOR.search(frame) for frame in stack.frames)
            if is_own and first and first["function"] == "_worker":
                idle += stack.samples
            elif is_own:
                busy[stack.place[1]] += stack.samples
            elif any(RESULT.search(frame) for frame in stack.frames):
                waiting[stack.place[1]] += stack.samples
        if finding := executor(waiting, busy, idle, each, program):
            found.append(finding)
    return found


def executor(
    waiting: Counter[str], busy: Counter[str], idle: int, each: float, program: Program
) -> Finding | None:
    """waiting, busy: samples by place. idle: others of its threads. each: threads for a sample."""
    asked, works = each * waiting.total(), each * busy.total()
    if waiting.total() + busy.total() < PYTHON_TELLING or idle > IDLE_MOST * busy.total():
        return None
    if not busy or asked - works < WAITING_LEAST:
        return None
    by_processors = program.processors * program.wall_ns
    most = max(by_processors / max(least_ran(program.ran_ns, 0, program), 1.0), 1.0)
    single = min(HANDOVER * asked / works, most)
    if single < LEAST_GAIN:
        return None
    ((waiter, _), *_), ((worker, _), *_) = waiting.most_common(1), busy.most_common(1)
    name = "an executor of Python"
    text = (
        f"{name} is too small: {asked:.1f} threads wait for results on average, mostly at {waiter},"
        f" and {works:.1f} threads of it work, mostly at {worker}. A larger pool gains at most"
        f" {single:.2f}x the throughput if each waits for one result, else at most {most:.2f}x"
        f" [{SMALL_POOL}]"
    )
    wait_ns = round((asked - works) * program.wall_ns)
    return Finding(SMALL_POOL, name, waiter, worker, wait_ns, most, None, text)


def pool(
    stacks: list[PythonStack], waiter: str, threads: float, program: Program
) -> Finding | None:
    """threads: those of the process, on average."""
    each = threads / sum(stack.samples for stack in stacks)  # for a sample
    waiting = each * sum(stack.samples for stack in stacks if stack.place[1] == waiter)
    # Also those that are just about to put something back, in the function that waits.
    using = users(stacks, waiter, with_all=True)
    used, ((holder, _), *_) = each * using.total(), using.most_common(1)
    size = round(used)
    if waiting < WAITING_LEAST or size < 1 or abs(used - size) > UNEVEN_MOST:
        return None
    if threads - waiting - used > OUTSIDE_MOST:
        return None
    by_processors = program.wall_ns / max(least_ran(program.ran_ns, 0, program), 1.0)
    most = min(HANDOVER * (waiting + used) / size, by_processors)
    expected = min((waiting + used) / size, most)
    if most < LEAST_GAIN:
        return None
    name = f"the pool of {waiter.partition(' ')[0]}"
    text = (
        f"{name} is too small: {waiter} waits, {waiting:.1f} threads on average, while"
        f" {counted(size, 'thread uses', 'threads use')} what they took from it, mostly in"
        f" {holder}. If they put it back, a larger pool gains at most {most:.2f}x, about"
        f" {expected:.2f}x the throughput; if others bring it, these are too slow [{SMALL_POOL}]"
    )
    wait_ns = round(waiting * program.wall_ns)
    return Finding(SMALL_POOL, name, waiter, holder, wait_ns, most, expected, text)
